// What imports from the database of the older implementation know of earlier ones: users and organizations keep a digest of the
// row there that they were imported from. server/predecessor/ reads and judges the rows.
import type { Database, Transaction } from '../database/database.js'
import { sql } from '../database/sql.js'
import { auditActions } from '../policy/audit-actions.js'

/** Kind of the object of events by which imports change users, before the id of the import. */
export const importObject = 'predecessor-import'

/** Actions on users that don't change what an import would write. */
const harmless = ['ask-email', 'export', 'export-own', 'send-activation-key', 'send-key', 'show-key', 'unlock']
const changing = auditActions.filter(action => /^user\./.test(action) && !harmless.includes(action.slice(5)))

/** Tables whose ids imports keep. */
type Numbered = 'users' | 'organizations' | 'questions' | 'provider_keys'

/** Creates what imports from the database of the older implementation need of a database. */
export function createPredecessor(database: Database) {
  return {
    /**
     * Returns the users that no import made: of a registry that can be moved into, at most the default administrator. Returns
     * at most two.
     */
    others: () =>
      database.runUnlimited<{ id: number; username: string; usernameKey: string; role: string }>(
        sql`SELECT id, username, username_key AS "usernameKey", role FROM users WHERE predecessor_digest IS NULL LIMIT 2`,
      ),

    /** Whether users were added, changed or erased here since the first import, except this one, and except by imports. */
    async changed(administratorId: number): Promise<boolean> {
      const changedIn = (table: string) => sql`EXISTS (SELECT FROM ${sql.text(table)}, since
        WHERE at >= began AND outcome = 'ok' AND action = ANY(${changing}) AND subject_id IS DISTINCT FROM ${administratorId}::int
          AND coalesce(object, '') NOT LIKE ${`${importObject}:%`}::text)`
      const [found] = await database.runUnlimited<{ changed: boolean }>(
        sql`WITH since AS MATERIALIZED (SELECT min(created_at) AS began FROM users WHERE predecessor_digest IS NOT NULL)
          SELECT ${changedIn('audit_events')} OR ${changedIn('audit_staged')} AS changed`,
      )
      return found!.changed
    },

    /** Returns the digests of records with these ids: null for one that no import made. */
    async digests(of: 'users' | 'organizations', ids: readonly number[], t?: Transaction) {
      const query = sql`SELECT id, predecessor_digest AS digest FROM ${sql.text(of)} WHERE id = ANY(${ids}::int[])`
      const rows = await database.run<{ id: number; digest: string | null }>(query, t)
      return new Map(rows.map(({ id, digest }) => [id, digest]))
    },

    /**
     * Takes the keys of names from imported users that have some of these, and returns their ids. A later batch of the same
     * import gives them others; the empty digest makes it do so. No key of a name has a capital letter.
     */
    async freeNames(names: readonly { readonly usernameKey: string; readonly nicknameKey: string }[], t: Transaction) {
      const [usernames, nicknames] = [names.map(each => each.usernameKey), names.map(each => each.nicknameKey)]
      const free = sql`UPDATE users SET username_key = 'MOVED ' || id, nickname_key = 'MOVED ' || id, predecessor_digest = ''
        WHERE (username_key = ANY(${usernames}::text[]) OR nickname_key = ANY(${nicknames}::text[]))
          AND predecessor_digest IS NOT NULL RETURNING id`
      return (await database.run<{ id: number }>(free, t)).map(({ id }) => id)
    },

    /** Adds and changes questions, and returns how many. Until users were imported, replaces those of the installation. */
    async putQuestions(rows: readonly { readonly id: number; readonly question: string }[], t: Transaction) {
      const state = sql`SELECT NOT EXISTS (SELECT FROM users WHERE predecessor_digest IS NOT NULL) AS "isFirst",
        EXISTS (SELECT FROM answers) OR EXISTS (SELECT FROM question_aliases) AS "isUsed"`
      const [{ isFirst, isUsed } = {}] = await database.run<Partial<Record<'isFirst' | 'isUsed', boolean>>>(state, t)
      if (isFirst && isUsed)
        throw new Error('Answers refer to security questions of this registry: import into a newly installed one.')
      if (isFirst) await database.run(sql`DELETE FROM questions`, t)
      const put = sql`INSERT INTO questions AS q (id, question, question_key, active)
        SELECT id, question, "questionKey", active
          FROM jsonb_to_recordset(${JSON.stringify(rows)}) AS r (id int, question text, "questionKey" text, active boolean)
        ON CONFLICT (id) DO UPDATE
          SET question = excluded.question, question_key = excluded.question_key, active = excluded.active
          WHERE (q.question, q.active) IS DISTINCT FROM (excluded.question, excluded.active)
        RETURNING 1`
      return (await database.run(put, t)).length
    },

    /** Makes the next ids of each table greater than the given one. */
    async advanceIds(last: Readonly<Record<Numbered, number>>, t: Transaction): Promise<void> {
      const advance = sql`SELECT setval(s, greatest(last::bigint, coalesce(pg_sequence_last_value(s), 1)))
        FROM jsonb_each_text(${JSON.stringify(last)}::jsonb) AS of ("table", last),
          LATERAL (SELECT pg_get_serial_sequence("table", 'id')::regclass AS s) sequence
        WHERE last::bigint > 0`
      await database.run(advance, t)
    },

    /** Updates the statistics of the tables that an import fills. */
    analyze: () =>
      database.runUnlimited(sql`ANALYZE users, provider_keys, answers, unmatched_answers, organizations, questions`),
  }
}
