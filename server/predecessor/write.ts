// Writes what a snapshot of the older implementation becomes: organizations and questions in one transaction, then users in
// batches. It writes no table itself: the registrar and the models do.
import type { Transaction } from '../database/connection.js'
import type { Registry } from '../models/define-models.js'
import type { ImportRow, Outcomes } from '../models/import.js'
import { importObject } from '../models/predecessor.js'
import type { Registration } from '../models/user-batch.js'
import type { Passwords } from '../passwords/hash.js'
import { createRegistrar } from '../registration/registrar.js'
import { nameImported } from '../rules/id-ranges.js'
import { questionKey } from '../rules/names.js'
import type { Convert, Converted, MovedQuestion, toOrganization } from './convert.js'
import type { Analysis } from './decide.js'
import type { Source, SourceUser } from './source.js'

/** Number of rows by outcome. */
type Counts = Omit<Outcomes, 'rejected'>

/** A record to write, and the digest of its row there. */
interface Digested {
  readonly id: number
  readonly digest: Buffer
}

/** What a batch does. */
interface Batch {
  readonly lastId: number
  readonly outcomes: Outcomes
  readonly created: readonly (Digested & { readonly converted: Converted })[]
  readonly updated: Batch['created']
}

/** What is written, and on whose behalf. */
interface Given extends Pick<Analysis, 'decisions' | 'occupied' | 'administratorThere'> {
  readonly registry: Registry
  readonly passwords: Pick<Passwords, 'key'>
  readonly source: Source
  readonly convert: Convert
  readonly organizations: readonly ReturnType<typeof toOrganization>[]
  readonly questions: readonly MovedQuestion[]
  readonly actor: string
  readonly reason: string | undefined
}

/** Creates what writes a snapshot. */
export function createWriter(given: Given) {
  const { registry, passwords, source, convert, decisions, occupied, administratorThere, actor, reason } = given
  const { database, imports, predecessor, organizations, questions, users, audit, masterKey } = registry
  const registrar = createRegistrar(registry)
  const event = { outcome: 'ok', actor, reason } as const
  const digestOf = (row: unknown) => masterKey.digest('predecessor', JSON.stringify(row))

  /** Records which records an import created and updated. */
  async function recordImport(
    action: 'user.import' | 'organization.import',
    object: string,
    { created, updated }: Readonly<Record<'created' | 'updated', readonly Digested[]>>,
    t: Transaction,
  ): Promise<void> {
    await predecessor.note(action === 'user.import' ? 'users' : 'organizations', [...created, ...updated], t)
    const ids = { created: created.map(({ id }) => id), updated: updated.map(({ id }) => id) }
    const named = nameImported(object, ids)
    if (named !== undefined) await audit.append({ ...event, action, object: named }, t)
  }

  async function writeOrganizations(object: string, t: Transaction): Promise<Counts> {
    const before = await predecessor.digests('organizations', -(2 ** 31), 2 ** 31 - 1, t)
    const rows = given.organizations.map((row, at) => ({ ...row, digest: digestOf(source.organizations[at]) }))
    const created = rows.filter(({ id }) => !before.has(id))
    const updated = rows.filter(({ id, digest }) => before.get(id)?.equals(digest) === false)
    for (const { digest: _, ...row } of created) await organizations.add(row, t)
    for (const { digest: _, id, activationKey, ...details } of updated) {
      await organizations.edit(id, details, t)
      await organizations.rotateKey(id, t, activationKey)
    }
    await recordImport('organization.import', object, { created, updated }, t)
    return countsOf(rows.length, created.length, updated.length)
  }

  /** The first import replaces the questions of the installation. */
  async function writeQuestions(t: Transaction): Promise<Counts> {
    const rows = given.questions
    const isFirst = !(await predecessor.hasUsers())
    const there = new Map((await questions.all(t)).map(row => [row.id, row]))
    const changed = rows.filter(({ id, question, active }) => {
      const row = there.get(id)
      return row?.question !== question || row.active !== active
    })
    if (changed.length === 0) return countsOf(rows.length, 0, 0)
    const created = isFirst ? rows : changed.filter(({ id }) => !there.has(id))
    if (!(await predecessor.putQuestions(isFirst ? rows : changed, { replaces: isFirst }, t)))
      throw new Error('Answers refer to security questions of this registry: import into a newly installed one.')
    await audit.append({ ...event, action: 'question.add', object: `questions:${created.length}` }, t)
    return countsOf(rows.length, created.length, isFirst ? 0 : changed.length - created.length)
  }

  /** A user with its membership and answers. `ids` are those of questions, by key. */
  function toUser(
    { user, organization, answers, own }: Converted,
    ids: ReadonlyMap<string, number>,
  ): Registration<number> & { readonly id: number } {
    const ownKey = questionKey(own?.question ?? '')
    const ownId = ids.get(ownKey)
    // An answer that was saved is newer than that of the sign-up.
    const all = new Map(own && ownId !== undefined ? [[ownId, own.answer], ...answers] : answers)
    return {
      ...user,
      organizationId: organization,
      answers: [...all].map(([questionId, answer]) => ({ questionId, answerHash: passwords.key(answer)! })),
      unmatched:
        own && ownId === undefined
          ? { question: own.question, questionKey: ownKey, answerHash: passwords.key(own.answer)! }
          : undefined,
    }
  }

  return {
    /** Starts or resumes the import, with all that users refer to. */
    begin: () =>
      database.transact(
        async t => {
          const how = { dryRun: false, allOrNothing: false, changeAccounts: [], afterDryRun: null, keepIds: false }
          const by = { actor, actorId: null, tokenGeneration: null }
          const row = await imports.start({ kind: 'predecessor', sourceDigest: source.digest, ...how, ...by }, t)
          const organizationCounts = await writeOrganizations(`${importObject}:${row.id}`, t)
          const questionCounts = await writeQuestions(t)
          // Before any user: sign-ups must not get ids of users there.
          await predecessor.advanceIds(source.lastIds, t)
          await predecessor.freeNames(occupied, t)
          return { row, organizationCounts, questionCounts }
        },
        { unlimited: true },
      ),

    /** Compares a batch with what was imported before. */
    async judge(batch: readonly SourceUser[]): Promise<Batch> {
      const lastId = batch.at(-1)!.id
      const before = await predecessor.digests('users', batch[0]!.id, lastId)
      const created: Batch['created'][number][] = []
      const updated: typeof created = []
      let [unchanged, rejected] = [0, 0]
      for (const user of batch) {
        const decision = decisions.get(user.id)
        const digest = digestOf([user, decision])
        const known = before.get(user.id)
        if (user.id === administratorThere || known?.equals(digest)) unchanged++
        else if (decision?.skip) rejected++
        else (known ? updated : created).push({ id: user.id, converted: convert(user, decision), digest })
      }
      const outcomes = { created: created.length, updated: updated.length, unchanged, rejected }
      return { lastId, outcomes, created, updated }
    },

    /** Writes a batch, and returns the import after it. Throws an Error if another process has written since `before`. */
    write: (
      before: ImportRow,
      { lastId, outcomes, created, updated }: Batch,
      ids: ReadonlyMap<string, number>,
    ): Promise<ImportRow> =>
      database.transact(
        async t => {
          const locked = await imports.lock(before.id, t)
          if (locked?.state !== 'running' || locked.nextRow !== before.nextRow)
            throw new Error('Another process goes on with this import: end it, and run the command again.')
          const object = `${importObject}:${before.id}`
          for (const { id } of updated) {
            // Tokens from before end, as they do where a password or a role changes here.
            await users.revokeTokens(id, t)
            await audit.append({ ...event, action: 'user.revoke-tokens', subject_id: id, object }, t)
          }
          const [added, replaced] = [created, updated].map(all => all.map(({ converted }) => toUser(converted, ids)))
          await registrar.adopt({ added: added!, replaced: replaced! }, t)
          const after = await imports.advance(locked, outcomes, t)
          const rows = { importId: before.id, firstRow: before.nextRow, rowCount: after.nextRow - before.nextRow }
          const answer = Buffer.from(JSON.stringify({ lastId }))
          await imports.addBatch({ ...rows, answer, seen: null, stagedSealed: null }, t)
          await recordImport('user.import', object, { created, updated }, t)
          return after
        },
        { unlimited: true },
      ),
  }
}

function countsOf(all: number, created: number, updated: number): Counts {
  return { created, updated, unchanged: all - created - updated }
}
