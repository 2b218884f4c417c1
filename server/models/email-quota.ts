// The times at which e-mails of a quota were sent, for an account or a recipient. Limits apply to a sliding window.
import type { Database, Transaction } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** Maximum number of e-mails in a sliding window of `seconds`. */
interface EmailLimit {
  readonly max: number
  readonly seconds: number
}

/** Maximum seconds of a window. */
const maxWindow = 86_400

/** Counts e-mails. */
export type EmailQuotas = ReturnType<typeof createEmailQuotas>

/** The time at which a limit next permits an e-mail, for the row `q`. */
const permittedAt = sql`q.sent_at[cardinality(q.sent_at) - l.max + 1] + make_interval(secs => l.seconds)`

const given = (limits: readonly EmailLimit[]) =>
  sql`unnest(${limits.map(({ max }) => max)}::int[], ${limits.map(({ seconds }) => seconds)}::int[]) AS l (max, seconds)`

/** Creates the counts of e-mails in a database. */
export function createEmailQuotas(database: Database) {
  async function secondsUntil(subjects: readonly Buffer[], limits: readonly EmailLimit[], t?: Transaction) {
    const wait = sql('email-quota-wait')`
      SELECT max(extract(epoch FROM ${permittedAt} - clock_timestamp()))::float8 AS seconds
      FROM email_quotas q, ${given(limits)} WHERE q.subject = ANY(${subjects}::bytea[])`
    return (await first(database.run<{ seconds: number | null }>(wait, t)))!.seconds
  }

  return {
    /** Counts an e-mail if no limit is reached, and returns 0; otherwise returns the seconds until one is permitted. */
    async take(subject: Buffer, limits: readonly EmailLimit[], t: Transaction) {
      const take = sql('email-quota-take')`
        INSERT INTO email_quotas AS q (subject, sent_at) VALUES (${subject}, ARRAY[clock_timestamp()])
        ON CONFLICT (subject) DO UPDATE
          SET sent_at = (q.sent_at || clock_timestamp())[cardinality(q.sent_at) + 2 - (SELECT max(l.max) FROM ${given(limits)}):]
          WHERE NOT EXISTS (SELECT FROM ${given(limits)} WHERE ${permittedAt} > clock_timestamp())
        RETURNING 1`
      if ((await database.run(take, t)).length > 0) return 0
      // A separate statement: one that waited for another transaction still reads the snapshot from before that one.
      return Math.max(1, (await secondsUntil([subject], limits, t)) ?? 1)
    },
    /** Returns the seconds until an e-mail is permitted for each of the subjects; 0 if it is permitted now. */
    wait: async (subjects: readonly Buffer[], limits: readonly EmailLimit[], t?: Transaction) =>
      Math.max(0, (await secondsUntil(subjects, limits, t)) ?? 0),
    /** Forgets what was counted for subjects. */
    async clear(subjects: readonly Buffer[], t: Transaction) {
      await database.run(sql`DELETE FROM email_quotas WHERE subject = ANY(${subjects}::bytea[])`, t)
    },
    /** Deletes times that are outside every window. Skips locked rows. */
    async prune() {
      await database.runUnlimited(sql('email-quotas-prune')`
        DELETE FROM email_quotas WHERE subject IN (SELECT subject FROM email_quotas
        WHERE sent_at[cardinality(sent_at)] < clock_timestamp() - interval '${sql.text(maxWindow)} seconds' FOR UPDATE SKIP LOCKED)`)
    },
  }
}
