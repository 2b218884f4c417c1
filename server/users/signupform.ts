// The sign-up form: what may be in each field. Whether names are taken, and what becomes of the form, is no concern here.
import type { SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { answerKey, emailKey, isEmailAddress, isReservedUsername, nicknameKey, usernameKey } from '../names.js'
import { checkPassword, type PasswordPolicy } from '../passwords/hash.js'
import type { FieldViolation } from '../refusal.js'

/** Longest text of a field and of its key, in characters (code points). */
const maxLength = 255

/** First year of birth that isn't taken for a slip. */
const firstYear = 1850

const roles = ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT'] as const

/** What a user may be. */
export type Role = (typeof roles)[number]

/** A form in which every field is right: texts as written but for space around them, absent when nothing was given. */
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
 * Checks a sign-up form and lists every wrong field, by its JSON name, with what to do about it. The form is there
 * when none is wrong. `today` is the last day on which one can be born (yyyy-MM-dd), see `dayInBrazil`.
 */
export function checkSignUp(
  request: Omit<SignUpRequest, '$typeName' | '$unknown'>,
  policy: PasswordPolicy,
  today: string,
): { fields: FieldViolation[]; form?: SignUpForm } {
  const fields: FieldViolation[] = []
  const wrong = (field: string, message: string) => {
    fields.push({ field, message })
    return undefined
  }

  /** The text of a field, trimmed; undefined when blank or wrong. */
  const text = (field: TextField, required: 'required' | 'optional') => {
    const value = request[field] ?? ''
    if (/[\p{Cc}\p{Cs}\p{Zl}\p{Zp}]/u.test(value)) {
      return wrong(field, 'Leave out line breaks and other control characters.')
    }
    if (nicknameKey(value) === '') return required === 'required' ? wrong(field, 'Fill in this field.') : undefined
    const trimmed = value.trim()
    if (count(trimmed) > maxLength || count(nicknameKey(trimmed)) > maxLength) {
      return wrong(field, `Use at most ${maxLength} characters.`)
    }
    return trimmed
  }

  const oneOf = (field: TextField, allowed: readonly string[]) => {
    const value = text(field, 'optional')
    if (value === undefined || allowed.includes(value)) return value
    return wrong(field, `Give one of ${allowed.join(', ')}, or leave it out.`)
  }

  const username = text('username', 'required')
  if (username && isReservedUsername(username)) wrong('username', 'Choose another username: this one is reserved.')
  const nickname = text('nickname', 'required')
  const state = text('state', 'required')
  if (state && count(state) !== 2) wrong('state', 'Give the code of the state, exactly 2 characters.')
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
  const dateofborn = day && readDateOfBirth(day)
  if (day && !dateofborn) wrong('dateofborn', 'Give a day of the calendar as dd/MM/yyyy.')
  if (dateofborn && dateofborn > today) wrong('dateofborn', 'Give a day that isn’t in the future.')
  if (dateofborn && dateofborn < `${firstYear}`) wrong('dateofborn', `Give a day after ${firstYear - 1}.`)

  const securityquestion = text('securityquestion', 'optional')
  const securityanswer = text('securityanswer', 'optional')
  if (securityanswer && answerKey(securityanswer) === '') wrong('securityanswer', 'Use letters or digits.')

  const { termsofusage } = request
  if (!termsofusage) wrong('termsofusage', 'Accept the terms of usage: this must be true.')

  const role = roles.find(each => each === request.roles[0])
  if (request.roles.length !== 1 || !role) wrong('roles', `Give exactly one of ${roles.join(', ')}.`)

  if (fields.length > 0 || !username || !nickname || !state || !city || !role || !termsofusage) return { fields }
  return {
    fields,
    form: {
      username,
      usernameKey: usernameKey(username),
      nickname,
      nicknameKey: nicknameKey(nickname),
      password,
      dateofborn,
      gender,
      state,
      city,
      institutiontype,
      institution,
      securityquestion,
      securityanswer,
      termsofusage,
      role,
      email,
      emailKey: email && emailKey(email),
    },
  }
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
 * The day that a date of birth means, as yyyy-MM-dd: written dd/MM/yyyy, or as a date or date-time of ISO 8601, whose
 * day counts as written, whatever its zone. Undefined when it is no real day.
 */
export function readDateOfBirth(text: string): string | undefined {
  const time =
    /(?:T(?:[01]\d|2[0-3]):[0-5]\d(?::(?:[0-5]\d|60)(?:[.,]\d+)?)?(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?/
  const match =
    /^(?<day>\d\d)\/(?<month>\d\d)\/(?<year>\d{4})$/.exec(text) ??
    new RegExp(`^(?<year>\\d{4})-(?<month>\\d\\d)-(?<day>\\d\\d)${time.source}$`).exec(text)
  if (!match?.groups) return undefined
  const { year, month, day } = match.groups
  const iso = `${year}-${month}-${day}`
  const date = new Date(`${iso}T00:00:00Z`)
  // The 31st of a short month would roll over into the next.
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(iso) ? iso : undefined
}

/** Writes a day given as yyyy-MM-dd as dd/MM/yyyy. */
export function formatDateOfBirth(iso: string): string {
  return iso.split('-').reverse().join('/')
}

/** The day in Brazil (America/Sao_Paulo) at a moment, as yyyy-MM-dd. */
export function dayInBrazil(moment: Date): string {
  return moment.toLocaleDateString('sv-SE', { timeZone: 'America/Sao_Paulo' })
}

function count(text: string): number {
  return [...text].length
}
