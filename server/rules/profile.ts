// The profile of a user, a rule for each field. Sign-up, records, changes, exports, imports, and the flags and columns of files of
// the command line derive from it. Messages and attributes are checked against it.
import { type UserForm, UserFormSchema } from '../../proto/gen/auth/v1/administration_pb.js'
import type { User } from '../../proto/gen/auth/v1/records_pb.js'
import type { Profile, SignUpRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { type Fault, fault } from './fault.js'

/** First year of birth that is accepted; an earlier one is a typing error. */
const firstYearOfBirth = 1850

/** A field of a profile: a text of one line, or a day. */
interface FieldRule<A extends string> {
  /** The name of its attribute; the column has the same name in snake case. */
  readonly attribute: A
  /** What it is, for the help of commands. */
  readonly about: string
  /** Whether every user has it. */
  readonly required?: true
  /** Whether it is a day (dates.ts); absent, a text. */
  readonly kind?: 'day'
  /** Maximum number of characters; absent, that of sizes.ts for texts. */
  readonly longest?: number
  /** Returns what is wrong with a text that isn't blank, or with a day as yyyy-MM-dd, at most. */
  readonly check?: (text: string, today: string) => Fault | undefined
}

/** Fields of messages that aren't of the profile. */
type OtherField =
  | ('$typeName' | '$unknown' | 'id' | 'username' | 'email' | 'password' | 'role' | 'roles' | 'active' | 'termsofusage')
  | ('securityquestion' | 'securityanswer' | 'partnerOrganization' | 'providerActivationKey' | 'stay')

/** A field that at least one of the messages has: without a rule it is a compile error. */
type AnyField = Exclude<keyof User | keyof SignUpRequest | keyof Profile | keyof UserForm, OtherField>

const oneOf =
  (...allowed: readonly string[]) =>
  (text: string) =>
    allowed.includes(text)
      ? undefined
      : fault('UNKNOWN_VALUE', `Leave it empty, or use ${allowed.join(', ').replace(/, (\S+)$/, ' or $1')}.`)

const rules = {
  nickname: { attribute: 'nickname', about: 'display name; by default the username of a new user', required: true },
  dateofborn: {
    attribute: 'dateOfBirth',
    about: 'date of birth, dd/MM/yyyy',
    kind: 'day',
    check(day, today) {
      if (day > today) return fault('OUT_OF_RANGE', 'Give a day that isn’t in the future.')
      return day < `${firstYearOfBirth}`
        ? fault('OUT_OF_RANGE', `Give a day after ${firstYearOfBirth - 1}.`)
        : undefined
    },
  },
  gender: { attribute: 'gender', about: 'gender: M, F or N (not informed)', check: oneOf('M', 'F', 'N') },
  state: {
    attribute: 'state',
    about: 'code of the federative unit, such as SP',
    required: true,
    check: text =>
      [...text].length === 2 ? undefined : fault('MALFORMED', 'Give the code of the state, exactly 2 characters.'),
  },
  city: { attribute: 'city', about: 'city or town', required: true },
  institutiontype: {
    attribute: 'institutionType',
    about: 'type of the institution: E school, D civil defense, N non-governmental, O others',
    check: oneOf('E', 'D', 'N', 'O'),
  },
  institution: { attribute: 'institution', about: 'name of the institution' },
} as const satisfies Record<AnyField, FieldRule<string>>

type Rules = typeof rules

/** A field, by its name in messages of this language and in JSON. */
export type ProfileField = keyof Rules

/** A field that every user has. */
export type RequiredField = { [F in ProfileField]: Rules[F] extends { required: true } ? F : never }[ProfileField]

/** The values of a profile by attribute: null where an optional field is empty. */
export type ProfileValues = {
  readonly [F in ProfileField as Rules[F]['attribute']]: F extends RequiredField ? string : string | null
}

/** A rule, with the name of its field in protocol buffers, masks, refusals and files, as of `preferred_language`. */
export interface ProfileRule extends FieldRule<keyof ProfileValues> {
  readonly field: string
}

/** The rules by field. */
export const profile = Object.fromEntries(
  Object.entries(rules).map(([key, rule]) => [key, { ...rule, field: UserFormSchema.field[key as ProfileField].name }]),
) as unknown as Readonly<Record<ProfileField, ProfileRule>>

/** All fields. */
export const profileFields = Object.keys(rules) as ProfileField[]

/** The fields that every user has. */
export const requiredFields = profileFields.filter(field => profile[field].required) as RequiredField[]

/** The other fields. */
export const optionalFields = profileFields.filter(field => !profile[field].required)

/** Returns the texts of these fields by attribute. */
export function attributesOf(
  fields: readonly ProfileField[],
  texts: { readonly [F in ProfileField]?: string | undefined },
): Partial<ProfileValues> {
  return Object.fromEntries(fields.map(field => [profile[field].attribute, texts[field] ?? null]))
}
