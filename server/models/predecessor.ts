// Writes what is imported from the database of the older implementation: whole rows with their ids, in bulk, each beside a
// digest of the row there. server/predecessor/ reads and judges them.
import { bytes, defineTable, integer, key } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { type CopyValue, copyLine } from '../database/copy.js'
import { type AuditAction, auditActions } from '../policy/audit-actions.js'

/** Columns of each table that an import writes. */
const written = {
  users: [
    'id',
    'username',
    'username_key',
    'username_skeleton',
    'nickname',
    'nickname_key',
    'nickname_skeleton',
    'password_hash',
    'date_of_birth',
    'gender',
    'state',
    'city',
    'institution_type',
    'institution',
    'security_question',
    'terms_of_usage',
    'role',
    'active',
    'organization_id',
    'activated_by',
    'avatar',
  ],
  provider_keys: ['id', 'user_id', 'key_digest', 'key_sealed', 'additional'],
  answers: ['user_id', 'question_id', 'answer_hash'],
  unmatched_answers: ['user_id', 'question', 'question_key', 'answer_hash'],
  predecessor_users: ['user_id', 'digest'],
  organizations: [
    'id',
    'active',
    'name',
    'name_key',
    'address',
    'creation_date',
    'inep_code',
    'login',
    'phone',
    'responsible',
    'type',
    'website',
    'activation_key_digest',
    'activation_key_sealed',
  ],
  predecessor_organizations: ['organization_id', 'digest'],
} as const

type Written = typeof written

/** A table that an import writes. */
export type MovedTable = keyof Written

/** A row of such a table, by column. */
export type MovedRow<T extends MovedTable> = { readonly [C in Written[T][number]]: CopyValue }

/** Writes the rows of an import. */
export interface Predecessor {
  /**
   * Returns the users that no import made: of a registry that can be moved into, at most the default administrator. Returns
   * at most two.
   */
  others(): Promise<{ id: number; username: string; usernameKey: string; role: string }[]>
  /** Whether users were added, changed or erased here since the first import, except this one, and except by imports. */
  changed(administratorId: number): Promise<boolean>
  /** Whether any user was imported. */
  hasUsers(): Promise<boolean>
  /** Returns the digests of imported users with ids between two, both inclusive. */
  userDigests(from: number, to: number): Promise<Map<number, Buffer>>
  organizationDigests(t?: Transaction): Promise<Map<number, Buffer>>
  /** Returns which of the ids belong to organizations here that no import made. */
  ownOrganizations(ids: readonly number[]): Promise<number[]>
  /** Adds rows, in an unlimited transaction. */
  add<T extends MovedTable>(table: T, rows: readonly MovedRow<T>[], t: Transaction): Promise<void>
  /** Replaces a user, an organization or its digest, by its first column. */
  replace<T extends MovedTable>(table: T, row: MovedRow<T>, t: Transaction): Promise<void>
  /** Takes the keys of names from users that get others in the same import. */
  freeNames(userIds: readonly number[], t: Transaction): Promise<void>
  /** Deletes answers of users, and the provider keys of those whose rows there have some. */
  removeSecrets(userIds: readonly number[], providerIds: readonly number[], t: Transaction): Promise<void>
  /** Returns which of the users have a provider key. */
  withProviderKey(userIds: readonly number[], t: Transaction): Promise<Set<number>>
  /** Replaces all questions. Returns false, and changes nothing, if answers refer to them. */
  replaceQuestions(rows: readonly MovedQuestion[], t: Transaction): Promise<boolean>
  /** Adds or changes a question. */
  putQuestion(row: MovedQuestion, t: Transaction): Promise<void>
  /** Makes the next ids of a table greater than `id`. */
  advanceIds(
    table: 'users' | 'organizations' | 'questions' | 'provider_keys',
    id: number,
    t: Transaction,
  ): Promise<void>
  /** Updates the statistics of the tables that an import writes. */
  analyze(): Promise<void>
}

/** A question with its id. */
export interface MovedQuestion {
  readonly id: number
  readonly question: string
  readonly questionKey: string
  readonly active: boolean
}

/** Kind of the object of events by which imports change users, before the id of the import. */
export const importObject = 'predecessor-import'

const others: Statement = {
  name: 'predecessor-others',
  slow: true,
  text: `SELECT id, username, username_key AS "usernameKey", role FROM users u
    WHERE NOT EXISTS (SELECT FROM predecessor_users p WHERE p.user_id = u.id) LIMIT 2`,
}

/** Actions on users that don't change what an import would write. */
const harmless: readonly AuditAction[] = [
  'user.ask-email',
  'user.export',
  'user.export-own',
  'user.send-activation-key',
  'user.send-key',
  'user.show-key',
  'user.unlock',
]

const changing = auditActions.filter(action => action.startsWith('user.') && !harmless.includes(action))

const changedIn = (table: string) => `SELECT FROM ${table}, since WHERE at >= began AND outcome = 'ok'
  AND action = ANY($1) AND subject_id IS DISTINCT FROM $2 AND coalesce(object, '') NOT LIKE '${importObject}:%'`

const changed: Statement = {
  name: 'predecessor-changed',
  slow: true,
  text: `WITH since AS MATERIALIZED (SELECT min(created_at) AS began FROM users JOIN predecessor_users ON user_id = id)
    SELECT EXISTS (${changedIn('audit_events')}) OR EXISTS (${changedIn('audit_staged')}) AS changed`,
}

const anyUser: Statement = { name: 'predecessor-any-user', text: 'SELECT FROM predecessor_users LIMIT 1' }

const userDigests: Statement = {
  name: 'predecessor-user-digests',
  text: 'SELECT user_id AS id, digest FROM predecessor_users WHERE user_id BETWEEN $1 AND $2',
}

const organizationDigests: Statement = {
  name: 'predecessor-organization-digests',
  text: 'SELECT organization_id AS id, digest FROM predecessor_organizations',
}

// No key of a name has a capital letter.
const freeNames: Statement = {
  name: 'predecessor-free-names',
  text: `UPDATE users SET username_key = 'MOVED ' || id, nickname_key = 'MOVED ' || id WHERE id = ANY($1::int[])`,
}

const ownOrganizations: Statement = {
  name: 'predecessor-own-organizations',
  text: `SELECT id FROM organizations WHERE id = ANY($1::int[])
    AND NOT EXISTS (SELECT FROM predecessor_organizations WHERE organization_id = id) ORDER BY id`,
}

const removeAnswers: Statement = {
  name: 'predecessor-remove-answers',
  text: `WITH unmatched AS (DELETE FROM unmatched_answers WHERE user_id = ANY($1::int[]))
    DELETE FROM answers WHERE user_id = ANY($1::int[])`,
}

const removeKeys: Statement = {
  name: 'predecessor-remove-keys',
  text: 'DELETE FROM provider_keys WHERE user_id = ANY($1::int[])',
}

const withKey: Statement = {
  name: 'predecessor-with-key',
  text: 'SELECT user_id AS id FROM provider_keys WHERE user_id = ANY($1::int[])',
}

const removeQuestions: Statement = {
  name: 'predecessor-remove-questions',
  text: `DELETE FROM questions WHERE NOT EXISTS (SELECT FROM answers) AND NOT EXISTS (SELECT FROM question_aliases)`,
}

const anyQuestion: Statement = { name: 'predecessor-any-question', text: 'SELECT FROM questions LIMIT 1' }

const putQuestion: Statement = {
  name: 'predecessor-put-question',
  text: `INSERT INTO questions (id, question, question_key, active) VALUES ($1, $2, $3, $4)
    ON CONFLICT (id) DO UPDATE SET question = $2, question_key = $3, active = $4`,
}

const advanceIds: Statement = {
  name: 'predecessor-advance-ids',
  text: `SELECT setval(s, greatest($2::bigint, coalesce(pg_sequence_last_value(s), 1)))
    FROM (SELECT pg_get_serial_sequence($1, 'id')::regclass AS s) sequence`,
}

/** Creates the writer of imports into a database. */
export function createPredecessor(database: Database): Predecessor {
  defineTable(database, 'predecessor_users', { userId: key(integer), digest: bytes })
  defineTable(database, 'predecessor_organizations', { organizationId: key(integer), digest: bytes })
  const digests = async (statement: Statement, values: unknown[], t?: Transaction) => {
    const rows = await database.run<{ id: number; digest: Buffer }>(statement, values, t)
    return new Map(rows.map(({ id, digest }) => [id, digest]))
  }
  const put = (row: MovedQuestion, t: Transaction) =>
    database.run(putQuestion, [row.id, row.question, row.questionKey, row.active], t)
  return {
    others: () => database.run(others, []),
    changed: async administratorId =>
      (await database.run<{ changed: boolean }>(changed, [changing, administratorId]))[0]!.changed,
    hasUsers: async () => (await database.run(anyUser, [])).length > 0,
    userDigests: (from, to) => digests(userDigests, [from, to]),
    ownOrganizations: async ids => (await database.run<{ id: number }>(ownOrganizations, [ids])).map(({ id }) => id),
    organizationDigests: t => digests(organizationDigests, [], t),
    async add(table, rows, t) {
      if (rows.length === 0) return
      const columns: readonly string[] = written[table]
      const lines = rows.map(row => copyLine(columns.map(column => (row as Record<string, CopyValue>)[column])))
      const copied = `COPY ${table} (${columns.join(', ')}) FROM STDIN`
      await database.copyIn(copied, chunksOf(lines), t)
    },
    async replace(table, row, t) {
      const columns: readonly string[] = written[table]
      const values = columns.map(column => (row as Record<string, CopyValue>)[column])
      const set = columns.slice(1).map((column, index) => `${column} = $${index + 2}`)
      const text = `UPDATE ${table} SET ${set.join(', ')} WHERE ${columns[0]} = $1`
      await database.run({ name: `predecessor-replace-${table}`, text }, values, t)
    },
    async freeNames(userIds, t) {
      await database.run(freeNames, [userIds], t)
    },
    async removeSecrets(userIds, providerIds, t) {
      await database.run(removeAnswers, [userIds], t)
      await database.run(removeKeys, [providerIds], t)
    },
    withProviderKey: async (userIds, t) =>
      new Set((await database.run<{ id: number }>(withKey, [userIds], t)).map(({ id }) => id)),
    async replaceQuestions(rows, t) {
      await database.run(removeQuestions, [], t)
      if ((await database.run(anyQuestion, [], t)).length > 0) return false
      for (const row of rows) await put(row, t)
      return true
    },
    async putQuestion(row, t) {
      await put(row, t)
    },
    async advanceIds(table, id, t) {
      if (id > 0) await database.run(advanceIds, [table, id], t)
    },
    async analyze() {
      const text = `ANALYZE ${Object.keys(written).join(', ')}, questions`
      await database.transact(t => database.run({ name: 'predecessor-analyze', text }, [], t), { unlimited: true })
    },
  }
}

/** Lines in chunks of some KB, which COPY sends one by one. */
async function* chunksOf(lines: readonly string[]): AsyncGenerator<Buffer> {
  for (let from = 0; from < lines.length; from += 100) yield Buffer.from(lines.slice(from, from + 100).join(''))
}
