// The clock of the database, by which all replicas measure. It can be set. Each process records it while it runs, so that the
// next record finds that it leapt, even between two runs.
import type { Database } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { codeLimits, lockout } from '../policy/limits.js'
import { rotateAfter } from './id-token-key.js'
import { validity } from './mailed-key.js'
import { longestVerification, publishLead } from './signing-key.js'

/** Seconds of a leap from which on ages are in doubt, and seconds of running for which they stay so. */
const [leap, doubt] = [3_600, 86_400]

/** Maximum seconds between two records that count as running. */
const mostBetween = 15

/** A time that was reached already, when the clock was ahead. */
const present = 0

/**
 * How far ahead a time can lie that was set by the clock, in seconds as SQL: nothing outlasts its own length. Absent are the
 * times of the audit log, which are sealed, those that nothing waits for, and those that administrators choose.
 */
const longest: Readonly<Record<string, Readonly<Record<string, number | string>>>> = {
  users: {
    ...{ created_at: present, unactivated_seen_at: present, password_updated_at: present, deleted_at: present },
    // The next whole second, with which sessions can begin.
    recovery_from: '1 - extract(epoch FROM now()) % 1',
  },
  former_usernames: { reserved_until: 30 * 86_400 },
  answers: { next_counts_at: 86_400 },
  // The lease of an attempt. A held notice is decided on again.
  emails: { created_at: present, next_attempt_at: 90 },
  sent_emails: { created_at: present, sent_at: present },
  mailed_keys: {
    expires_at: `CASE purpose WHEN 'activation' THEN ${validity.activation} WHEN 'issued' THEN ${validity.issued}
      ELSE ${validity.recovery} END`,
    former_expires_at: validity.recovery,
  },
  attempts: { window_ends: lockout.seconds, in_flight_until: 30 },
  buckets: { updated_at: present },
  known_addresses: { seen_at: present },
  refreshed_sessions: { issued_at: present },
  id_token_keys: { signs_at: rotateAfter },
  signing_keys: { signs_at: publishLead, verifies_until: longestVerification },
  totp_secrets: { window_ends: codeLimits.window.seconds, day_ends: codeLimits.day.seconds, locked_at: present },
}

/** Statements that bring back the times that lie further ahead. */
const setBack: readonly Query[] = [
  ...Object.entries(longest).map(([table, columns]) => {
    const limits = Object.entries(columns).map(([name, seconds]) => [name, `now() + make_interval(secs => ${seconds})`])
    const set = limits.map(([name, limit]) => `${name} = CASE WHEN ${name} > ${limit} THEN ${limit} ELSE ${name} END`)
    const ahead = limits.map(([name, limit]) => `${name} > ${limit}`)
    return sql.text(`UPDATE ${table} SET ${set.join(', ')} WHERE ${ahead.join(' OR ')} RETURNING 1`)
  }),
  sql`UPDATE email_quotas SET sent_at = ARRAY(SELECT least(at, now()) FROM unnest(sent_at) AS at ORDER BY 1)
    WHERE now() < ANY (sent_at) RETURNING 1`,
  // The step of the last code that was used (RFC 6238).
  sql`UPDATE totp_secrets SET last_step = step FROM (SELECT extract(epoch FROM now())::bigint / 30 + 1 AS step) present
    WHERE last_step > step RETURNING 1`,
]

/** Creates the record in a database. */
export function createClockRecord(database: Database) {
  return {
    /**
     * Records the present time. `elapsed`: seconds since this process last did, by its own clock; absent at its start. If the clock
     * was set back, or was never recorded, times that lie too far ahead are brought back: locks and waits begin again. Returns the
     * seconds of a leap, or of a time without a process, and the number of times that were brought back.
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
              -- Of processes that start a registry at once, only the first finds no former record and makes one.
              ON CONFLICT (single) DO UPDATE SET seen_at = excluded.seen_at, doubted_for = coalesce((
                SELECT CASE WHEN leapt IS NOT NULL AND (doubted_for = 0 OR ${elapsed}::float8 IS NOT NULL) THEN ${doubt}
                  ELSE greatest(0, doubted_for - least(greatest(passed, 0), ${mostBetween})) END
                FROM former), clock.doubted_for)
            )
            SELECT passed, leapt FROM former`
          const former = await first(database.run<{ passed: number; leapt: number | null }>(beat, t))
          let broughtBack = 0
          // Not at each start: this reads every user.
          if (!former || former.passed < -1)
            for (const query of setBack) broughtBack += (await database.run(query, t)).length
          return { leapt: former?.leapt ?? undefined, broughtBack }
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
