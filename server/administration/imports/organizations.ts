// The rows of a file of organizations.

import type { ImportedOrganization } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Transaction } from '../../database/database.js'
import type { NotifiedChange } from '../../models/email.js'
import type { Models } from '../../models/index.js'
import type { NewOrganization, OrganizationDetails, OrganizationRow } from '../../models/organization.js'
import type { Settings } from '../../process/settings.js'
import type { Registration } from '../../registration/index.js'
import { changedDetails, detailsOf, readOrganization } from '../../registration/organizations.js'
import { nicknameKey, typedUuid } from '../../rules/names.js'
import { type OrganizationField, organizationFields } from '../../rules/organization.js'
import { isDamagedNumber } from '../../rules/telephone.js'
import {
  type Batch,
  type Decision,
  damaged,
  differs,
  digestOf,
  type Judged,
  judgedOf,
  keyProblems,
  type RowProblem,
  type Rows,
  readInSlices,
  rejected,
  rejectionOf,
  withheld,
} from './rows.js'

/** A row, read by the rules of its fields. */
interface Read {
  readonly row: ImportedOrganization
  readonly index: number
  readonly wrong: readonly RowProblem[]
  readonly details: OrganizationDetails
  /** The activation key that it brings; empty for none. */
  readonly key: string
  /** The INEP code by which the row means an organization. */
  readonly code: string | null | undefined
}

/** A row to apply. */
interface PlannedOrganization {
  readonly found: OrganizationRow | undefined
  readonly details: OrganizationDetails
  /** Of a new one. */
  readonly id?: number | undefined
  readonly activationKey?: string | undefined
}

/** Creates the rows of organizations. */
export function createOrganizationRows(
  { organizations, activationKeys }: Models,
  { organizationRegistrar: registrar }: Registration,
  settings: Pick<Settings, 'timeZone'>,
): Rows<ImportedOrganization> {
  async function decide(
    { row, details, key }: Read,
    wrong: readonly RowProblem[],
    found: OrganizationRow | undefined,
    { of, t }: Batch,
  ): Promise<Decision<PlannedOrganization>> {
    const isMissing = !found && details.name === undefined
    const { inepCode } = details
    const isDamaged = inepCode && inepCode !== found?.inepCode && isDamagedNumber(nicknameKey(row.form?.inepCode ?? ''))
    const problems = [
      ...wrong,
      ...(isMissing ? [{ field: 'name', message: 'Required.' }] : []),
      ...(isDamaged ? [damaged('inep_code', 'INEP code')] : []),
    ]
    if (problems.length > 0) return rejected('INVALID_ARGUMENT', ...problems)
    const taken = await registrar.problemOf(details, found?.id, t)
    const changed = found ? changedDetails(found, details) : []
    const opening = (field: OrganizationField) => field.opens && changed.includes(field.field)
    const held = organizationFields.filter(field => opening(field) && !of.changeAccounts.includes(field.field))
    const refused = of.keepIds
      ? []
      : held.map(({ field, attribute }) => withheld(field, field, 'organization', details[attribute]))
    const holder = (await activationKeys.holders(key === '' ? [] : [key], t)).get(key)
    const isNewKey = key !== '' && holder !== `organization:${found?.id}`
    const wrongKey = isNewKey ? keyProblems('activation_key', key, of, holder) : []
    const all = [...(taken ? [taken] : []), ...refused, ...wrongKey]
    if (all.length > 0) return rejected('INVALID_ARGUMENT', ...all)
    if (!found) return { entry: { found, details, ...(row.id && { id: row.id }), ...(key && { activationKey: key }) } }
    if (isNewKey) changed.push('activation_key')
    if (changed.length === 0) return { kind: 'unchanged' }
    if (of.keepIds) return differs(found.id, 'organization', changed)
    return { entry: { found, details }, fields: changed }
  }

  function read(row: ImportedOrganization, index: number): Read {
    const form = { ...row.form, creationDate: row.creationDate }
    const given = organizationFields.filter(({ attribute }) => form[attribute] !== undefined)
    const { wrong, details } = readOrganization(form, given, settings.timeZone)
    const hasCode = row.id === undefined && wrong.every(({ field }) => field !== 'inep_code')
    const code = hasCode ? details.inepCode : undefined
    const key = typedUuid(row.activationKey ?? '')
    return { row, index, wrong, code, key, details: { ...details, active: row.active } }
  }

  async function applyRow(read: Read, batch: Batch): Promise<Judged> {
    const { row, index, code } = read
    const { t, by } = batch
    // The INEP code stays free, or its own, until the transaction ends.
    const wanted = row.id ?? (code ? await organizations.withInepCode(code, undefined, t) : undefined)
    const found = wanted === undefined ? undefined : await organizations.lock(wanted, t)
    // The present address stays right, whatever a new one must be.
    const wrong = read.wrong.filter(({ field }) => field !== 'email' || read.details.email !== found?.email)
    // After the lock, behind which the record may have been erased.
    const free = await batch.freeIds(row.id === undefined ? [] : [row.id])
    const names = namesOf(row.id, code)
    await batch.touched.read(names)
    const meaning = {
      ...({ what: 'organization', row, index, isWrong: wrong.length > 0, found, free } as const),
      repeated: batch.touched.problemsOf(row, index, names, { key: 'inep_code', what: 'organization' }),
      seen: digestOf(found && detailsOf(found)),
    }
    const decision = rejectionOf(meaning, batch) ?? (await decide(read, wrong, found, batch))
    const applied = 'entry' in decision ? await apply(decision.entry, by, t) : undefined
    const after = [...namesOf(applied, read.details.inepCode), ...namesOf(undefined, found?.inepCode)]
    return judgedOf(meaning, batch, decision, applied, [...names, ...after])
  }

  async function apply(
    { found, details, ...more }: PlannedOrganization,
    by: NotifiedChange,
    t: Transaction,
  ): Promise<number> {
    if (found) await registrar.change(found, details, by, t)
    return found?.id ?? (await registrar.add({ ...details, ...more } as NewOrganization, t)).id
  }

  return async rows => {
    const reads = await readInSlices(rows, read)
    return {
      hash: async () => new Map(),
      async apply(batch) {
        const judged: Judged[] = []
        // One by one: a row can take the INEP code that the one before gives up.
        for (const each of reads) judged.push(await applyRow(each, batch))
        return judged
      },
    }
  }
}

/** The names of an organization among touched records. */
function namesOf(id: number | undefined, code: string | null | undefined): string[] {
  return [...(id === undefined ? [] : [`#${id}`]), ...(code ? [`inep ${code}`] : [])]
}
