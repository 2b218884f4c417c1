// The form of a user, without the database: names.ts says whether its names are taken.
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import type { FieldViolation } from '../requests/refusal.js'
import { dayIn, noDay, readDay } from '../rules/dates.js'
import { type Fault, fault, longerThan, severalLines } from '../rules/fault.js'
import {
  answerKey,
  emailKey,
  isNewAddress,
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
import { maxLengths, tooLong } from '../rules/sizes.js'

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

/** Fields that users give of themselves, in the order in which wrong ones are listed. */
export const accountFields = ['username', ...requiredFields, ...optionalFields, 'email'] as const

/** Such a field. */
export type AccountField = 'username' | ProfileField | 'email'

/** The fields of a sign-up. */
const signUpFields = [
  ...accountFields,
  ...(['password', 'securityquestion', 'securityanswer', 'termsofusage', 'roles'] as const),
]

/** A field of a form, by its JSON name. */
type FormField = (typeof signUpFields)[number]
type TextField = Exclude<FormField, 'password' | 'termsofusage' | 'roles'>

/** The name of a field in protocol buffers, masks, refusals and files. */
export const nameOf = (field: FormField): string => (isProfileField(field) ? profile[field].field : field)

/** The fields of a form, as given. */
type Given = Partial<Omit<SignUpRequest, '$typeName' | '$unknown'>>

/** What the rules of forms depend on. */
export interface FormRules {
  readonly policy: PasswordPolicy
  /** IANA time zone of a date-time of birth. */
  readonly timeZone: string
  /** The clock, in ms since 1970: a date of birth is at most the day that it shows in the time zone. */
  readonly now: () => number
}

/**
 * The texts of a form as they would be stored; undefined where nothing was given or it is wrong. Days are written yyyy-MM-dd
 * (ISO 8601).
 */
export type FormTexts = { readonly [K in AccountField]?: string | undefined }

/** The texts of a form without wrong fields. */
export type CompleteTexts = FormTexts & { readonly [K in 'username' | RequiredField]: string }

/** A valid sign-up: trimmed texts, absent when blank. */
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

/** Checks a sign-up. Returns all wrong fields, by their JSON names, and, when there are none, the form. */
export function checkSignUp(request: Given, rules: FormRules): { fields: FieldViolation[]; form?: SignUpForm } {
  const { wrong: fields, texts } = checkForm(request, signUpFields, rules)
  if (fields.length > 0) return { fields }
  const complete = texts as CompleteTexts
  const { username, nickname, email } = complete
  const form = {
    ...complete,
    usernameKey: usernameKey(username),
    nicknameKey: nicknameKey(nickname),
    password: request.password!,
    termsofusage: true as const,
    role: request.roles![0] as Role,
    emailKey: email && emailKey(email),
  }
  return { fields, form }
}

/** Checks these fields of a form: those that are absent are wrong if every user has them. Returns all wrong ones, and the texts of the others. */
export function checkForm(
  given: Given,
  fields: readonly FormField[],
  { policy, timeZone, now }: FormRules,
): { wrong: FieldViolation[]; texts: FormTexts & Pick<SignUpForm, 'securityquestion' | 'securityanswer'> } {
  const wrong: FieldViolation[] = []
  const refused = (field: FormField, fault: Fault) => void wrong.push({ field: nameOf(field), ...fault })
  const texts: { [F in TextField]?: string | undefined } = {}

  /** Returns the text of a field as it is stored; undefined when it is blank or wrong. */
  const read = (field: TextField): string | undefined => {
    const value = given[field] ?? ''
    const rule = isProfileField(field) ? profile[field] : undefined
    const { required = field === 'username', kind, check } = rule ?? {}
    const longest = rule?.longest ?? maxLengths[field === 'email' ? 'email' : 'text']
    // First, as the further checks are slow for long texts.
    if (tooLong(value, longest)) return refused(field, longerThan(longest))
    if (!isOneLine(value)) return refused(field, severalLines)
    if (nicknameKey(value) === '') return required ? refused(field, fault('MISSING', 'Fill in this field.')) : undefined
    const text = value.trim()
    // Normalization expands some characters, and keys of names must fit an index entry.
    if (tooLong(nicknameKey(text), 'text')) return refused(field, fault('TOO_LONG', 'Use fewer of these characters.'))
    // Other users see names.
    if ((field === 'username' || field === 'nickname') && invisible.test(withoutEmoji(value)))
      return refused(field, fault('FORBIDDEN_CHARACTERS', 'Leave out invisible, blank and private-use characters.'))
    if (field === 'username' && isReservedUsername(text))
      refused(field, fault('RESERVED', 'Choose another username: this one is reserved.'))
    if (field === 'email' && !isNewAddress(text))
      return refused(field, fault('MALFORMED', 'Give an e-mail address such as name@example.org.'))
    if (field === 'securityanswer' && answerKey(text) === '')
      return refused(field, fault('MALFORMED', 'Use letters or digits.'))
    const read = kind === 'day' ? readDay(text, timeZone) : text
    if (read === undefined) return refused(field, noDay)
    const problem = check?.(read, dayIn(timeZone, new Date(now())))
    return problem ? refused(field, problem) : read
  }

  for (const field of fields) {
    if (field === 'password') {
      const problem = checkPassword(given.password ?? '', texts, policy)
      if (problem) refused(field, problem)
    } else if (field === 'termsofusage') {
      if (!given.termsofusage) refused(field, fault('NOT_ACCEPTED', 'Accept the terms of usage: this must be true.'))
    } else if (field === 'roles') {
      const [role, ...others] = given.roles ?? []
      if (others.length > 0 || !roles.includes(role as Role))
        refused(field, fault(role ? 'UNKNOWN_VALUE' : 'MISSING', `Give exactly one of ${roles.join(', ')}.`))
    } else texts[field] = read(field)
  }
  return { wrong, texts }
}

function isProfileField(field: string): field is ProfileField {
  return Object.hasOwn(profile, field)
}

/** Returns the texts of a form as attributes of a new user. */
export function attributesOfForm(texts: CompleteTexts) {
  return {
    ...(attributesOf(profileFields, texts) as ProfileValues),
    username: texts.username,
    usernameKey: usernameKey(texts.username),
    nicknameKey: nicknameKey(texts.nickname),
    email: texts.email ?? null,
  }
}
