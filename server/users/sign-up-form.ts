// Validates the sign-up form, without the database: sign-up.ts checks whether names are taken.
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import type { NewUser, Profile } from '../models/user.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import type { FieldViolation } from '../requests/refusal.js'
import {
  answerKey,
  emailKey,
  isEmailAddress,
  isOneLine,
  isReservedUsername,
  nicknameKey,
  usernameKey,
} from '../rules/names.js'
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

/** A valid form: trimmed texts, absent when blank. */
export interface SignUpForm {
  readonly username: string
  /** Key under which the username is unique. */
  readonly usernameKey: string
  readonly nickname: string
  /** Key under which the nickname is unique. */
  readonly nicknameKey: string
  readonly password: string
  /** ISO 8601, yyyy-MM-dd. */
  readonly dateofborn?: string | undefined
  readonly gender?: string | undefined
  readonly state: string
  readonly city: string
  readonly institutiontype?: string | undefined
  readonly institution?: string | undefined
  readonly securityquestion?: string | undefined
  readonly securityanswer?: string | undefined
  readonly termsofusage: true
  readonly role: Role
  readonly email?: string | undefined
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
  const text = (field: TextField, required: 'required' | 'optional') => {
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

  const oneOf = (field: TextField, allowed: readonly string[]) => {
    const value = text(field, 'optional')
    if (value === undefined || allowed.includes(value)) return value
    return wrong(field, `Give one of ${allowed.join(', ')}, or leave it out.`)
  }

  const username = name('username')
  if (username && isReservedUsername(username)) wrong('username', 'Choose another username: this one is reserved.')
  const nickname = name('nickname')
  const state = text('state', 'required')
  if (state && [...state].length !== 2) wrong('state', 'Give the code of the state, exactly 2 characters.')
  const city = text('city', 'required')
  const institution = text('institution', 'optional')
  const email = text('email', 'optional')
  if (email && !isEmailAddress(email)) wrong('email', 'Give an e-mail address such as name@example.org.')

  const password = request.password ?? ''
  const problem = checkPassword(password, { username, nickname, city, institution, email }, policy)
  if (problem) wrong('password', problem)

  const gender = oneOf('gender', ['M', 'F', 'N'])
  const institutiontype = oneOf('institutiontype', ['E', 'D', 'N', 'O'])

  const day = text('dateofborn', 'optional')
  const dateofborn = day && readDateOfBirth(day, timeZone)
  if (day && !dateofborn) wrong('dateofborn', 'Give a day of the calendar as dd/MM/yyyy.')
  if (dateofborn && dateofborn > dayIn(timeZone, now)) wrong('dateofborn', 'Give a day that isn’t in the future.')
  if (dateofborn && dateofborn < `${firstYear}`) wrong('dateofborn', `Give a day after ${firstYear - 1}.`)

  const securityquestion = text('securityquestion', 'optional')
  const securityanswer = text('securityanswer', 'optional')
  if (securityanswer && answerKey(securityanswer) === '') wrong('securityanswer', 'Use letters or digits.')

  const { termsofusage } = request
  if (!termsofusage) wrong('termsofusage', 'Accept the terms of usage: this must be true.')

  const role = roles.find(each => each === request.roles[0])
  if (request.roles.length !== 1 || !role) wrong('roles', `Give exactly one of ${roles.join(', ')}.`)

  const texts = { username, nickname, dateofborn, gender, state, city, institutiontype, institution, email }
  if (fields.length > 0 || !username || !nickname || !state || !city || !role || !termsofusage) return { fields, texts }
  return {
    fields,
    texts,
    form: {
      ...texts,
      username,
      usernameKey: usernameKey(username),
      nickname,
      nicknameKey: nicknameKey(nickname),
      password,
      state,
      city,
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

/**
 * Returns the profile in a form as attributes of a user, for sign-up and for users that an administrator creates. Every
 * attribute that a form holds is named here.
 */
export function profileOf(
  form: SignUpTexts & { readonly [K in 'username' | 'nickname' | 'state' | 'city']: string },
): Pick<NewUser, Exclude<keyof Profile, 'securityQuestion' | 'termsOfUsage' | 'role'> | NameKey | 'email'> {
  return {
    username: form.username,
    usernameKey: usernameKey(form.username),
    nickname: form.nickname,
    nicknameKey: nicknameKey(form.nickname),
    email: form.email ?? null,
    dateOfBirth: form.dateofborn ?? null,
    gender: form.gender ?? null,
    state: form.state,
    city: form.city,
    institutionType: form.institutiontype ?? null,
    institution: form.institution ?? null,
  }
}

type NameKey = 'usernameKey' | 'nicknameKey'

/** The texts of a form as they would be stored; undefined where nothing was given or it is wrong. */
export type SignUpTexts = {
  readonly [K in Exclude<TextField, 'securityquestion' | 'securityanswer'>]?: string | undefined
}

type TextField =
  | 'username'
  | 'nickname'
  | 'dateofborn'
  | 'gender'
  | 'state'
  | 'city'
  | 'institutiontype'
  | 'institution'
  | 'securityquestion'
  | 'securityanswer'
  | 'email'

/**
 * Parses a date of birth, `dd/MM/yyyy` or a date or date-time of ISO 8601, and returns it as `yyyy-MM-dd`. A date-time
 * with an offset or `Z` stands for its day in the time zone, one without for its date. Undefined when the day doesn't
 * exist.
 */
export function readDateOfBirth(text: string, timeZone: string): string | undefined {
  const match =
    /^(?<day>\d\d)\/(?<month>\d\d)\/(?<year>\d{4})$/.exec(text) ??
    /^(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)(?:T(?<time>[^Z+-]+)(?<offset>.*))?$/.exec(text)
  const { year, month, day, time, offset = '' } = match?.groups ?? {}
  const iso = `${year}-${month}-${day}`
  const date = new Date(`${iso}T00:00:00Z`)
  // Date rolls the 31st of a short month over into the next month.
  if (Number.isNaN(date.getTime()) || !date.toISOString().startsWith(iso)) return undefined
  if (time === undefined) return iso
  const [sinceMidnight, utcOffset] = [readTime(time), readOffset(offset)]
  if (sinceMidnight === undefined || utcOffset === undefined) return undefined
  return offset === '' ? iso : dayIn(timeZone, new Date(date.getTime() + sinceMidnight - utcOffset))
}

/** Parses `HH:mm` or `HH:mm:ss`, with or without a fraction, as ms since midnight; undefined when invalid. */
function readTime(text: string): number | undefined {
  const match = /^([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d|60)(?:[.,]\d+)?)?$/.exec(text)
  if (!match) return undefined
  const [hours = 0, minutes = 0, seconds = 0] = match.slice(1).map(part => Number(part ?? 0))
  // A leap second belongs to the day before midnight.
  return ((hours * 60 + minutes) * 60 + Math.min(seconds, 59)) * 1000
}

/** Parses `Z`, `±HH`, `±HHmm` or `±HH:mm` as an offset from UTC in ms; 0 for an empty text, undefined when invalid. */
function readOffset(text: string): number | undefined {
  const match = /^(?:Z|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?$/.exec(text)
  if (!match) return undefined
  const [, sign, hours = 0, minutes = 0] = match
  return (sign === '-' ? -60_000 : 60_000) * (Number(hours) * 60 + Number(minutes))
}

/** Converts a day from `yyyy-MM-dd` to `dd/MM/yyyy`. */
export function formatDateOfBirth(iso: string): string {
  return iso.split('-').reverse().join('/')
}

/** Returns the day of an instant in a time zone (IANA name), as `yyyy-MM-dd`. */
export function dayIn(timeZone: string, instant: Date): string {
  const format = formats.get(timeZone) ?? new Intl.DateTimeFormat('sv-SE', { timeZone })
  formats.set(timeZone, format)
  return format.format(instant).padStart(10, '0')
}

/** By time zone: a process has one, or two. Creating one takes longer than all other checks of a form. */
const formats = new Map<string, Intl.DateTimeFormat>()
