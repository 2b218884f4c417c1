// The undo of an import: removes the records that it created and that nothing else has touched since.

import { Administration as AdministrationService } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs, Change } from '../../calls/context.js'
import type { AdministeredUsers } from '../../models/administered-user.js'
import type { Audit } from '../../models/audit.js'
import type { Erasure } from '../../models/erasure.js'
import type { ImportRow, Imports } from '../../models/import.js'
import type { ImportedPlace, ImportedRecords, Touch } from '../../models/imported-record.js'
import type { Organizations } from '../../models/organization.js'
import type { OpenPage } from '../../requests/paging.js'
import { refuse } from '../../requests/refusal.js'
import { requireConfirmation } from '../confirmation.js'
import { checkId, missing, toImport } from './imports.js'

/** Records of a call: to erase one takes up to 20 ms, and another undo waits for at most 2 s. And of a call that only looks. */
const most = { removed: 10, looked: 250 }

interface Deps {
  readonly imports: Imports
  readonly importedRecords: ImportedRecords
  readonly audit: Pick<Audit, 'seal'>
  readonly administeredUsers: Pick<AdministeredUsers, 'lock'>
  readonly organizations: Organizations
  readonly erasure: Erasure
  readonly openPage: OpenPage
}

/** What becomes of a record: it was removed before if it has no name. */
interface Undone {
  readonly id: number
  readonly name?: string
  /** Why it stays. */
  readonly kept?: string
}

/** Thrown to roll back the removal of users of whom one has signed in meanwhile. */
class Touched extends Error {}

/** Removes what an import created, or says what would become of it. */
export function undoImport(deps: Deps): AdministrationRpcs['undoImport'] {
  const { imports, importedRecords, audit, openPage } = deps
  return async (request, { transact }) => {
    const id = checkId(request.id)
    const { confirm, validateOnly } = request
    if (!validateOnly) requireConfirmation(String(id), confirm)
    const page = openPage<ImportedPlace>(AdministrationService.method.undoImport, { ...request, pageSize: 0 })
    const found = (await imports.find(id)) ?? missing(id)
    checkUndoable(found)
    // The chain is where its events are found by index. Without a service, no other process seals them.
    while (await audit.seal());
    const log = await importedRecords.log(id, found.createdAt)
    if (log === 'unsealed') refuse(Reason.UNAVAILABLE, { retryAfter: 1 })
    if (log === 'deleted') {
      const text = `The audit log no longer has all events since import ${id}: what else has touched its records isn’t known.`
      refuse(Reason.WRONG_STATE, { text })
    }
    const limit = validateOnly ? most.looked : most.removed
    const { ids, next } = await importedRecords.created(id, page.after ?? { event: 0, id: 0 }, limit)
    const undo = () =>
      transact(async made => {
        let row = (await imports.lock(id, made.t)) ?? missing(id)
        if (!validateOnly && page.after === undefined) {
          row = await imports.undo(row, made.t)
          await made.record({ action: 'import.undo', object: `import:${id}` })
        }
        const of = row.kind === 'users' ? undoUsers : undoOrganizations
        return { import: toImport(row), records: await of(deps, row, ids, validateOnly, made) }
      })
    for (;;) {
      try {
        return { ...(await undo()), ...(next && { nextPageToken: page.next(next) }) }
      } catch (error) {
        if (!(error instanceof Touched)) throw error
      }
    }
  }
}

function checkUndoable({ id, kind, state, dryRun }: ImportRow): void {
  if (state === 'running')
    refuse(Reason.WRONG_STATE, {
      text: `Import ${id} still runs: finish it, or abort it with AbortImport.`,
    })
  if (dryRun) refuse(Reason.WRONG_STATE, { text: `Import ${id} is a dry run: it created nothing.` })
  if (kind === 'predecessor')
    refuse(Reason.WRONG_STATE, {
      text: `Import ${id} is of the database of the older implementation, which can’t be undone: restore a backup of before.`,
    })
}

async function undoUsers(deps: Deps, row: ImportRow, ids: readonly number[], looks: boolean, { t, record }: Change) {
  const { importedRecords, administeredUsers, erasure } = deps
  const users = new Map<number, string>()
  for (const id of ids) {
    const user = await administeredUsers.lock(id, t)
    if (user) users.set(id, user.username)
  }
  const touchedOf = (some: readonly number[]) => importedRecords.touchedUsers(row.id, row.createdAt, some, t)
  const present = [...users.keys()]
  const touched = await touchedOf(present)
  const used = await importedRecords.usedProviders(present, t)
  const undone = ids.map((id): Undone => {
    const name = users.get(id)
    if (name === undefined) return { id }
    const touch = touched.get(id)
    const kept = touch ? whyOf(touch) : used.has(id) ? 'its provider key has activated users' : undefined
    return { id, name, ...(kept !== undefined && { kept }) }
  })
  if (looks) return undone
  const removed = removedOf(undone)
  for (const id of removed) await erasure.erase(id, t)
  // A sign-in doesn't wait for the lock of a user, only for the end of the erasure.
  if ((await touchedOf(removed)).size > 0) throw new Touched()
  for (const id of removed) await record({ action: 'user.erase', subject_id: id, object: `import:${row.id}` })
  return undone
}

async function undoOrganizations(
  deps: Deps,
  row: ImportRow,
  ids: readonly number[],
  looks: boolean,
  { t, record }: Change,
) {
  const { importedRecords, organizations } = deps
  const found = new Map<number, { name: string; members: number }>()
  for (const id of ids) {
    const organization = await organizations.lock(id, t)
    if (organization) found.set(id, { name: organization.name, members: await organizations.members(id, t) })
  }
  const present = [...found.keys()]
  const touched = await importedRecords.touchedOrganizations(row.id, row.createdAt, present, t)
  const mailed = await importedRecords.mailedOrganizations(present, t)
  const undone = ids.map((id): Undone => {
    const organization = found.get(id)
    if (!organization) return { id }
    const { name, members } = organization
    const touch = touched.get(id)
    const kept =
      members > 0
        ? `has members: ${members}`
        : touch
          ? whyOf(touch)
          : mailed.has(id)
            ? 'an activation key is in the mail'
            : undefined
    return { id, name, ...(kept !== undefined && { kept }) }
  })
  if (looks) return undone
  for (const id of removedOf(undone)) {
    await organizations.remove(id, t)
    await record({ action: 'organization.delete', object: `organization:${id}` })
  }
  return undone
}

function removedOf(undone: readonly Undone[]): number[] {
  return undone.flatMap(({ id, name, kept }) => (name !== undefined && kept === undefined ? [id] : []))
}

/** What touched a record, in words. */
function whyOf({ action, at }: Touch): string {
  const what = action.startsWith('session.')
    ? 'signed in'
    : action.endsWith('.import')
      ? 'changed by another import'
      : action
  return `${what}, ${at.toISOString().replace(/\.\d+Z$/, 'Z')}`
}
