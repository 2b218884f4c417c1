// The clock of the database, by which all replicas measure. It can be set. Each process records it while it runs, so that the
// next record finds that it leapt, even between two runs.
import type { Database, Transaction } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { lockout } from '../policy/limits.js'
import { validity } from './mailed-key.js'
import { longestVerification, publishLead } from './signing-key.js'
import { codeLimits } from './totp-secret.js'

/** Seconds of a leap from which on ages are in doubt, and seconds of running for which they stay so. */
const [leap, doubt] = [3_600, 86_400]

/** Maximum seconds between two records that count as running. */
const mostBetween = 15

/**
 * How far ahead the times of each table can lie, in seconds as SQL: nothing outlasts its own length. Absent are the times of
 * the audit log, which are sealed, and those that administrators choose.
 */
const longest: Readonly<Record<string, Readonly<Record<string, number | string>>>> = {
  users: { created_at: 0, activated_at: 0, unactivated_seen_at: 0, password_updated_at: 0, deleted_at: 0 },
  former_usernames: { reserved_until: 30 * 86_400 },
  answers: { next_counts_at: 86_400 },
  // The lease of an attempt. A held notice is decided on again.
  emails: { created_at: 0, next_attempt_at: 90 },
  mailed_keys: {
    expires_at: `CASE purpose WHEN 'activation' THEN ${validity.activation} ELSE ${validity.recovery} END`,
  },
  attempts: { window_ends: lockout.seconds, in_flight_until: 30 },
  buckets: { updated_at: 0 },
  known_addresses: { seen_at: 0 },
  signing_keys: { created_at: 0, signs_at: publishLead, verifies_until: longestVerification },
  totp_secrets: { window_ends: codeLimits.window.seconds, day_ends: codeLimits.day.seconds, locked_at: 0 },
  processes: { seen_at: 0 },
  data_keys: { created_at: 0 },
  services: { created_at: 0 },
  service_keys: { created_at: 0 },
  imports: { created_at: 0, updated_at: 0 },
}

/** For each table a statement that brings back the times that lie further ahead. */
const setBack: readonly (readonly [table: string, Query])[] = [
  ...Object.entries(longest).map(([table, columns]) => {
    const limits = Object.entries(columns).map(([name, seconds]) => [name, `now() + make_interval(secs => ${seconds})`])
    const set = limits.map(([name, limit]) => `${name} = CASE WHEN ${name} > ${limit} THEN ${limit} ELSE ${name} END`)
    const ahead = limits.map(([name, limit]) => `${name} > ${limit}`)
    return [table, sql.text(`UPDATE ${table} SET ${set.join(', ')} WHERE ${ahead.join(' OR ')} RETURNING 1`)] as const
  }),
  [
    'email_quotas',
    sql`UPDATE email_quotas SET sent_at = ARRAY(SELECT least(at, now()) FROM unnest(sent_at) AS at ORDER BY 1)
      WHERE now() < ANY (sent_at) RETURNING 1`,
  ],
  [
    'totp_secrets',
    sql`UPDATE totp_secrets SET last_step = step FROM (SELECT extract(epoch FROM now())::bigint / 30 + 1 AS step) present
      WHERE last_step > step RETURNING 1`,
  ],
]

/** The record of the clock. */
export type ClockRecord = ReturnType<typeof createClockRecord>

/** Creates the record in a database. */
export function createClockRecord(database: Database) {
  const bringBack = async (t: Transaction) => {
    const changed: string[] = []
    for (const [table, query] of setBack) if ((await database.run(query, t)).length > 0) changed.push(table)
    return changed
  }
  return {
    /**
     * Records the present time. `elapsed`: seconds since this process last did, by its own clock; absent at the first time, when it
     * can't tell a leap from a time without a process. If the clock was set back, what lies ahead of it becomes its present: locks
     * and waits begin again. Returns the seconds of a leap, and the tables whose times were ahead.
     */
    beat: (elapsed?: number) =>
      database.transact(
        async t => {
          const beat = sql('clock-beat')`
            WITH former AS (
              SELECT doubted_for, passed, CASE WHEN passed NOT BETWEEN -1 * ${leap}::int AND ${leap} + coalesce(${elapsed}::float8, 0)
                THEN passed END AS leapt
              FROM (SELECT *, extract(epoch FROM clock_timestamp() - seen_at)::float8 AS passed FROM clock FOR UPDATE) seen
            ), beat AS (
              INSERT INTO clock (seen_at) VALUES (clock_timestamp())
              ON CONFLICT (single) DO UPDATE SET seen_at = excluded.seen_at, doubted_for = (
                SELECT CASE WHEN leapt IS NOT NULL AND (doubted_for = 0 OR ${elapsed}::float8 IS NOT NULL) THEN ${doubt}
                  ELSE greatest(0, doubted_for - least(greatest(passed, 0), ${mostBetween})) END
                FROM former)
            )
            SELECT passed, leapt FROM former`
          const former = await first(database.run<{ passed: number; leapt: number | null }>(beat, t))
          const isBack = !former || former.passed < -1
          return { leapt: former?.leapt ?? undefined, broughtBack: isBack ? await bringBack(t) : [] }
        },
        { unlimited: true },
      ),
    /**
     * Returns for how many seconds of running nothing is deleted by age, because the clock leapt by more than an hour, or no process
     * ran for that long; 0 when ages can be believed.
     */
    async doubt() {
      const read = sql('clock-doubt')`
        SELECT CASE WHEN abs(extract(epoch FROM clock_timestamp() - seen_at)) > ${leap} THEN ${doubt} ELSE doubted_for END::float8
          AS seconds FROM clock`
      return (await first(database.read<{ seconds: number }>(read)))?.seconds ?? 0
    },
  }
}
