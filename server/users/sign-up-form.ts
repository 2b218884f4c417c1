// Validates the sign-up form, without the database: sign-up.ts checks whether names are taken.
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import type { FieldViolation } from '../requests/refusal.js'
import { dayIn, readDateOfBirth } from '../rules/dates.js'
import {
  answerKey,
  emailKey,
  isEmailAddress,
  isOneLine,
  isReservedUsername,
  nicknameKey,
  usernameKey,
} from '../rules/names.js'
import {
  attributesOf,
  optionalFields,
  type ProfileField,
  type ProfileValues,
  profile,
  profileFields,
  type RequiredField,
  requiredFields,
} from '../rules/profile.js'
import { type Role, roles } from '../rules/roles.js'
import { limits, tooLong } from '../rules/sizes.js'

/** First year of birth that is accepted; an earlier one is a typing error. */
const firstYear = 1850

/**
 * Characters without a visible or common glyph: default ignorable code points, further blanks and fillers, annotation
 * and layout controls, private-use characters and noncharacters.
 */
const invisible =
  /[\p{Default_Ignorable_Code_Point}\u2800\ufff9-\ufffc\u{13430}-\u{13442}\u{16fe4}\u{1d159}\p{Co}\p{Noncharacter_Code_Point}]/u

// biome-ignore lint/complexity/useRegexLiterals: TypeScript takes the flag v in literals for later targets only
const emoji = new RegExp('\\p{RGI_Emoji}', 'gv')

/** Removes emoji, some of which contain joiners and variation selectors. */
function withoutEmoji(text: string): string {
  return text.replace(emoji, '')
}

/** The fields of a form, as given. */
type SignUpFields = Omit<SignUpRequest, '$typeName' | '$unknown'>

/** The present time, and the IANA time zone of dates of birth. */
interface Clock {
  readonly now: Date
  readonly timeZone: string
}

/** The texts of a form as they would be stored; undefined where nothing was given or it is wrong. */
export type SignUpTexts = { readonly [K in 'username' | ProfileField | 'email']?: string | undefined }

/** The texts of a form without wrong fields. */
export type CompleteTexts = SignUpTexts & { readonly [K in 'username' | RequiredField]: string }

/** A valid form: trimmed texts, absent when blank. Days are written yyyy-MM-dd (ISO 8601). */
export interface SignUpForm extends CompleteTexts {
  /** Key under which the username is unique. */
  readonly usernameKey: string
  /** Key under which the nickname is unique. */
  readonly nicknameKey: string
  readonly password: string
  readonly securityquestion?: string | undefined
  readonly securityanswer?: string | undefined
  readonly termsofusage: true
  readonly role: Role
  /** Key under which the address compares. */
  readonly emailKey?: string | undefined
}

/**
 * Validates a sign-up form. Returns all invalid fields, by their JSON names; the form, when there are none; and in any
 * case the valid texts, for administrators, whose forms need fewer fields. A date of birth is at most the day that
 * `now` is in `timeZone`.
 */
export function checkSignUp(
  request: SignUpFields,
  policy: PasswordPolicy,
  { now, timeZone }: Clock,
): { fields: FieldViolation[]; texts: SignUpTexts; form?: SignUpForm } {
  const fields: FieldViolation[] = []
  const wrong = (field: string, message: string) => {
    fields.push({ field, message })
    return undefined
  }

  /** Returns the trimmed text of a field; undefined when blank or invalid. */
  const text = (
    field: keyof SignUpTexts | 'securityquestion' | 'securityanswer',
    required: 'required' | 'optional',
  ) => {
    const value = request[field] ?? ''
    const kind = field === 'email' ? 'email' : 'text'
    // First, as the further checks are slow for long texts.
    if (tooLong(value, kind)) return wrong(field, `Use at most ${limits[kind]} characters.`)
    if (!isOneLine(value)) return wrong(field, 'Leave out line breaks and other control characters.')
    if (nicknameKey(value) === '') return required === 'required' ? wrong(field, 'Fill in this field.') : undefined
    const trimmed = value.trim()
    // Normalization expands some characters, and keys of names must fit an index entry.
    if (tooLong(nicknameKey(trimmed), 'text')) return wrong(field, 'Use fewer of these characters.')
    return trimmed
  }

  /** Returns the text of a name, which other users see: without invisible and private-use characters. */
  const name = (field: 'username' | 'nickname') => {
    const value = text(field, 'required')
    if (value === undefined || !invisible.test(withoutEmoji(request[field]!))) return value
    return wrong(field, 'Leave out invisible, blank and private-use characters.')
  }

  const dateOfBirth = (text: string) => {
    const day = readDateOfBirth(text, timeZone)!
    if (day > dayIn(timeZone, now)) return wrong('dateofborn', 'Give a day that isn’t in the future.')
    return day < `${firstYear}` ? wrong('dateofborn', `Give a day after ${firstYear - 1}.`) : day
  }

  const ofProfile = (field: ProfileField) => {
    const { required, check } = profile[field]
    const value = field === 'nickname' ? name(field) : text(field, required ? 'required' : 'optional')
    const problem = value && check?.(value)
    if (problem) return wrong(field, problem)
    return value && field === 'dateofborn' ? dateOfBirth(value) : value
  }

  const username = name('username')
  if (username && isReservedUsername(username)) wrong('username', 'Choose another username: this one is reserved.')
  const ordered = [...requiredFields, ...optionalFields].map(field => [field, ofProfile(field)])
  const email = text('email', 'optional')
  if (email && !isEmailAddress(email)) wrong('email', 'Give an e-mail address such as name@example.org.')
  const texts: SignUpTexts = { username, ...Object.fromEntries(ordered), email }

  const password = request.password ?? ''
  const problem = checkPassword(password, texts, policy)
  if (problem) wrong('password', problem)

  const securityquestion = text('securityquestion', 'optional')
  const securityanswer = text('securityanswer', 'optional')
  if (securityanswer && answerKey(securityanswer) === '') wrong('securityanswer', 'Use letters or digits.')

  const { termsofusage } = request
  if (!termsofusage) wrong('termsofusage', 'Accept the terms of usage: this must be true.')

  const role = roles.find(each => each === request.roles[0])
  if (request.roles.length !== 1 || !role) wrong('roles', `Give exactly one of ${roles.join(', ')}.`)

  if (fields.length > 0 || !role || !termsofusage) return { fields, texts }
  const complete = texts as CompleteTexts
  return {
    fields,
    texts,
    form: {
      ...complete,
      usernameKey: usernameKey(complete.username),
      nicknameKey: nicknameKey(complete.nickname),
      password,
      securityquestion,
      securityanswer,
      termsofusage,
      role,
      emailKey: email && emailKey(email),
    },
  }
}

/** Checks fields by the rules of sign-up: the result lists those that are left out among the wrong ones if they are required. */
export function checkFields(form: Partial<SignUpFields>, ...rest: [PasswordPolicy, Clock]) {
  const absent = { securityquestion: undefined, securityanswer: undefined }
  return checkSignUp({ ...absent, termsofusage: true, roles: [], ...form } as unknown as SignUpFields, ...rest)
}

/** Returns the profile in a form as attributes of a user, for sign-up and for users that an administrator creates. */
export function profileOf(texts: CompleteTexts) {
  return {
    ...(attributesOf(profileFields, texts) as ProfileValues),
    username: texts.username,
    usernameKey: usernameKey(texts.username),
    nicknameKey: nicknameKey(texts.nickname),
    email: texts.email ?? null,
  }
}
