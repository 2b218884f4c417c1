// The fields of an organization, a rule for each. Its attributes, forms, records, changes, imports, exports, and the flags and
// columns of files of the command line derive from it.
import type { OrganizationForm } from '../../proto/gen/auth/v1/administration_pb.js'
import { type Fault, fault } from './fault.js'
import { isNewAddress } from './names.js'

/** First year of registration that is accepted; an earlier one is a typing error. */
const firstYear = 1500

/** A field of an organization: a text, a number above 0, or a day. */
interface FieldRule {
  /** Its name in JSON, masks and files; by default that of its attribute. */
  readonly field?: string
  /** What it is, for the help of commands. */
  readonly about: string
  /** Whether every organization has it. */
  readonly required?: true
  /** Whether it is a text that can have lines, a number, or a day (dates.ts); absent, a text of one line. */
  readonly kind?: 'lines' | 'number' | 'day'
  /** Maximum number of characters; absent, that of sizes.ts for texts. */
  readonly longest?: number
  /** Whether only imports set it, beside the form; an organization always has one. */
  readonly imported?: true
  /** Whether it is in no record that others see than administrators, but beside it. */
  readonly alone?: true
  /** Whether it is about the people who run the organization: members don’t get it in the export of their data. */
  readonly personal?: true
  /** What it is called, if others join the organization by it: then only administrators change it. */
  readonly opens?: string
  /** Returns what is wrong with a text that isn't blank, or with a day as yyyy-MM-dd, at most. */
  readonly check?: (text: string) => Fault | undefined
  /** The form in which a text is stored and compared. */
  readonly normalize?: (text: string) => string
}

/**
 * Returns an INEP code without separators between digits: white space, dashes, slashes and dots, but for the decimals that a
 * spreadsheet adds.
 */
export function inepCodeOf(text: string): string {
  return text
    .normalize('NFKC')
    .trim()
    .replace(/(?<=\d)(?:[\s\p{Pd}/_]|\.(?!0{1,2}$))+(?=\d)/gu, '')
}

/** By attribute, which a form has, too, unless it is `imported`: without a rule, a field of the form is a compile error. */
const rules = {
  name: { about: 'name; need not be unique', required: true },
  email: {
    about: 'e-mail address that activation keys are sent to (RFC 5321)',
    personal: true,
    opens: 'e-mail address',
    check: text => (isNewAddress(text) ? undefined : fault('MALFORMED', 'Not a valid e-mail address.')),
  },
  address: { about: 'postal address', kind: 'lines' },
  inepCode: {
    field: 'inep_code',
    about: 'INEP code of a school; unique, without separators between digits',
    opens: 'INEP code',
    normalize: inepCodeOf,
  },
  login: { about: 'login name in its own systems', personal: true },
  phone: { about: 'telephone number', personal: true },
  responsible: { about: 'person responsible', personal: true },
  type: { about: 'kind, such as E school, D civil defense, N non-governmental, O others' },
  website: { about: 'URL of the website' },
  creationDate: {
    field: 'creation_date',
    about: 'day of registration',
    kind: 'day',
    imported: true,
    check: day => (day < `${firstYear}` ? fault('OUT_OF_RANGE', `Give a day after ${firstYear - 1}.`) : undefined),
  },
} as const satisfies Record<
  Exclude<keyof OrganizationForm, '$typeName' | '$unknown' | 'mayIssueKeys'> | 'creationDate',
  FieldRule
>

type Rules = typeof rules

/** An attribute of an organization. */
export type OrganizationAttribute = keyof Rules

/** An attribute without which no organization is added. */
export type RequiredAttribute = {
  [A in OrganizationAttribute]: Rules[A] extends { required: true } ? A : never
}[OrganizationAttribute]

/** The values of an organization by attribute: null where an optional field is empty. */
export type OrganizationValues = {
  readonly [A in OrganizationAttribute]: Rules[A] extends { required: true } | { imported: true }
    ? string
    : (Rules[A] extends { kind: 'number' } ? number : string) | null
}

/** A field of a form. */
export interface OrganizationField extends FieldRule {
  readonly field: string
  readonly attribute: OrganizationAttribute
}

/** All fields. */
export const organizationFields: readonly OrganizationField[] = Object.entries<FieldRule>(rules).map(
  ([attribute, rule]) => ({
    ...rule,
    field: rule.field ?? attribute,
    attribute: attribute as OrganizationAttribute,
  }),
)

/** Those of a form. */
export const formFields = organizationFields.filter(({ imported }) => !imported)
