// Leaky buckets that count the recent operations of client addresses, shared by all replicas.
import { attribute, bytes, defineTable, key, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'

/** Capacity of a bucket in operations, and the operations that drain from it per second. */
export interface BucketLimit {
  readonly capacity: number
  readonly perSecond: number
}

/** The buckets of client addresses. */
export interface Buckets {
  /** Adds an operation unless the bucket would overflow. Returns the new level, and whether the operation was added. */
  take(subject: Buffer, limit: BucketLimit): Promise<{ level: number; taken: boolean }>
  /** Adds an operation, and returns the new level, which may exceed the capacity. */
  add(subject: Buffer, limit: BucketLimit): Promise<number>
  /** Removes an operation, if the bucket isn't empty, and returns the new level. */
  refund(subject: Buffer, limit: BucketLimit): Promise<number>
  /** Returns the level. */
  read(subject: Buffer, limit: BucketLimit): Promise<number>
  /** Empties buckets, and returns the number of those that weren't empty. */
  clear(counterKeys: readonly Buffer[], t?: Transaction): Promise<number>
  /** Deletes buckets that have been empty for hours. */
  prune(): Promise<void>
}

const currentLevel = (table: string) =>
  `greatest(0, ${table}.level - extract(epoch FROM clock_timestamp() - ${table}.updated_at) * $2)`

const upsert = (condition: string) => `INSERT INTO buckets AS b (subject, level, updated_at)
    SELECT $1, 1, clock_timestamp() FROM relaxed
    ON CONFLICT (subject) DO UPDATE SET level = ${currentLevel('b')} + 1, updated_at = clock_timestamp() ${condition}
    RETURNING level`

const relaxed = `WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))`

const add: Statement = { name: 'bucket-add', text: `${relaxed} ${upsert('')}` }

const take: Statement = {
  name: 'bucket-take',
  text: `${relaxed}, taken AS (${upsert(`WHERE ${currentLevel('b')} + 1 <= $3`)})
    SELECT coalesce((SELECT level FROM taken), (SELECT ${currentLevel('buckets')} FROM buckets WHERE subject = $1), $3)::float8 AS level,
      EXISTS (SELECT FROM taken) AS taken`,
}

const refund: Statement = {
  name: 'bucket-refund',
  text: `${relaxed} UPDATE buckets SET level = greatest(0, ${currentLevel('buckets')} - 1), updated_at = clock_timestamp()
    FROM relaxed WHERE subject = $1 RETURNING level`,
}

const read: Statement = {
  name: 'bucket-read',
  text: `SELECT ${currentLevel('buckets')}::float8 AS level FROM buckets WHERE subject = $1`,
}

const clear: Statement = {
  name: 'bucket-clear',
  text: 'DELETE FROM buckets WHERE subject = ANY($1::bytea[]) RETURNING 1',
}

// A full bucket drains within 3 hours. Locked rows are skipped.
const prune: Statement = {
  name: 'buckets-prune',
  slow: true,
  text: `DELETE FROM buckets WHERE subject IN (SELECT subject FROM buckets
    WHERE updated_at < clock_timestamp() - interval '3 hours' FOR UPDATE SKIP LOCKED)`,
}

/** Creates the buckets in a database. */
export function createBuckets(database: Database): Buckets {
  defineTable(database, 'buckets', { subject: key(bytes), level: attribute<number>('DOUBLE'), updatedAt: time })
  return {
    async take(subject, { capacity, perSecond }) {
      return (await database.run<{ level: number; taken: boolean }>(take, [subject, perSecond, capacity]))[0]!
    },
    add: async (subject, { perSecond }) => (await database.run<{ level: number }>(add, [subject, perSecond]))[0]!.level,
    refund: async (subject, { perSecond }) =>
      (await database.run<{ level: number }>(refund, [subject, perSecond]))[0]?.level ?? 0,
    read: async (subject, { perSecond }) =>
      (await database.read<{ level: number }>(read, [subject, perSecond]))[0]?.level ?? 0,
    clear: async (counterKeys, transaction) => (await database.run(clear, [counterKeys], transaction)).length,
    async prune() {
      await database.run(prune, [])
    },
  }
}
