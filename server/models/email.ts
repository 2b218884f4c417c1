import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import { limits, type Subjects } from './attempt.js'
import type { Audit, AuditEvent } from './audit.js'

/** Who wants a recovery key sent where, and where the wish came from. */
export interface RecoveryRequest {
  readonly usernameKey: string
  readonly email: string
  readonly address: string
  readonly requestId: string
}

/** What an e-mail is for, and what it needs besides a key. */
export type EmailIntent =
  /** A wish for a recovery key; whether an e-mail follows is decided out of the caller's sight. */
  | { kind: 'recovery-request'; parameters: RecoveryRequest }
  | { kind: 'recovery-key'; parameters: { userId: number; to: string } }
  | { kind: 'activation-key'; parameters: { userId: number; organizationId: number } }
  | { kind: 'password-changed' | 'recovery-login'; parameters: { userId: number; at: string; address: string } }

/** An e-mail that is due, on loan to one worker. */
export type Email = EmailIntent & {
  readonly id: string
  readonly locale: string
  readonly attempts: number
  readonly createdAt: Date
}

/** The queue of e-mails. */
export interface Emails {
  /** Queues an e-mail. */
  add(intent: EmailIntent, locale: string, t?: Transaction): Promise<void>
  /** Counts a request for a recovery key against the client address; queues it unless there were too many. */
  request(request: RecoveryRequest, locale: string): Promise<{ wait: number | undefined }>
  /** Lends the e-mail that has been due longest, for `lease` seconds; it comes back if it isn't settled by then. */
  claim(lease: number): Promise<Email | undefined>
  /** Turns a request into its e-mail and records that, unless the user had too many e-mails: then it says false. */
  admit(entry: Email, userId: number, to: string, event: AuditEvent): Promise<boolean>
  /** Whether another e-mail of a kind may go out for a user within the hour; counts it if so. */
  mayMail(kind: string, userId: number, t: Transaction): Promise<boolean>
  /** Forgets an e-mail that is sent or not wanted. */
  done(id: string): Promise<void>
  /** Keeps an e-mail for another try after `delay` seconds, or for good without one. `error` holds no secret. */
  failed(id: string, error: string, delay: number | undefined): Promise<void>
}

const add: Statement = {
  name: 'email-add',
  text: 'INSERT INTO emails (kind, parameters, locale) VALUES ($1, $2, $3)',
}

const request: Statement = {
  name: 'email-request',
  text: `WITH counted AS (SELECT * FROM attempts_count(ARRAY[$1::bytea], ${limits.mailRequests.seconds})),
  queued AS (INSERT INTO emails (kind, parameters, locale)
    SELECT 'recovery-request', $2, $3 FROM counted WHERE count <= ${limits.mailRequests.count})
  SELECT count, seconds_left AS seconds FROM counted`,
}

const claim: Statement = {
  name: 'email-claim',
  text: `UPDATE emails SET next_attempt_at = now() + make_interval(secs => $1), attempts = attempts + 1
    WHERE id = (SELECT id FROM emails WHERE next_attempt_at <= now()
      ORDER BY next_attempt_at FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING id::text, kind, parameters, locale, attempts, created_at AS "createdAt"`,
}

// Counts only what is let through, so that requests in vain use up nothing.
const mayMail: Statement = {
  name: 'email-may-mail',
  text: `INSERT INTO attempts AS a (subject, count, window_ends) VALUES ($1, 1, now() + make_interval(secs => $3))
    ON CONFLICT (subject) DO UPDATE SET
      count = CASE WHEN a.window_ends <= now() THEN 1 ELSE a.count + 1 END,
      window_ends = CASE WHEN a.window_ends <= now() THEN excluded.window_ends ELSE a.window_ends END
    WHERE a.window_ends <= now() OR a.count < $2 RETURNING 1`,
}

const admit: Statement = {
  name: 'email-admit',
  text: `UPDATE emails SET kind = 'recovery-key', parameters = $2, attempts = 0, next_attempt_at = now() WHERE id = $1`,
}

const done: Statement = { name: 'email-done', text: 'DELETE FROM emails WHERE id = $1' }

const failed: Statement = {
  name: 'email-failed',
  text: 'UPDATE emails SET last_error = $2, next_attempt_at = now() + make_interval(secs => $3) WHERE id = $1',
}

/** The queue of e-mails in a database. */
export function createEmails(database: Database, subjects: Subjects, audit: Audit): Emails {
  const count = async (span: 'minute' | 'hour', kind: string, userId: number, t: Transaction) => {
    const limit = span === 'minute' ? limits.mailsAMinute : limits.mailsAnHour
    const values = [subjects.mails(span, kind, userId), limit.count, limit.seconds]
    return (await database.run(mayMail, values, t)).length > 0
  }
  return {
    async add(intent, locale, transaction) {
      await database.run(add, [intent.kind, JSON.stringify(intent.parameters), locale], transaction)
    },
    async request(wish, locale) {
      const values = [subjects.mailRequests(wish.address), JSON.stringify(wish), locale]
      const row = (await database.run<{ count: number; seconds: number }>(request, values))[0]!
      return { wait: row.count > limits.mailRequests.count ? Math.max(1, Math.ceil(row.seconds)) : undefined }
    },
    claim: async lease => (await database.run<Email>(claim, [lease]))[0],
    async admit(entry, userId, to, event) {
      // Undoes the count of the hour when the minute refuses: what sends nothing uses up nothing.
      const refused = new Error('refused')
      const work = async (transaction: Transaction) => {
        for (const span of ['hour', 'minute'] as const) {
          if (!(await count(span, 'recovery', userId, transaction))) throw refused
        }
        await database.run(admit, [entry.id, JSON.stringify({ userId, to })], transaction)
        await audit.append(event, transaction)
        return true
      }
      return database.transact(work).catch(error => {
        if (error !== refused) throw error
        return false
      })
    },
    mayMail: (kind, userId, transaction) => count('hour', kind, userId, transaction),
    async done(id) {
      await database.run(done, [id])
    },
    async failed(id, error, delay) {
      await database.run(failed, [id, error, delay ?? null])
    },
  }
}
