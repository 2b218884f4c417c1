// The rows of imports of files: each batch is one transaction with the counts of its import.
import { setTimeout as sleep } from 'node:timers/promises'
import { create, fromBinary, toBinary } from '@bufbuild/protobuf'
import {
  type ImportBatchRequest,
  ImportBatchRequestSchema,
  ImportBatchResponseSchema,
  type ImportedOrganization,
  type ImportedUser,
  type RejectedRow,
  RejectedRowSchema,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../../access/administrator.js'
import type { AdministrationRpcs, Change } from '../../calls/context.js'
import type { DataKeys } from '../../models/data-key.js'
import type { Imports, Outcomes, StoredImport } from '../../models/import.js'
import type { Pool } from '../../passwords/pool.js'
import type { Locale } from '../../requests/locale.js'
import { refuse } from '../../requests/refusal.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { nameImported } from '../../rules/id-ranges.js'
import { changeBy } from '../security-notices.js'
import { checkId, checkStarter, missing, toImport } from './imports.js'
import { type Batch, createTouched, type Judged, type ReadRows, type RowProblem, type Rows } from './rows.js'

/** Maximum rows of a batch. */
const maxBatch = 250

/** Maximum rows of an import that is all or nothing, which are applied in one transaction. */
const maxAtOnce = 10_000

/** Milliseconds: the maximum that a batch waits while passwords are hashed, and between two checks. */
const yieldToSignIns = { max: 2_000, interval: 20 }

interface Deps {
  readonly imports: Imports
  readonly pool: Pick<Pool, 'stats'>
  readonly dataKeys: Pick<DataKeys, 'seal' | 'open'>
  readonly settings: { readonly mailLocale: Locale }
  readonly rowsOf: {
    readonly organizations: Rows<ImportedOrganization>
    readonly users: Rows<ImportedUser>
  }
}

/** The `use` under which staged rows are sealed: they hold hashes of passwords. */
const stagedUse = 'import-rows'

/** Validates the next rows of an import, and applies those that aren't rejected. */
export function importBatch(deps: Deps): AdministrationRpcs['importBatch'] {
  const { imports } = deps
  return async (request, { call, administrator, transact }) => {
    const id = checkId(request.id)
    const { firstRow } = request
    const found = (await imports.find(id)) ?? missing(id)
    checkStarter(found, administrator)
    const rows = rowsIn(found, request, deps)
    const wait = () => waitWhileHashing(deps.pool)
    await (call.turn?.pause(wait) ?? wait())
    // The rows of a repeated batch aren't needed.
    const given = found.nextRow > firstRow ? undefined : await rows.read()
    const hashes = (await given?.hash(found)) ?? new Map<number, string>()
    return transact(async ({ t, record }) => {
      const of = (await imports.lock(id, t)) ?? missing(id)
      checkStarter(of, administrator)
      const before = of.nextRow > firstRow ? await imports.findBatch(id, firstRow, t) : undefined
      if (before?.rowCount === rows.count)
        return { ...fromBinary(ImportBatchResponseSchema, before.answer), import: toImport(of) }
      if (of.state !== 'running') refuse(Reason.WRONG_STATE, { text: `Import ${id} is ${of.state}: start a new one.` })
      if (of.nextRow !== firstRow || !given)
        refuse(Reason.WRONG_STATE, {
          text: `Import ${id} continues with row ${of.nextRow}, not with row ${firstRow}.`,
        })
      if (of.allOrNothing && firstRow + rows.count > maxAtOnce)
        wrongField(
          'first_row',
          'OUT_OF_RANGE',
          `An all-or-nothing import has at most ${maxAtOnce} rows: split the file, or start it without all_or_nothing.`,
        )
      const batch = { of, firstRow, rowCount: rows.count, given, hashes, keeps: !of.dryRun && !of.allOrNothing }
      const judged = await judge(deps, batch, administrator, { t, record })
      const outcomes = count(judged)
      const answer = create(ImportBatchResponseSchema, {
        ...outcomes,
        rejected: rejectedRows(judged, firstRow),
        notes: judged.flatMap(({ notes }, index) => (notes.length > 0 ? [toRow(firstRow + index, '', notes)] : [])),
        changes: changesOf(judged),
      })
      await imports.addBatch(
        {
          importId: id,
          firstRow,
          rowCount: rows.count,
          answer: Buffer.from(toBinary(ImportBatchResponseSchema, answer)),
          seen: of.dryRun ? Buffer.concat(judged.map(({ seen }) => seen)) : null,
          stagedSealed: of.allOrNothing ? deps.dataKeys.seal(stagedUse, stage(request, hashes)) : null,
        },
        t,
      )
      return { ...answer, import: toImport(await imports.advance(of, outcomes, t)) }
    })
  }
}

/** Waits while passwords are hashed: an import takes more of the processors than the scheduler charges for a call. */
async function waitWhileHashing(pool: Pick<Pool, 'stats'>): Promise<void> {
  const isHashing = () => {
    const { running, waiting } = pool.stats()
    return running + waiting > 0
  }
  const until = performance.now() + yieldToSignIns.max
  while (isHashing() && performance.now() < until) await sleep(yieldToSignIns.interval)
}

/** Ends an import when all its rows are processed. */
export function finishImport(deps: Deps): AdministrationRpcs['finishImport'] {
  const { imports } = deps
  return async (request, { administrator, transact }) => {
    const id = checkId(request.id)
    const work = async ({ t, record }: Change) => {
      const of = (await imports.lock(id, t)) ?? missing(id)
      checkStarter(of, administrator)
      if (of.nextRow !== request.rows)
        refuse(Reason.WRONG_STATE, {
          text: `Import ${id} has processed ${of.nextRow} rows, not ${request.rows}: send the rows from row ${of.nextRow}.`,
        })
      if (of.state !== 'running') return { import: toImport(of) }
      if (!of.allOrNothing) return { import: toImport(await imports.end(id, 'finished', t)) }
      if (of.rejected > 0) {
        await imports.discardStaged(id, t)
        return { import: toImport(await imports.end(id, 'aborted', t)) }
      }
      return applyStaged(deps, of, administrator, { t, record })
    }
    return transact(work, { unlimited: true })
  }
}

/** Applies all staged rows, or none if one is rejected. */
async function applyStaged(deps: Deps, of: StoredImport, administrator: Administrator, change: Change) {
  const { imports, dataKeys } = deps
  const { t } = change
  // The validation noted the same records.
  await imports.forget(of.id, t)
  const work = async () => {
    const judged: Judged[] = []
    for (const firstRow of await imports.stagedBatches(of.id, t)) {
      const { stagedSealed } = (await imports.findBatch(of.id, firstRow, t))!
      const { request, hashes } = unstage(dataKeys.open(stagedUse, stagedSealed!))
      const rows = rowsIn(of, request, deps)
      const batch = { of, firstRow, rowCount: rows.count, given: await rows.read(), hashes, keeps: true }
      judged.push(...(await judge(deps, batch, administrator, change)))
    }
    return judged
  }
  // What depends on rows of other batches shows only now.
  const judged = await imports.tryOut(work, all => count(all).rejected === 0, t)
  const outcomes = count(judged)
  await imports.discardStaged(of.id, t)
  const state = outcomes.rejected > 0 ? 'aborted' : 'finished'
  return { import: toImport(await imports.end(of.id, state, t, outcomes)), rejected: rejectedRows(judged, 0) }
}

/** The rows of a batch, and the hashes of their clear passwords. */
interface GivenBatch extends Pick<Batch, 'of' | 'firstRow' | 'hashes'> {
  readonly rowCount: number
  readonly given: ReadRows
  readonly keeps: boolean
}

/** Judges the rows of a batch; `keeps` what it applies, with an event that names the ids, or takes it back. */
async function judge(
  { imports, settings }: Deps,
  { of, firstRow, rowCount, given, hashes, keeps }: GivenBatch,
  administrator: Administrator,
  { t, record }: Change,
): Promise<Judged[]> {
  const { afterDryRun } = of
  const seen = afterDryRun === null ? undefined : await imports.seen(afterDryRun, firstRow, rowCount, t)
  if (afterDryRun !== null && !seen)
    refuse(Reason.WRONG_STATE, {
      text: `The results of dry run ${afterDryRun} are no longer available: repeat the dry run, and pass its new id.`,
    })
  if (of.keepIds) await imports.ids.lock(of.kind, t)
  const touched = createTouched(imports, { importId: of.id, firstRow }, { t })
  const batch = {
    ...{ of, firstRow, t, record, hashes, seen, touched },
    freeIds: async (ids: readonly number[]) => (of.keepIds ? imports.ids.free(of.kind, ids, of, t) : new Set<number>()),
    administratorId: administrator.user?.id,
    desk: administrator.desk,
    by: changeBy(administrator, settings),
  }
  const judged = keeps
    ? await given.apply(batch)
    : await imports.tryOut(
        () => given.apply(batch),
        () => false,
        t,
      )
  await touched.save()
  const ids = (kind: 'created' | 'updated') =>
    judged.flatMap(({ outcome }) => (outcome.kind === kind ? [outcome.id] : []))
  const object = nameImported(`import:${of.id}`, { created: ids('created'), updated: ids('updated') })
  const action = of.kind === 'organizations' ? 'organization.import' : 'user.import'
  if (keeps && object !== undefined) await record({ action, object })
  return judged
}

/** The rows of a request, which are of the kind of the import. */
function rowsIn(of: StoredImport, { organizations, users }: ImportBatchRequest, { rowsOf }: Deps) {
  const [rows, others] = of.kind === 'organizations' ? [organizations, users] : [users, organizations]
  if (others.length > 0) refuse(Reason.WRONG_STATE, { text: `Import ${of.id} accepts only ${of.kind}.` })
  if (rows.length === 0 || rows.length > maxBatch) wrongField(of.kind, 'OUT_OF_RANGE', `Send 1 to ${maxBatch} rows.`)
  const own = rowsOf[of.kind] as Rows<ImportedOrganization | ImportedUser>
  return { count: rows.length, read: () => own(rows) }
}

function count(judged: readonly Judged[]): Outcomes {
  const outcomes = { created: 0, updated: 0, unchanged: 0, rejected: 0 }
  for (const { outcome } of judged) outcomes[outcome.kind]++
  return outcomes
}

function rejectedRows(judged: readonly Judged[], firstRow: number): RejectedRow[] {
  return judged.flatMap(({ outcome }, index) => {
    if (outcome.kind !== 'rejected') return []
    return [toRow(firstRow + index, outcome.reason, outcome.problems)]
  })
}

function toRow(row: number, reason: string, problems: readonly RowProblem[]): RejectedRow {
  return create(RejectedRowSchema, { row, reason, problems: [...problems] })
}

function changesOf(judged: readonly Judged[]): Record<string, number> {
  const changes: Record<string, number> = {}
  for (const { outcome } of judged)
    for (const field of outcome.kind === 'updated' ? outcome.fields : []) changes[field] = (changes[field] ?? 0) + 1
  return changes
}

/** Rows to seal: with hashes instead of clear passwords. */
function stage(request: ImportBatchRequest, hashes: ReadonlyMap<number, string>): string {
  const users = request.users.map(row => ({ ...row, form: row.form && { ...row.form, password: undefined } }))
  const rows = toBinary(ImportBatchRequestSchema, create(ImportBatchRequestSchema, { ...request, users }))
  return JSON.stringify({ rows: Buffer.from(rows).toString('base64'), hashes: [...hashes] })
}

function unstage(text: string): { request: ImportBatchRequest; hashes: ReadonlyMap<number, string> } {
  const { rows, hashes } = JSON.parse(text)
  return { request: fromBinary(ImportBatchRequestSchema, Buffer.from(rows, 'base64')), hashes: new Map(hashes) }
}
