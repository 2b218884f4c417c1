// The columns of files of organizations and users, by name: how a cell becomes a field of a row, and back. This folder owns the
// files of lists: their columns (here), reading (source.ts) and writing (sink.ts). What a row may be, the server judges.
import { create } from '@bufbuild/protobuf'
import {
  type AdministeredUser,
  type ImportedOrganization,
  ImportedOrganizationSchema,
  type ImportedUser,
  ImportedUserSchema,
  ImportProblemSchema,
  type Organization,
  OrganizationFormSchema,
  UserFormSchema,
} from '../../proto/gen/auth/v1/administration_pb.js'
import { organizationFields } from '../../server/rules/organization.js'
import { profile, profileFields } from '../../server/rules/profile.js'
import { isSpreadsheetError, readCell } from './formula-guard.js'
import type { CellValue } from './source.js'

/** How the cells of a column are read. */
type Kind = 'text' | 'lines' | 'secret' | 'answers' | 'day' | 'number' | 'flag'

/** A column: the kind of its cells, and the field of a row or of the form in it. */
interface Column {
  readonly kind: Kind
  readonly field: string
  readonly inForm?: true
  /** Only with `--keep-ids`: what moves from other systems bring. */
  readonly moved?: true
}

const text = (field: string) => ({ kind: 'text', field, inForm: true }) as const
const number = (field: string) => ({ kind: 'number', field }) as const
const flag = (field: string) => ({ kind: 'flag', field }) as const
const secret = (field: string) => ({ kind: 'secret', field }) as const

const { name, address, creation_date, email, ...details } = Object.fromEntries(
  organizationFields.map(({ field, attribute, kind = 'text', imported }) => [
    field,
    { kind: kind as Kind, field: attribute, ...(!imported && { inForm: true }) } satisfies Column,
  ]),
) as Record<string, Column>

/** The columns of files of organizations, in the order of exports. */
export const organizationColumns: Readonly<Record<string, Column>> = {
  id: number('id'),
  name: name!,
  active: flag('active'),
  address: address!,
  creation_date: creation_date!,
  ...details,
  email: email!,
  activation_key: { ...secret('activationKey'), moved: true },
}

/** The columns of files of users. */
export const userColumns: Readonly<Record<string, Column>> = {
  id: number('id'),
  username: text('username'),
  ...Object.fromEntries(
    profileFields.map(key => {
      const { field, kind = 'text' } = profile[key]
      return [field, { ...text(key), kind } as const]
    }),
  ),
  email: text('email'),
  termsofusage: flag('termsofusage'),
  role: text('role'),
  active: flag('active'),
  organization_id: number('organizationId'),
  organization_inep_code: { kind: 'text', field: 'organizationInepCode' },
  password: { ...secret('password'), inForm: true },
  password_hash: secret('passwordHash'),
  provider_key: { ...secret('providerKey'), moved: true },
  security_answers: { kind: 'answers', field: 'securityAnswers', moved: true },
}

/** Those of the columns that an import reads. */
export function columnsToRead(columns: Readonly<Record<string, Column>>, { keepIds }: { readonly keepIds: boolean }) {
  return Object.fromEntries(Object.entries(columns).filter(([, { moved }]) => keepIds || !moved))
}

/** The cells of a row by column; a missing column has none. */
export type Cells = Readonly<Record<string, CellValue>>

/** How the rows of a file are read. */
export interface Reading {
  /** Whether spreadsheets may have written the file: then apostrophes before formulas, and formulas that yield a text, are undone. */
  readonly isCsv: boolean
  readonly keepIds: boolean
}

/** Reads the cells of a row, with the problems of those that can't be read. */
function readCells(cells: Cells, all: Readonly<Record<string, Column>>, { isCsv, keepIds }: Reading) {
  const row: Record<string, unknown> = {}
  const form: Record<string, unknown> = {}
  const problems: { field: string; message: string }[] = []
  for (const [name, { kind, field, inForm }] of Object.entries(columnsToRead(all, { keepIds }))) {
    const given = cells[name]
    if (given === undefined) continue
    // A password is what the file has.
    const cell = isCsv && kind !== 'secret' && kind !== 'answers' && typeof given === 'string' ? readCell(given) : given
    const isError = typeof cell === 'string' && isSpreadsheetError(cell)
    const value = isError ? new Error('A spreadsheet shows an error here: correct the cell.') : readers[kind](cell)
    if (value instanceof Error) problems.push({ field: name, message: value.message })
    else if (value !== undefined) {
      if (inForm) form[field] = value
      else row[field] = value
    } else if (inForm) {
      // Without a number.
      form[field] = 0
    }
  }
  return { row, form, problems: problems.map(problem => create(ImportProblemSchema, problem)) }
}

/** How each kind of cell is read: undefined if the field is left as it is, an error if the cell makes no sense. */
const readers: Readonly<Record<Kind, (cell: CellValue) => unknown>> = {
  text: cell =>
    typeof cell === 'boolean'
      ? new Error('Use a text.')
      : String(cell ?? '')
          .trim()
          .replace(/\s*(?:\r\n?|\n)\s*/g, ' '),
  lines: cell => (typeof cell === 'boolean' ? new Error('Use a text.') : String(cell ?? '')),
  secret: cell => (typeof cell === 'string' || cell === null ? (cell ?? '') : new Error('Use a text.')),
  answers(cell) {
    if (cell === null || cell === '') return undefined
    try {
      return (JSON.parse(String(cell)) as unknown[]).map(each => {
        const { question, answer } = each as Record<string, unknown>
        if (typeof question !== 'string' || typeof answer !== 'string') throw new TypeError()
        return { question, answer }
      })
    } catch {
      // Without the cause, which quotes the cell.
      return new Error('Use JSON such as [{"question":"…","answer":"…"}].')
    }
  },
  day(cell) {
    if (typeof cell !== 'string' && cell !== null) return new Error('Use yyyy-mm-dd or dd/MM/yyyy.')
    return (cell ?? '')
      .trim()
      .replace(/^(\d\d)\/(\d\d)\/(\d{4})(?=[T ]+\d)/, '$3-$2-$1')
      .replace(/^(\d{4}-\d\d-\d\d)[T ]+(?:(\d\d:)|(\d:))/, (_, day, hour, digit) => `${day}T${hour ?? `0${digit}`}`)
  },
  number(cell) {
    const digits = String(cell ?? '').trim()
    if (digits === '') return undefined
    return /^\d{1,10}$/.test(digits) && Number(digits) < 2 ** 31 ? Number(digits) : new Error('Use a number.')
  },
  flag(cell) {
    const word = String(cell ?? '')
      .trim()
      .toLowerCase()
      .normalize()
    if (word === '') return undefined
    if (words.true.includes(word)) return true
    return words.false.includes(word) ? false : new Error('Use True or False.')
  },
}

/** Booleans of databases, and of spreadsheets in English and Portuguese. */
const words: Readonly<Record<'true' | 'false', readonly string[]>> = {
  true: ['true', 't', '1', 'yes', 'y', 'verdadeiro', 'v', 'sim', 's'],
  false: ['false', 'f', '0', 'no', 'n', 'falso', 'não', 'nao'],
}

/** Reads the id of a row; undefined if it has none that can be read. */
export function idOf({ id }: Cells, { isCsv }: Pick<Reading, 'isCsv'>): number | undefined {
  const value = readers.number(isCsv && typeof id === 'string' ? readCell(id) : id)
  return typeof value === 'number' ? value : undefined
}

/** Makes a row of a file of organizations. */
export function toOrganizationRow(cells: Cells, how: Reading): ImportedOrganization {
  const { row, form, problems } = readCells(cells, organizationColumns, how)
  // An organization always has these.
  for (const { attribute, imported } of organizationFields) if (imported && row[attribute] === '') delete row[attribute]
  return create(ImportedOrganizationSchema, { ...row, form: create(OrganizationFormSchema, form), problems })
}

/** Makes a row of a file of users. */
export function toUserRow(cells: Cells, how: Reading): ImportedUser {
  const { row, form, problems } = readCells(cells, userColumns, how)
  // Without a number the column clears the organization.
  if (cells.organization_id !== undefined && row.organizationId === undefined) row.organizationId = 0
  return create(ImportedUserSchema, { ...row, form: create(UserFormSchema, form), problems })
}

/** The cells of an organization. */
export function organizationCells({ record, ...more }: Organization, activationKey?: string): Cells {
  const { id, active } = record!
  const values: Readonly<Record<string, unknown>> = { ...more, ...record! }
  return {
    ...{ id, active: active === 'true', activation_key: activationKey },
    ...Object.fromEntries(organizationFields.map(({ field, attribute }) => [field, values[attribute] as CellValue])),
  }
}

/** The cells of a user. */
export function userCells(
  { record, email }: AdministeredUser,
  secrets?: { readonly passwordHash?: string; readonly providerKey?: string },
): Cells {
  const { id, username, termsofusage, role, active, partnerOrganization } = record!
  return {
    ...{ id, username, email, termsofusage, role, active: active === 1, organization_id: partnerOrganization?.id },
    ...Object.fromEntries(profileFields.map(key => [profile[key].field, record![key]])),
    ...{ password_hash: secrets?.passwordHash, provider_key: secrets?.providerKey },
  }
}

/** The columns of an export; secrets at the end. */
export const exportColumns = {
  organizations: {
    plain: Object.keys(organizationColumns).filter(name => name !== 'activation_key'),
    secret: ['activation_key'],
  },
  users: {
    plain: Object.keys(userColumns).filter(
      name => !/^(organization_inep_code|password|password_hash|provider_key|security_answers)$/.test(name),
    ),
    secret: ['password_hash', 'provider_key'],
  },
} as const
