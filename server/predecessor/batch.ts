// Writes a batch of users: all their rows, the counts of the import and one event, in one short transaction.
import type { Transaction } from '../database/connection.js'
import type { Registry } from '../models/define-models.js'
import type { ImportRow, Outcomes } from '../models/import.js'
import { activationKeyUse } from '../models/organization.js'
import { importObject, type MovedRow } from '../models/predecessor.js'
import type { Passwords } from '../passwords/hash.js'
import { nameImported } from '../rules/id-ranges.js'
import { questionKey } from '../rules/names.js'
import type { Convert, Converted, Decision } from './convert.js'
import type { Analysis } from './decide.js'
import type { EventBasis } from './organizations.js'
import type { SourceUser } from './source.js'

/** What a batch does, before it is written. */
export interface Batch {
  readonly lastId: number
  readonly outcomes: Outcomes
  readonly created: readonly Judged[]
  readonly updated: readonly Judged[]
}

/** A user to write. */
interface Judged {
  readonly id: number
  readonly converted: Converted
  readonly digest: Buffer
}

/** Dependencies of batches. */
export interface BatchDeps {
  readonly registry: Registry
  readonly passwords: Pick<Passwords, 'key'>
  readonly convert: Convert
  readonly analysis: Analysis
  /** Ids of questions by their keys. */
  readonly questionIds: ReadonlyMap<string, number>
  readonly event: EventBasis
}

/** Compares a batch with what was imported before. */
export async function judge(
  {
    registry: { predecessor, masterKey },
    convert,
    analysis: { decisions, administratorThere },
  }: Omit<BatchDeps, 'questionIds'>,
  users: readonly SourceUser[],
): Promise<Batch> {
  const [first, last] = [users[0]!.id, users.at(-1)!.id]
  const before = await predecessor.userDigests(first, last)
  const created: Judged[] = []
  const updated: Judged[] = []
  let [unchanged, rejected] = [0, 0]
  for (const user of users) {
    const decision = decisions.get(user.id)
    const digest = masterKey.digest('predecessor', JSON.stringify([user, decision]))
    const known = before.get(user.id)
    if (user.id === administratorThere || known?.equals(digest)) unchanged++
    else if (decision?.skip) rejected++
    else (known ? updated : created).push({ id: user.id, converted: convert(user, decision as Decision), digest })
  }
  const outcomes = { created: created.length, updated: updated.length, unchanged, rejected }
  return { lastId: last, outcomes, created, updated }
}

/** Writes a batch, and returns the import after it. Throws an Error if another process has written since `before`. */
export function writeBatch(deps: BatchDeps, before: ImportRow, batch: Batch): Promise<ImportRow> {
  const { database, imports, audit } = deps.registry
  return database.transact(
    async t => {
      const locked = await imports.lock(before.id, t)
      if (locked?.state !== 'running' || locked.nextRow !== before.nextRow)
        throw new Error('Another process goes on with this import: end it, and run the command again.')
      const object = `${importObject}:${before.id}`
      await writeUsers(deps, batch, object, t)
      const after = await imports.advance(before.id, batch.outcomes, t)
      const rowCount = after.nextRow - before.nextRow
      const answer = Buffer.from(JSON.stringify({ lastId: batch.lastId }))
      await imports.addBatch(
        { importId: before.id, firstRow: before.nextRow, rowCount, answer, seen: null, stagedSealed: null },
        t,
      )
      const ids = (judged: readonly Judged[]) => judged.map(({ id }) => id)
      const named = nameImported(object, { created: ids(batch.created), updated: ids(batch.updated) })
      if (named !== undefined) await audit.append({ ...deps.event, action: 'user.import', object: named }, t)
      return after
    },
    { unlimited: true },
  )
}

async function writeUsers(deps: BatchDeps, { created, updated }: Batch, object: string, t: Transaction): Promise<void> {
  const { registry, event } = deps
  const { predecessor, users, audit } = registry
  const all = [...created, ...updated]
  await predecessor.add('users', rowsOf(created), t)
  for (const { id, converted, digest } of updated) {
    // Tokens from before end, as they do where a password or a role changes here.
    await users.revokeTokens(id, t)
    await audit.append({ ...event, action: 'user.revoke-tokens', subject_id: id, object }, t)
    await predecessor.replace('users', converted.row, t)
    await predecessor.replace('predecessor_users', { user_id: id, digest }, t)
  }
  const digests = created.map(({ id, digest }) => ({ user_id: id, digest }))
  await predecessor.add('predecessor_users', digests, t)
  const changedIds = updated.map(({ id }) => id)
  const replaced = updated.filter(({ converted: { keys, row } }) => keys.length > 0 || row.role !== 'ROLE_INSTITUTION')
  if (updated.length > 0) {
    const providers = replaced.map(({ id }) => id)
    await predecessor.removeSecrets(changedIds, providers, t)
  }
  const kept = updated.length > 0 ? await predecessor.withProviderKey(changedIds, t) : new Set<number>()
  for (const { id, converted } of all) {
    const { role, active } = converted.row
    // As after an activation here.
    if (role === 'ROLE_INSTITUTION' && active === true && converted.keys.length === 0 && !kept.has(id))
      await users.addProviderKey(id, t)
  }
  await predecessor.add(
    'provider_keys',
    all.flatMap(judged => keysOf(deps, judged)),
    t,
  )
  const answers = all.map(judged => answersOf(deps, judged))
  await predecessor.add(
    'answers',
    answers.flatMap(({ matched }) => matched),
    t,
  )
  await predecessor.add(
    'unmatched_answers',
    answers.flatMap(({ unmatched }) => unmatched),
    t,
  )
}

function rowsOf(judged: readonly Judged[]): MovedRow<'users'>[] {
  return judged.map(({ converted }) => converted.row)
}

function keysOf({ registry: { masterKey } }: BatchDeps, { id, converted }: Judged): MovedRow<'provider_keys'>[] {
  return converted.keys.map(({ id: keyId, key }, index) => ({
    id: keyId,
    user_id: id,
    key_digest: masterKey.digest(activationKeyUse, key),
    key_sealed: masterKey.seal(activationKeyUse, key),
    additional: index > 0,
  }))
}

function answersOf({ passwords, questionIds }: BatchDeps, { id, converted: { answers, own } }: Judged) {
  const given = new Map(answers)
  const unmatched: MovedRow<'unmatched_answers'>[] = []
  if (own) {
    const key = questionKey(own.question)
    const questionId = questionIds.get(key)
    if (questionId === undefined)
      unmatched.push({ user_id: id, question: own.question, question_key: key, answer_hash: passwords.key(own.answer) })
    else if (!given.has(questionId)) given.set(questionId, own.answer)
  }
  const matched: MovedRow<'answers'>[] = [...given].map(([questionId, answer]) => ({
    user_id: id,
    question_id: questionId,
    answer_hash: passwords.key(answer),
  }))
  return { matched, unmatched }
}
