// How many e-mails went out for an account or to a recipient, by their times: a limit holds in any span of its length.
import { attribute, bytes, defineTable, key } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'

/** Maximum number of e-mails in so many seconds. */
export interface EmailLimit {
  readonly max: number
  readonly seconds: number
}

/** Seconds that a limit may reach back. */
const longest = 86_400

/** Counts e-mails. */
export interface EmailQuotas {
  /** Counts an e-mail if every limit lets it through. Seconds until they would; 0 when it is counted. */
  take(subject: Buffer, limits: readonly EmailLimit[], t: Transaction): Promise<number>
  /** Seconds until every limit would let an e-mail through; 0 when they do. */
  wait(subject: Buffer, limits: readonly EmailLimit[]): Promise<number>
  /** Deletes what no limit asks for any longer. */
  prune(): Promise<void>
}

/** The e-mail that stands in the way of a limit for longest, among those of `q`. */
const inTheWay = 'q.sent_at[cardinality(q.sent_at) - l.max + 1] + make_interval(secs => l.seconds)'
const given = 'unnest($2::int[], $3::int[]) AS l (max, seconds)'

const take: Statement = {
  name: 'email-quota-take',
  text: `INSERT INTO email_quotas AS q (subject, sent_at) VALUES ($1, ARRAY[clock_timestamp()])
    ON CONFLICT (subject) DO UPDATE
      SET sent_at = (q.sent_at || clock_timestamp())[cardinality(q.sent_at) + 2 - (SELECT max(l.max) FROM ${given}):]
      WHERE NOT EXISTS (SELECT FROM ${given} WHERE ${inTheWay} > clock_timestamp())
    RETURNING 1`,
}

// By itself, as a statement that waited for another transaction still reads what was there before that one.
const wait: Statement = {
  name: 'email-quota-wait',
  text: `SELECT max(extract(epoch FROM ${inTheWay} - clock_timestamp()))::float8 AS seconds
    FROM email_quotas q, ${given} WHERE q.subject = $1`,
}

// Rows in use are passed over.
const prune: Statement = {
  name: 'email-quotas-prune',
  slow: true,
  text: `DELETE FROM email_quotas WHERE subject IN (SELECT subject FROM email_quotas
    WHERE sent_at[cardinality(sent_at)] < clock_timestamp() - interval '${longest} seconds' FOR UPDATE SKIP LOCKED)`,
}

/** The quotas of e-mails in a database. */
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
