// Organizations: their form, and how they are added and changed.
import type { OrganizationForm } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Transaction } from '../database/database.js'
import type { NotifiedChange } from '../models/email.js'
import type { Models } from '../models/index.js'
import type { OrganizationDetails, OrganizationRow } from '../models/organization.js'
import type { FieldViolation } from '../requests/refusal.js'
import { noDay, readDay } from '../rules/dates.js'
import { fault, longerThan, severalLines } from '../rules/fault.js'
import { isOneLine, nicknameKey } from '../rules/names.js'
import { type OrganizationField, type OrganizationValues, organizationFields } from '../rules/organization.js'
import { maxLengths, tooLong } from '../rules/sizes.js'

/** Returns the fields of a form as attributes, null where they are cleared, and every wrong one. */
export function readOrganization(
  form: Partial<OrganizationForm> & { readonly creationDate?: string | undefined },
  fields: readonly OrganizationField[],
  timeZone: string,
): { wrong: FieldViolation[]; details: Partial<OrganizationValues> } {
  const wrong: FieldViolation[] = []
  const details = fields.map(
    ({ field, attribute, required, imported, kind, longest = maxLengths.text, check, normalize = String }) => {
      const given: string | number = form[attribute] ?? ''
      if (typeof given === 'number') {
        if (given < 0) wrong.push({ field, reason: 'OUT_OF_RANGE', message: 'Use a number above 0, or 0 for none.' })
        return [attribute, given || null]
      }
      const lines = kind === 'lines'
      const written = (lines ? given.replace(/\r\n?/g, '\n') : given).trim()
      const day = kind === 'day' ? readDay(written, timeZone) : undefined
      const text = day ?? written
      const problem = tooLong(text, longest)
        ? longerThan(longest)
        : !isOneLine(lines ? text.replaceAll('\n', ' ') : text)
          ? severalLines
          : (required || imported) && nicknameKey(text) === ''
            ? fault('MISSING', 'Required.')
            : text === ''
              ? undefined
              : kind === 'day' && day === undefined
                ? noDay
                : check?.(text)
      if (problem) wrong.push({ field, ...problem })
      return [attribute, (problem ? text : normalize(text)) || null]
    },
  )
  return { wrong, details: Object.fromEntries(details) }
}

/** Creates the registrar of the organizations of a database. */
export function createOrganizationRegistrar({ organizations, emails }: Models) {
  return {
    add: organizations.add,

    /** Changes an organization, and notifies its former e-mail address if it gets another one. */
    async change(
      row: OrganizationRow,
      details: OrganizationDetails,
      by: NotifiedChange,
      t: Transaction,
    ): Promise<void> {
      await organizations.edit(row.id, details, t)
      if (changedDetails(row, details).includes('email')) await emails.notifyOrganization(row, by, t)
    },

    /** Returns why others prevent these details of an organization. Otherwise nothing does until the transaction ends. */
    async problemOf(
      { inepCode }: OrganizationDetails,
      id: number | undefined,
      t: Transaction,
    ): Promise<FieldViolation | undefined> {
      const other = inepCode ? await organizations.withInepCode(inepCode, id, t) : undefined
      return other === undefined
        ? undefined
        : { field: 'inep_code', reason: 'TAKEN', message: `Organization #${other} already has this INEP code.` }
    },
  }
}

/** What can be set of an organization, by the name of the field. */
const settable: readonly (readonly [field: string, attribute: keyof OrganizationDetails])[] = [
  ...organizationFields.map(({ field, attribute }) => [field, attribute] as const),
  ['active', 'active'],
  ['may_issue_keys', 'mayIssueKeys'],
]

/** Returns the names of the given details that differ from an organization’s. */
export function changedDetails(row: OrganizationRow, details: OrganizationDetails): string[] {
  return settable.flatMap(([field, attribute]) =>
    details[attribute] === undefined || details[attribute] === row[attribute] ? [] : [field],
  )
}

/** Returns all details of an organization. */
export function detailsOf(row: OrganizationRow): unknown[] {
  return settable.map(([, attribute]) => row[attribute])
}
