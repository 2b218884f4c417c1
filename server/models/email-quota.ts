// The times at which e-mails of a quota were sent, for an account or a recipient. Limits apply to a sliding window.
import { attribute, bytes, defineTable, key } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'

/** Maximum number of e-mails in a sliding window of `seconds`. */
export interface EmailLimit {
  readonly max: number
  readonly seconds: number
}

/** Maximum seconds of a window. */
const maxWindow = 86_400

/** Counts e-mails. */
export interface EmailQuotas {
  /** Counts an e-mail if no limit is reached, and returns 0; otherwise returns the seconds until one is permitted. */
  take(subject: Buffer, limits: readonly EmailLimit[], t: Transaction): Promise<number>
  /** Returns the seconds until an e-mail is permitted; 0 if it is permitted now. */
  wait(subject: Buffer, limits: readonly EmailLimit[]): Promise<number>
  /** Deletes times that are outside every window. */
  prune(): Promise<void>
}

/** SQL: the time at which a limit next permits an e-mail, for the row `q`. */
const permittedAt = 'q.sent_at[cardinality(q.sent_at) - l.max + 1] + make_interval(secs => l.seconds)'
const given = 'unnest($2::int[], $3::int[]) AS l (max, seconds)'

const take: Statement = {
  name: 'email-quota-take',
  text: `INSERT INTO email_quotas AS q (subject, sent_at) VALUES ($1, ARRAY[clock_timestamp()])
    ON CONFLICT (subject) DO UPDATE
      SET sent_at = (q.sent_at || clock_timestamp())[cardinality(q.sent_at) + 2 - (SELECT max(l.max) FROM ${given}):]
      WHERE NOT EXISTS (SELECT FROM ${given} WHERE ${permittedAt} > clock_timestamp())
    RETURNING 1`,
}

// A separate statement: a statement that waited for another transaction still reads the snapshot from before that one.
const wait: Statement = {
  name: 'email-quota-wait',
  text: `SELECT max(extract(epoch FROM ${permittedAt} - clock_timestamp()))::float8 AS seconds
    FROM email_quotas q, ${given} WHERE q.subject = $1`,
}

// Locked rows are skipped.
const prune: Statement = {
  name: 'email-quotas-prune',
  slow: true,
  text: `DELETE FROM email_quotas WHERE subject IN (SELECT subject FROM email_quotas
    WHERE sent_at[cardinality(sent_at)] < clock_timestamp() - interval '${maxWindow} seconds' FOR UPDATE SKIP LOCKED)`,
}

/** Creates the counts of e-mails in a database. */
export function createEmailQuotas(database: Database): EmailQuotas {
  defineTable(database, 'email_quotas', {
    subject: key(bytes),
    sentAt: attribute<Date[]>('DATE[]'),
  })
  return {
    async take(subject, limits, transaction) {
      const values = [subject, limits.map(({ max }) => max), limits.map(({ seconds }) => seconds)]
      if ((await database.run(take, values, transaction)).length > 0) return 0
      const [row] = await database.run<{ seconds: number | null }>(wait, values, transaction)
      return Math.max(1, row?.seconds ?? 1)
    },
    async wait(subject, limits) {
      const values = [subject, limits.map(({ max }) => max), limits.map(({ seconds }) => seconds)]
      return Math.max(0, (await database.run<{ seconds: number | null }>(wait, values))[0]?.seconds ?? 0)
    },
    async prune() {
      await database.run(prune, [])
    },
  }
}
