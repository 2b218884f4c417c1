// Ids that imports reserve for records of other systems (`keep_ids`). A reservation is stored first. Then the sequence is advanced
// beyond it, by `nextval` alone: it never goes back, whatever other processes do meanwhile. So a failure between both leaves
// ids that the next attempt can use, and never an id that two records get.
import { advisoryKeys } from '../database/advisory-keys.js'
import type { Database, Transaction } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** Records whose ids can be reserved. */
type Numbered = 'organizations' | 'users'

/** How far beyond the highest id a reservation can reach, and how many ids it leaves to other records. */
const most = 10_000_000

/** The sequence of a kind, its last id, and the highest one that can be reserved. */
const given = (
  kind: Numbered,
) => sql`(SELECT s, last, least(last + ${most}::int, ${2 ** 31 - 1 - most}::int)::int AS reach
  FROM (SELECT s, coalesce(pg_sequence_last_value(s), 0) AS last
    FROM (SELECT pg_get_serial_sequence(${kind}::text, 'id')::regclass AS s) named) sequence) given`

/** Creates the reserved ids of a database. */
export function createReservedIds(database: Database) {
  return {
    /**
     * Reserves the ids from the next one up to `highest`, and returns the highest id that could be reserved: if `highest` exceeds
     * it, nothing is reserved. Commit the transaction, and then call `advance`.
     */
    async reserve(kind: Numbered, highest: number, t: Transaction) {
      const reserve = sql('reserved-ids-reserve')`
        WITH given AS MATERIALIZED (SELECT * FROM ${given(kind)}), reserved AS (
          INSERT INTO reserved_ids (kind, first, last)
          SELECT ${kind}, last + 1, ${highest}::int FROM given WHERE ${highest}::int > last AND ${highest}::int <= reach
          ON CONFLICT (kind, first) DO UPDATE SET last = greatest(reserved_ids.last, excluded.last)
        )
        SELECT reach FROM given`
      return (await first(database.run<{ reach: number }>(reserve, t)))!.reach
    },
    /**
     * Advances the sequence to `highest`, at which it stops: other processes can reach it meanwhile. Waits until no transaction holds an id
     * up to it that isn't stored.
     */
    async advance(kind: Numbered, highest: number) {
      // The series is in a SELECT list, so PostgreSQL doesn't store it.
      await database.runUnlimited(sql`
        SELECT FROM (
          SELECT nextval(s) AS id FROM (SELECT s, generate_series(1, ${highest}::int - last) FROM ${given(kind)}) each
        ) drawn WHERE id >= ${highest} LIMIT 1`)
      // An INSERT locks its table before it draws an id. So this lock, which is released at once, waits for those that hold one.
      await database.transact(t => database.run(sql`LOCK TABLE ${sql.text(kind)} IN SHARE ROW EXCLUSIVE MODE`, t))
    },
    /** Lets one transaction at a time create records with their ids. */
    async lock(kind: Numbered, t: Transaction) {
      const lock = sql('reserved-ids-lock')`
        SELECT pg_advisory_xact_lock(${sql.text(advisoryKeys.keptIds)}, hashtext(${kind}))`
      await database.run(lock, t)
    },
    /**
     * Returns those of the ids that a new record can have, unless a record has them: reserved, and of no record that is gone. A
     * dry run reserves nothing, and counts ids that could be.
     */
    async free(kind: Numbered, ids: readonly number[], { dryRun }: { readonly dryRun: boolean }, t: Transaction) {
      const free = sql('reserved-ids-free')`
        SELECT id FROM unnest(${ids}::int[]) AS chosen (id), ${given(kind)}
        WHERE CASE WHEN id <= last THEN EXISTS (SELECT FROM reserved_ids r WHERE r.kind = ${kind} AND id BETWEEN r.first AND r.last)
            ELSE ${dryRun}::boolean AND id <= reach END
          AND NOT EXISTS (SELECT FROM spent_ids e WHERE e.kind = ${kind} AND e.id = chosen.id)`
      const rows = await database.run<{ id: number }>(free, t)
      return new Set(rows.map(({ id }) => id))
    },
  }
}
