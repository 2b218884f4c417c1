// Ids that imports reserve for records of other systems (`keep_ids`). A reservation is stored first. Then the sequence is advanced
// beyond it, by `nextval` alone: it never goes back, whatever other processes do meanwhile. So a failure between both leaves
// ids that the next attempt can use, and never an id that two records get.
import { advisoryKeys } from '../database/advisory-keys.js'
import { defineTable, integer, key, text } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'

/** Records whose ids can be reserved. */
export type Numbered = 'organizations' | 'users'

/** How far beyond the highest id a reservation can reach, and how many ids it leaves to other records. */
const most = 10_000_000

/** Reserves ids. */
export interface ReservedIds {
  /**
   * Reserves the ids from the next one up to `highest`, and returns the highest id that could be reserved: if `highest` exceeds
   * it, nothing is reserved. Commit the transaction, and then call `advance`.
   */
  reserve(kind: Numbered, highest: number, t: Transaction): Promise<number>
  /** Advances the sequence to `highest`, and waits until no transaction holds an id up to it that isn't stored. */
  advance(kind: Numbered, highest: number): Promise<void>
  /** Lets one transaction at a time create records with their ids. */
  lock(kind: Numbered, t: Transaction): Promise<void>
  /**
   * Returns those of the ids that a new record can have, unless a record has them: reserved, and of no erased user. A dry run
   * reserves nothing, and counts ids that could be.
   */
  free(kind: Numbered, ids: readonly number[], of: { readonly dryRun: boolean }, t: Transaction): Promise<Set<number>>
}

/** The sequence of a kind, its last id, and the highest one that can be reserved. */
const given = `(SELECT s, last, least(last + ${most}, ${2 ** 31 - 1 - most})::int AS reach
  FROM (SELECT s, coalesce(pg_sequence_last_value(s), 0) AS last
    FROM (SELECT pg_get_serial_sequence($1::text, 'id')::regclass AS s) named) sequence) given`

const reserve: Statement = {
  name: 'reserved-ids-reserve',
  text: `WITH given AS MATERIALIZED (SELECT * FROM ${given}), reserved AS (
      INSERT INTO reserved_ids (kind, first, last) SELECT $1, last + 1, $2::int FROM given WHERE $2 > last AND $2 <= reach
      ON CONFLICT (kind, first) DO UPDATE SET last = greatest(reserved_ids.last, excluded.last)
    )
    SELECT reach FROM given`,
}

// Stops at the id, which other processes can reach meanwhile. The series is in a SELECT list, so PostgreSQL doesn't store it.
const advance: Statement = {
  name: 'reserved-ids-advance',
  slow: true,
  text: `SELECT FROM (
      SELECT nextval(s) AS id FROM (SELECT s, generate_series(1, $2::int - last) FROM ${given}) each
    ) drawn WHERE id >= $2 LIMIT 1`,
}

const lock: Statement = {
  name: 'reserved-ids-lock',
  text: `SELECT pg_advisory_xact_lock(${advisoryKeys.keptIds}, hashtext($1))`,
}

const free: Statement = {
  name: 'reserved-ids-free',
  text: `SELECT id FROM unnest($2::int[]) AS chosen (id), ${given}
    WHERE CASE WHEN id <= last THEN EXISTS (SELECT FROM reserved_ids r WHERE r.kind = $1 AND id BETWEEN r.first AND r.last)
        ELSE $3 AND id <= reach END
      AND NOT ($1 = 'users' AND EXISTS (SELECT FROM erased_users e WHERE e.id = chosen.id))`,
}

/** Creates the reserved ids of a database. */
export function createReservedIds(database: Database): ReservedIds {
  defineTable(database, 'reserved_ids', { kind: key(text), first: key(integer), last: integer })
  defineTable(database, 'erased_users', { id: key(integer) })
  return {
    reserve: async (kind, highest, t) => (await database.run<{ reach: number }>(reserve, [kind, highest], t))[0]!.reach,
    async advance(kind, highest) {
      await database.run(advance, [kind, highest])
      // An INSERT locks its table before it draws an id. So this lock, which is released at once, waits for those that hold one.
      const text = `LOCK TABLE ${kind} IN SHARE ROW EXCLUSIVE MODE`
      await database.transact(t => database.run({ name: `reserved-ids-await-${kind}`, text }, [], t))
    },
    async lock(kind, t) {
      await database.run(lock, [kind], t)
    },
    async free(kind, ids, { dryRun }, t) {
      const rows = await database.run<{ id: number }>(free, [kind, ids, dryRun], t)
      return new Set(rows.map(({ id }) => id))
    },
  }
}
