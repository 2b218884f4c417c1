// What imports from the database of the older implementation know of earlier ones: a digest of each row there, beside the record
// that it became. server/predecessor/ reads and judges the rows.
import type { Database, Transaction } from '../database/connection.js'
import { sql } from '../database/sql.js'
import { auditActions } from '../policy/audit-actions.js'

/** Kind of the object of events by which imports change users, before the id of the import. */
export const importObject = 'predecessor-import'

/** Actions on users that don't change what an import would write. */
const harmless = ['ask-email', 'export', 'export-own', 'send-activation-key', 'send-key', 'show-key', 'unlock']
const changing = auditActions.filter(action => /^user\./.test(action) && !harmless.includes(action.slice(5)))

/** Tables whose ids imports keep. */
const numbered = ['users', 'organizations', 'questions', 'provider_keys'] as const

/** Creates what imports from the database of the older implementation leave in a database. */
export function createPredecessor(database: Database) {
  const kinds = {
    users: { table: sql.text('predecessor_users'), id: sql.text('user_id') },
    organizations: { table: sql.text('predecessor_organizations'), id: sql.text('organization_id') },
  } as const
  return {
    /**
     * Returns the users that no import made: of a registry that can be moved into, at most the default administrator. Returns
     * at most two.
     */
    others: () =>
      database.runUnlimited<{ id: number; username: string; usernameKey: string; role: string }>(
        sql`SELECT id, username, username_key AS "usernameKey", role FROM users u
          WHERE NOT EXISTS (SELECT FROM predecessor_users p WHERE p.user_id = u.id) LIMIT 2`,
      ),

    /** Whether users were added, changed or erased here since the first import, except this one, and except by imports. */
    async changed(administratorId: number): Promise<boolean> {
      const changedIn = (table: string) => sql`EXISTS (SELECT FROM ${sql.text(table)}, since
        WHERE at >= began AND outcome = 'ok' AND action = ANY(${changing}) AND subject_id IS DISTINCT FROM ${administratorId}::int
          AND coalesce(object, '') NOT LIKE ${`${importObject}:%`}::text)`
      const [found] = await database.runUnlimited<{ changed: boolean }>(
        sql`WITH since AS MATERIALIZED (SELECT min(created_at) AS began FROM users JOIN predecessor_users ON user_id = id)
          SELECT ${changedIn('audit_events')} OR ${changedIn('audit_staged')} AS changed`,
      )
      return found!.changed
    },

    /** Whether any user was imported. */
    hasUsers: async () => (await database.run(sql`SELECT FROM predecessor_users LIMIT 1`)).length > 0,

    /** Returns the digests of imported records with ids between two, both inclusive. */
    async digests(of: keyof typeof kinds, from: number, to: number, t?: Transaction): Promise<Map<number, Buffer>> {
      const { table, id } = kinds[of]
      const query = sql`SELECT ${id} AS id, digest FROM ${table} WHERE ${id} BETWEEN ${from} AND ${to}`
      const rows = await database.run<{ id: number; digest: Buffer }>(query, t)
      return new Map(rows.map(({ id, digest }) => [id, digest]))
    },

    /** Notes the digests of records, new or changed. */
    async note(of: keyof typeof kinds, rows: readonly { id: number; digest: Buffer }[], t: Transaction): Promise<void> {
      const { table, id } = kinds[of]
      const [ids, digests] = [rows.map(({ id }) => id), rows.map(({ digest }) => digest)]
      const query = sql`INSERT INTO ${table} (${id}, digest) SELECT * FROM unnest(${ids}::int[], ${digests}::bytea[])
        ON CONFLICT (${id}) DO UPDATE SET digest = excluded.digest`
      await database.run(query, t)
    },

    /** Returns which of the ids belong to organizations here that no import made. */
    async ownOrganizations(ids: readonly number[]): Promise<number[]> {
      const query = sql`SELECT id FROM organizations WHERE id = ANY(${ids}::int[])
        AND NOT EXISTS (SELECT FROM predecessor_organizations WHERE organization_id = id) ORDER BY id`
      const rows = await database.run<{ id: number }>(query)
      return rows.map(({ id }) => id)
    },

    /** Takes the keys of names from users that get others in the same import: no key of a name has a capital letter. */
    async freeNames(userIds: readonly number[], t: Transaction): Promise<void> {
      const query = sql`UPDATE users SET username_key = 'MOVED ' || id, nickname_key = 'MOVED ' || id WHERE id = ANY(${userIds}::int[])`
      await database.run(query, t)
    },

    /** Adds or changes questions. To replace all, returns false, and changes nothing, if answers refer to some. */
    async putQuestions(
      rows: readonly { id: number; question: string; questionKey: string; active: boolean }[],
      { replaces }: { readonly replaces: boolean },
      t: Transaction,
    ): Promise<boolean> {
      if (replaces) {
        const unused = sql`NOT EXISTS (SELECT FROM answers) AND NOT EXISTS (SELECT FROM question_aliases)`
        await database.run(sql`DELETE FROM questions WHERE ${unused}`, t)
        if ((await database.run(sql`SELECT FROM questions LIMIT 1`, t)).length > 0) return false
      }
      for (const { id, question, questionKey, active } of rows) {
        const put = sql`INSERT INTO questions (id, question, question_key, active) VALUES (${id}, ${question}, ${questionKey}, ${active})
          ON CONFLICT (id) DO UPDATE SET question = ${question}, question_key = ${questionKey}, active = ${active}`
        await database.run(put, t)
      }
      return true
    },

    /** Makes the next ids of each table greater than the given one. */
    async advanceIds(last: Readonly<Record<(typeof numbered)[number], number>>, t: Transaction): Promise<void> {
      for (const table of numbered) {
        const advance = sql`SELECT setval(s, greatest(${last[table]}::bigint, coalesce(pg_sequence_last_value(s), 1)))
          FROM (SELECT pg_get_serial_sequence(${table}, 'id')::regclass AS s) sequence WHERE ${last[table]}::bigint > 0`
        await database.run(advance, t)
      }
    },

    /** Updates the statistics of the tables that an import fills. */
    async analyze(): Promise<void> {
      await database.runUnlimited(
        sql`ANALYZE users, provider_keys, answers, unmatched_answers, predecessor_users, organizations, questions`,
      )
    },
  }
}
