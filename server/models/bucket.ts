// Leaky buckets that count the recent operations of client addresses, shared by all replicas.
import type { Database, Transaction } from '../database/database.js'
import { sql } from '../database/sql.js'

/** Capacity of a bucket in operations, and the operations that drain from it per second. */
export interface BucketLimit {
  readonly capacity: number
  readonly perSecond: number
}

/** A part that stops waiting for the disk: a crash of PostgreSQL loses at most the counts of the last second. */
export const relaxed = sql`relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))`

/** The present level of the bucket `b`. If its time lies ahead, because the clock was set back, no time has passed. */
export const bucketLevel = ({ perSecond }: BucketLimit) =>
  sql`greatest(0, b.level - greatest(0, extract(epoch FROM clock_timestamp() - b.updated_at)) * ${perSecond}::float8)::float8`

/** A part that adds an operation to a bucket, if a condition holds, and returns the level, which may exceed the capacity. */
export const addToBucket = (subject: Buffer, limit: BucketLimit, condition = sql`true`, unless = sql`true`) => sql`
  INSERT INTO buckets AS b (subject, level, updated_at) SELECT ${subject}::bytea, 1, clock_timestamp() WHERE ${condition}
  ON CONFLICT (subject) DO UPDATE SET level = ${bucketLevel(limit)} + 1, updated_at = clock_timestamp() WHERE ${unless}
  RETURNING level`

/** The buckets of client addresses. */
export type Buckets = ReturnType<typeof createBuckets>

/** Creates the buckets in a database. */
export function createBuckets(database: Database) {
  const isRelaxed = sql`EXISTS (SELECT FROM relaxed)`
  return {
    /** Adds an operation unless the bucket would overflow. Returns the new level, and whether the operation was added. */
    async take(subject: Buffer, limit: BucketLimit) {
      const level = bucketLevel(limit)
      const [row] = await database.run<{ level: number; taken: boolean }>(sql('bucket-take')`
        WITH ${relaxed}, taken AS (
          ${addToBucket(subject, limit, isRelaxed, sql`${level} + 1 <= ${limit.capacity}::float8`)}
        )
        SELECT coalesce((SELECT level FROM taken), (SELECT ${level} FROM buckets b WHERE subject = ${subject}),
          ${limit.capacity})::float8 AS level, EXISTS (SELECT FROM taken) AS taken`)
      return row!
    },
    /** Adds an operation, and returns the new level, which may exceed the capacity. */
    async add(subject: Buffer, limit: BucketLimit): Promise<number> {
      const query = sql('bucket-add')`WITH ${relaxed} ${addToBucket(subject, limit, isRelaxed)}`
      return (await database.run<{ level: number }>(query))[0]!.level
    },
    /** Removes an operation, if the bucket isn't empty, and returns the new level. */
    async refund(subject: Buffer, limit: BucketLimit): Promise<number> {
      const [row] = await database.run<{ level: number }>(sql('bucket-refund')`WITH ${relaxed}
        UPDATE buckets b SET level = greatest(0, ${bucketLevel(limit)} - 1), updated_at = clock_timestamp()
        FROM relaxed WHERE subject = ${subject} RETURNING level`)
      return row?.level ?? 0
    },
    /** Returns the level. */
    async read(subject: Buffer, limit: BucketLimit): Promise<number> {
      const query = sql('bucket-read')`SELECT ${bucketLevel(limit)} AS level FROM buckets b WHERE subject = ${subject}`
      return (await database.read<{ level: number }>(query))[0]?.level ?? 0
    },
    /** Empties buckets, and returns the number of those that weren't empty. */
    async clear(subjects: readonly Buffer[], t?: Transaction): Promise<number> {
      const query = sql('bucket-clear')`DELETE FROM buckets WHERE subject = ANY(${subjects}::bytea[]) RETURNING 1`
      return (await database.run(query, t)).length
    },
    /** Deletes buckets that have been empty for hours: a full one drains within 3. Skips locked rows. */
    async prune(): Promise<void> {
      await database.runUnlimited(sql('buckets-prune')`DELETE FROM buckets WHERE subject IN (SELECT subject FROM buckets
        WHERE updated_at < clock_timestamp() - interval '3 hours' FOR UPDATE SKIP LOCKED)`)
    },
  }
}
