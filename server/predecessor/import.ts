/**
 * Imports the database of the older implementation. This folder owns what is read there (source.ts), what it becomes here
 * (convert.ts), and which users need a decision (decide.ts, names.ts). It writes no table itself: the registrar and the models
 * do. The command line, the only caller, analyzes a snapshot, which writes nothing, and asks for confirmation.
 *
 * An import writes organizations and questions in one transaction, and then users in batches in the order of ids, each in one
 * transaction with the counts of the import: after a kill, the next run goes on behind the last one. By a digest of each row
 * there, a later import finds what has changed.
 */
import type { Transaction } from '../database/database.js'
import type { Registry } from '../models/define-models.js'
import type { ImportRow, Outcomes } from '../models/import.js'
import { importObject } from '../models/predecessor.js'
import type { Passwords } from '../passwords/hash.js'
import { createRegistrar } from '../registration/registrar.js'
import { dayIn } from '../rules/dates.js'
import { nameImported } from '../rules/id-ranges.js'
import { createConversion, type RowNote, toOrganization, toQuestions } from './convert.js'
import { type Analysis, analyze, type How } from './decide.js'
import type { Source, SourceUser } from './source.js'

/** The import of a snapshot into a registry that has no users but its default administrator, or those of earlier imports. */
export type Move = Awaited<ReturnType<typeof openMove>>

/** Opens the import of a snapshot. `timeZone` is that of dates of birth, which must not be in the future. */
export async function openMove(
  registry: Registry,
  passwords: Pick<Passwords, 'key'>,
  source: Source,
  timeZone: string,
) {
  const { database, imports, predecessor, audit, masterKey } = registry
  const registrar = createRegistrar(registry)
  const digestOf = (row: unknown) => masterKey.digest('predecessor', JSON.stringify(row)).toString('base64')
  const notes: RowNote[] = []
  const today = dayIn(timeZone, new Date())
  const organizations = source.organizations.map(row => toOrganization(row, digestOf(row), today, notes))
  const organizationIds = organizations.map(({ id }) => id)
  const questions = toQuestions(source.questions, notes)
  const convert = createConversion({ now: Date.now, timeZone, passwords, organizationIds, questions })
  const [administrator, another] = await predecessor.others()

  async function problemOf(): Promise<string | undefined> {
    if (another || (administrator && administrator.role !== 'ROLE_ADMIN'))
      return 'This registry has users that were not imported: import into a newly installed one, which has only its default administrator.'
    if (await predecessor.changed(administrator?.id ?? 0))
      return 'Users were changed here since the import, and another import would undo that: go on with this registry, or install it anew.'
    const digests = await predecessor.digests('organizations', organizationIds)
    const own = organizationIds.filter(id => digests.get(id) === null).slice(0, 10)
    if (own.length === 0) return undefined
    return `The ids of organizations here (${own.join(', ')}) are those of others there: delete them first.`
  }

  return {
    /** Why the state of the registry doesn't permit the import. */
    problem: await problemOf(),

    /** Analyzes all users. */
    analyze(how: Omit<How, 'database' | 'convert' | 'administrator'>) {
      for (const note of notes) how.report(note)
      return analyze(source, { ...how, database, convert, administrator })
    },

    /** Writes users behind those of the last run. A dry run compares all of them, and writes nothing. */
    async write(
      { decisions, administratorThere }: Pick<Analysis, 'decisions' | 'administratorThere'>,
      {
        dryRun,
        actor,
        reason,
      }: { readonly dryRun: boolean; readonly actor: string; readonly reason: string | undefined },
      tell: (done: string) => void,
    ) {
      const record = (
        event: Pick<Parameters<typeof audit.append>[0], 'action' | 'subject_id' | 'object'>,
        t: Transaction,
      ) => audit.append({ ...event, outcome: 'ok', actor, reason }, t)

      /** Records which of the records were created and updated. */
      async function recordImport(
        kind: 'user' | 'organization',
        { id }: ImportRow,
        ids: ReturnType<typeof noIds>,
        t: Transaction,
      ) {
        const object = nameImported(`${importObject}:${id}`, ids)
        if (object !== undefined) await record({ action: `${kind}.import`, object }, t)
      }

      /** Starts or resumes the import, with all that users refer to. */
      async function begin(t: Transaction) {
        const how = { dryRun: false, allOrNothing: false, changeAccounts: [], afterDryRun: null, keepIds: false }
        const by = { actor, actorId: null, tokenGeneration: null }
        const row = await imports.start({ kind: 'predecessor', sourceDigest: source.digest, ...how, ...by }, t)
        const before = await predecessor.digests('organizations', organizationIds, t)
        const ids = noIds()
        for (const organization of organizations) {
          const { id, activationKey, ...details } = organization
          const outcome = outcomeOf(before, id, details.predecessorDigest)
          ids[outcome].push(id)
          if (outcome === 'created') await registry.organizations.add(organization, t)
          if (outcome !== 'updated') continue
          await registry.organizations.edit(id, details, t)
          await registry.organizations.rotateKey(id, t, activationKey)
        }
        await recordImport('organization', row, ids, t)
        const changed = await predecessor.putQuestions(questions, t)
        if (changed > 0) await record({ action: 'question.add', object: `questions:${changed}` }, t)
        // Before any user: sign-ups must not get ids of users there.
        await predecessor.advanceIds(source.lastIds, t)
        const { rejected: _, ...counts } = countsOf(ids)
        return { row, organizations: counts }
      }

      const counts = countsOf(noIds())
      /** Compares a batch with what was imported before, writes what differs, and returns the import after it. */
      async function move(batch: readonly SourceUser[], row: ImportRow | undefined, t: Transaction) {
        const locked = row && (await imports.lock(row.id, t))
        if (locked?.state !== row?.state || locked?.nextRow !== row?.nextRow)
          throw new Error('Another process goes on with this import: end it, and run the command again.')
        const userIds = batch.map(({ id }) => id)
        const before = await predecessor.digests('users', userIds, t)
        const ids = noIds()
        const changed = batch.flatMap(user => {
          const decision = decisions.get(user.id)
          const digest = digestOf([user, decision])
          const compared = user.id === administratorThere ? 'unchanged' : outcomeOf(before, user.id, digest)
          const outcome = decision?.skip && compared !== 'unchanged' ? 'rejected' : compared
          ids[outcome].push(user.id)
          counts[outcome]++
          return row && (outcome === 'created' || outcome === 'updated') ? { digest, ...convert(user, decision) } : []
        })
        if (!row) return undefined
        const freed = await predecessor.freeNames(
          changed.map(({ user }) => user),
          t,
        )
        const stuck = freed.find(id => decisions.get(id)?.skip)
        if (stuck !== undefined)
          throw new Error(
            `User #${stuck} is omitted, but another user gets its name here: decide about both in a file.`,
          )
        for (const id of ids.updated) {
          // Tokens from before end, as they do where a password or a role changes here.
          await registry.users.revokeTokens(id, t)
          await record({ action: 'user.revoke-tokens', subject_id: id, object: `${importObject}:${row.id}` }, t)
        }
        const [added, replaced] = [false, true].map(isKnown =>
          changed.filter(({ user }) => before.has(user.id) === isKnown).map(({ complete, digest }) => complete(digest)),
        )
        await registrar.adopt({ added: added!, replaced: replaced! }, t)
        const answer = Buffer.from(JSON.stringify({ lastId: userIds.at(-1) }))
        const place = { importId: row.id, firstRow: row.nextRow, rowCount: batch.length }
        await imports.addBatch({ ...place, answer, seen: null, stagedSealed: null }, t)
        await recordImport('user', row, ids, t)
        return imports.advance(locked!, countsOf(ids), t)
      }

      const begun = dryRun ? undefined : await database.transact(begin, { unlimited: true })
      const answer = begun && (await imports.lastAnswer(begun.row.id))
      const { lastId } = answer ? (JSON.parse(String(answer)) as { lastId: number }) : { lastId: 0 }
      let [row, read] = [begun?.row, 0]
      for await (const batch of source.users(lastId)) {
        row = await database.transact(t => move(batch, row, t), { unlimited: true })
        read += batch.length
        tell(`${row?.nextRow ?? read} of ${source.userCount}`)
      }
      if (!begun || !row) return { counts }
      const ended = await database.transact(t => imports.end(begun.row.id, 'finished', t))
      await predecessor.analyze()
      const { created, updated, unchanged, rejected } = ended
      return { import: ended, counts: { created, updated, unchanged, rejected }, organizations: begun.organizations }
    },
  }
}

/** Ids of records by outcome. */
const noIds = (): Record<keyof Outcomes, number[]> => ({ created: [], updated: [], unchanged: [], rejected: [] })

const countsOf = (ids: ReturnType<typeof noIds>) =>
  Object.fromEntries(Object.entries(ids).map(([name, { length }]) => [name, length])) as Record<keyof Outcomes, number>

function outcomeOf(before: ReadonlyMap<number, string | null>, id: number, digest: string | null | undefined) {
  if (!before.has(id)) return 'created'
  return before.get(id) === digest ? 'unchanged' : 'updated'
}
