// Imports as resources: their start and end. batch.ts judges their rows.

import { create } from '@bufbuild/protobuf'
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import {
  Administration,
  type Import,
  ImportKind,
  ImportSchema,
  ImportState,
} from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { Administrator } from '../../access/administrator.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { ImportKind as KindName, StoredImport } from '../../models/import.js'
import type { Models } from '../../models/index.js'
import type { Hashing } from '../../passwords/index.js'
import type { OpenPage } from '../../requests/paging.js'
import { refuse } from '../../requests/refusal.js'
import { wrongField } from '../../requests/wrong-fields.js'
import { changeableAccounts } from '../../rules/import-changes.js'

const kinds: Readonly<Record<KindName, ImportKind>> = {
  organizations: ImportKind.ORGANIZATIONS,
  users: ImportKind.USERS,
}

const states: Readonly<Record<StoredImport['state'], ImportState>> = {
  running: ImportState.RUNNING,
  finished: ImportState.FINISHED,
  aborted: ImportState.ABORTED,
}

/** The RPCs of imports, but for their rows. */
export function importRpcs({ imports, users }: Models, { pool }: Hashing, openPage: OpenPage) {
  /** Imports with the usernames of who started them. */
  async function withNames(found: readonly StoredImport[]): Promise<Import[]> {
    const names = await users.usernames([...new Set(found.flatMap(({ actorId }) => actorId ?? []))])
    return found.map(of => ({ ...toImport(of), actorUsername: names.get(of.actorId ?? 0) }))
  }

  return {
    /** Starts or resumes an import. */
    async startImport(request, { administrator, transact }) {
      const kind = (Object.keys(kinds) as KindName[]).find(name => kinds[name] === request.kind)
      const sourceDigest = request.sourceDigest ?? ''
      const { dryRun, allOrNothing, afterDryRun = null, keepIds, highestId } = request
      // With the ids of a file, no existing record changes.
      const changeAccounts = keepIds ? [] : [...new Set(request.changeAccounts)].sort()
      if (!kind) wrongField('kind', 'MISSING', 'Specify what the import reads.')
      if (!/^[0-9a-f]{64}$/.test(sourceDigest))
        wrongField('source_digest', 'MALFORMED', 'Use a SHA-256 digest, 64 lower-case hexadecimal digits.')
      if (dryRun && (allOrNothing || afterDryRun !== null))
        wrongField('dry_run', 'CONFLICTING', 'A dry run applies nothing: leave out the other options.')
      const changeable: readonly string[] = changeableAccounts[kind]
      if (!changeAccounts.every(column => changeable.includes(column))) {
        wrongField('change_accounts', 'UNKNOWN_VALUE', `Use columns among ${changeable.join(', ')}.`)
      }
      if (administrator.desk && (kind !== 'users' || keepIds || changeAccounts.length > 0))
        refuse(Reason.ACCESS_DENIED, {
          text: 'A holder of desk imports users alone, without change_accounts and keep_ids.',
        })
      if (changeAccounts.includes('password') && !dryRun) administrator.justify()
      if (afterDryRun !== null) {
        const before = (await imports.find(afterDryRun)) ?? missing(afterDryRun)
        const isSame = before.kind === kind && before.sourceDigest === sourceDigest && before.dryRun
        if (!isSame || before.state !== 'finished')
          refuse(Reason.WRONG_STATE, { text: `Import ${afterDryRun} is not a finished dry run of the same source.` })
      }
      const of = { kind, sourceDigest, dryRun, allOrNothing, changeAccounts, afterDryRun, keepIds }
      const { actor } = administrator.auditContext
      const by = { actor, actorId: administrator.user?.id ?? null }
      const tokenGeneration = administrator.user?.tokenGeneration ?? null
      const numbered = keepIds ? kind : undefined
      const { started, reach } = await transact(async ({ t, record }) => {
        const started = await imports.start({ ...of, ...by, tokenGeneration }, t)
        await record({ action: 'import.start', object: `import:${started.id}` })
        return { started, reach: numbered && (await imports.ids.reserve(numbered, dryRun ? 0 : highestId, t)) }
      })
      if (numbered && !dryRun && highestId <= reach!) await imports.ids.advance(numbered, highestId)
      const { averageMs, threads } = pool.stats()
      return { import: toImport(started), hashMilliseconds: Math.ceil(averageMs / threads), highestId: reach ?? 0 }
    },

    /** Ends an import before all its rows are judged. */
    async abortImport(request, { administrator, transact }) {
      const id = checkId(request.id)
      return transact(async ({ t, record }) => {
        const of = (await imports.lock(id, t)) ?? missing(id)
        if (administrator.desk && of.actorId !== administrator.user?.id)
          refuse(Reason.ACCESS_DENIED, { text: 'Only an administrator ends the import of another.' })
        if (of.state !== 'running') return { import: toImport(of), changed: false }
        await imports.discardStaged(id, t)
        await record({ action: 'import.abort', object: `import:${id}` })
        return { import: toImport(await imports.end(id, 'aborted', t)), changed: true }
      })
    },

    /** Returns an import. */
    async getImport(request) {
      const id = checkId(request.id)
      const [found] = await withNames([(await imports.find(id)) ?? missing(id)])
      return { import: found }
    },

    /** Lists imports, the newest first. */
    async listImports(request) {
      const page = openPage<number>(Administration.method.listImports, request)
      const listed = await imports.list({ limit: page.limit, beforeId: page.after })
      const { shown, ...next } = page.cut(listed, ({ id }) => id)
      return { imports: await withNames(shown), ...next }
    },
  } satisfies Partial<AdministrationRpcs>
}

/** Returns the id that a request must have. */
export function checkId(id: number | undefined): number {
  return id ?? wrongField('id', 'MISSING', 'Specify the id of the import.')
}

/** Refuses with RECORD_NOT_FOUND. */
export function missing(id: number): never {
  refuse(Reason.RECORD_NOT_FOUND, { text: `There is no import ${id}.` })
}

/** Refuses with WRONG_STATE unless the caller started or resumed the import, with tokens that are still valid. */
export function checkStarter(of: StoredImport, { user }: Administrator): void {
  if ((user?.id ?? null) === of.actorId && (user?.tokenGeneration ?? null) === of.tokenGeneration) return
  refuse(Reason.WRONG_STATE, { text: `Import ${of.id} belongs to another session: start it again to resume it.` })
}

/** An import as a message. */
export function toImport({ createdAt, updatedAt, tokenGeneration: _, ...of }: StoredImport): Import {
  return create(ImportSchema, {
    ...of,
    kind: kinds[of.kind],
    state: states[of.state],
    afterDryRun: of.afterDryRun ?? undefined,
    createTime: timestampFromDate(createdAt),
    updateTime: timestampFromDate(updatedAt),
    actorId: of.actorId ?? undefined,
  })
}
