// The rows of a file of organizations.
import type { ImportedOrganization } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Transaction } from '../../database/connection.js'
import type { Emails } from '../../models/email.js'
import type { OrganizationRow, Organizations } from '../../models/organization.js'
import type { Settings } from '../../process/settings.js'
import { changeableAccounts } from '../../rules/changeable-accounts.js'
import { readDateOfBirth } from '../../rules/dates.js'
import { nicknameKey } from '../../rules/names.js'
import { organizationAttributes, organizationFields, readOrganization } from '../organization-form.js'
import {
  type Batch,
  checkRowId,
  differs,
  digestOf,
  type Judged,
  type Outcome,
  type Problem,
  type Rows,
  rejected,
  stale,
  withheld,
} from './rows.js'

/** First date of registration that is accepted; an earlier one is a typing error. */
const firstDate = '1500'

/** Creates the rows of organizations. */
export function createOrganizationRows({
  organizations,
  emails,
  settings,
}: {
  organizations: Organizations
  emails: Pick<Emails, 'notifyOrganization'>
  settings: Pick<Settings, 'timeZone'>
}): Rows<ImportedOrganization> {
  /** Locks the organization that a row means. Its INEP code stays free, or its own, until the transaction ends. */
  async function find({ id, form }: ImportedOrganization, t: Transaction): Promise<OrganizationRow | undefined> {
    if (id !== undefined) return organizations.lock(id, t)
    const code = codeOf(form)
    const known = code ? await organizations.withInepCode(code, undefined, t) : undefined
    return known === undefined ? undefined : organizations.lock(known, t)
  }

  /** Applies a row, unless its own errors or `refused` reject it. */
  async function apply(
    row: ImportedOrganization,
    found: OrganizationRow | undefined,
    refused: Outcome | undefined,
    { t, of, by, free }: Batch & { readonly free: ReadonlySet<number> },
  ): Promise<Outcome> {
    const { form } = row
    const wrongId = checkRowId(row.id, found, 'organization', { of, free })
    if (wrongId) return wrongId
    const given = organizationFields.filter(field => form?.[organizationAttributes[field]] !== undefined)
    const fields = found ? given : [...new Set(['name' as const, ...given])]
    const { wrong, details } = readOrganization(form ?? {}, fields)
    const creationDate = row.creationDate ? readDateOfBirth(row.creationDate, settings.timeZone) : undefined
    if (row.creationDate !== undefined && (!creationDate || creationDate < firstDate))
      wrong.push({ field: 'creation_date', message: 'Use yyyy-MM-dd or dd/MM/yyyy.' })
    if (wrong.length > 0) return rejected('INVALID_ARGUMENT', ...wrong)
    if (refused) return refused
    const { inepCode, name } = details
    const other = inepCode ? await organizations.withInepCode(inepCode, found?.id, t) : undefined
    if (other !== undefined) wrong.push(taken(other))
    for (const field of changeableAccounts.organizations) {
      const attribute = organizationAttributes[field]
      const isChanged = found && !of.keepIds && given.includes(field) && details[attribute] !== found[attribute]
      if (isChanged && !of.changeAccounts.includes(field)) wrong.push(withheld(field, field, 'organization'))
    }
    if (wrong.length > 0) return rejected('INVALID_ARGUMENT', ...wrong)

    const all = {
      ...details,
      ...(creationDate && { creationDate }),
      ...(row.active !== undefined && { active: row.active }),
      ...(name && { nameKey: nicknameKey(name) }),
    }
    if (!found) {
      const own = { ...(row.id !== undefined && { id: row.id }), name: name!, nameKey: nicknameKey(name!) }
      const { id } = await organizations.add({ ...all, ...own }, t)
      return { kind: 'created', id }
    }
    const changed = [
      ...given.filter(field => details[organizationAttributes[field]] !== found[organizationAttributes[field]]),
      ...(creationDate && creationDate !== found.creationDate ? ['creation_date'] : []),
      ...(row.active !== undefined && row.active !== found.active ? ['active'] : []),
    ]
    if (changed.length === 0) return { kind: 'unchanged' }
    if (of.keepIds) return differs(found.id, 'organization', changed)
    await organizations.edit(found.id, all, t)
    if (changed.includes('email')) await emails.notifyOrganization(found, by, t)
    return { kind: 'updated', id: found.id, fields: changed }
  }

  return async rows => ({
    hash: async () => new Map(),
    async apply(batch: Batch) {
      const { t, seen: before, touched } = batch
      const judged: Judged[] = []
      const free = await batch.freeIds(rows.flatMap(({ id }) => id ?? []))
      await touched.read(rows.flatMap(({ id, form }) => namesOf(id, id === undefined && codeOf(form))))
      for (const [index, row] of rows.entries()) {
        const { id, form, problems } = row
        const found = await find(row, t)
        const seen = digestOf(found && seenOf(found))
        const isStale = before && !before[index]!.equals(seen)
        const code = codeOf(form)
        const field = id === undefined ? 'inep_code' : 'id'
        const names = namesOf(id, id === undefined && code)
        const refused =
          touched.reject(row, index, names, { field, what: 'organization' }) ?? (isStale ? stale : undefined)
        const outcome =
          problems.length > 0
            ? rejected('INVALID_ARGUMENT', ...problems)
            : await apply(row, found, refused, { ...batch, free })
        if (outcome.kind === 'created' || outcome.kind === 'updated')
          touched.add(row, index, [...namesOf(outcome.id, code), ...namesOf(undefined, found?.inepCode)])
        judged.push({ seen, outcome })
      }
      return judged
    },
  })
}

/** The INEP code of a row. */
function codeOf(form: ImportedOrganization['form']): string | null | undefined {
  const { wrong, details } = readOrganization(form ?? {}, ['inep_code'])
  return wrong.length === 0 ? details.inepCode : undefined
}

/** The names of an organization among touched records. */
function namesOf(id: number | undefined, code: string | null | undefined | false): string[] {
  return [...(id === undefined ? [] : [`#${id}`]), ...(code ? [`inep ${code}`] : [])]
}

function taken(other: number): Problem {
  return { field: 'inep_code', message: `Organization #${other} already has this INEP code.` }
}

/** What a change of an organization changes. */
function seenOf(row: OrganizationRow): unknown[] {
  return [row.active, row.creationDate, ...organizationFields.map(field => row[organizationAttributes[field]])]
}
