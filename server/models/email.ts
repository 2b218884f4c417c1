import { DataTypes, Op, type Transaction } from 'sequelize'
import {
  attribute,
  bigint,
  defineTable,
  fromNow,
  integer,
  key,
  nullable,
  preset,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** Who wants a recovery key sent where, and where the request came from. */
export interface RecoveryRequest {
  readonly usernameKey: string
  readonly email: string
  readonly address: string
  readonly requestId: string
}

/** What owners are told of. */
export type Notice = 'password-changed' | 'recovery-login' | 'answer-saved'

/** What happened to a user's account, when (ISO 8601) and from where. */
interface Happened {
  readonly userId: number
  readonly at: string
  readonly address: string
}

/** Several of one kind, told together: of the last one when and from where. */
interface Merged extends Happened {
  readonly notice: Notice
  readonly times: number
}

/** What an e-mail is for, and what it needs besides a key. */
export type EmailIntent =
  /** A request for a recovery key; whether an e-mail follows is decided out of the caller's sight. */
  | { kind: 'recovery-request'; parameters: RecoveryRequest }
  | { kind: 'recovery-key'; parameters: { userId: number; to: string } }
  | { kind: 'activation-key'; parameters: { userId: number; organizationId: number } }
  /** Something to tell of; whether at once or later is decided when its turn comes. */
  | { kind: Notice; parameters: Happened }
  /** It waits for its recipient's quota; what happens meanwhile is merged into it. */
  | { kind: 'held-notice'; parameters: Merged }
  | { kind: 'notice'; parameters: Merged }

const claimed = {
  id: preset(key(bigint)),
  kind: attribute<EmailIntent['kind']>(DataTypes.TEXT),
  parameters: attribute<EmailIntent['parameters']>(DataTypes.JSONB),
  locale: text,
  attempts: preset(integer),
  createdAt: preset(time),
}

const attributes = {
  ...claimed,
  /** Null once it has failed for good. */
  nextAttemptAt: preset(nullable(time)),
  lastError: preset(nullable(text)),
}

/** An e-mail that is due, on loan to one worker. */
export type Email = EmailIntent & {
  readonly id: string
  readonly locale: string
  /** Attempts to send it so far, this one included. */
  readonly attempts: number
  readonly createdAt: Date
}

/** The queue of e-mails. */
export interface Emails {
  /** Queues an e-mail. */
  add(intent: EmailIntent, locale: string, t?: Transaction): Promise<void>
  /** Lends the e-mail that has been due longest, for `lease` seconds; it comes back if it isn't settled by then. */
  claim(lease: number): Promise<Email | undefined>
  /** Turns an entry into an e-mail that may go out, and is due. */
  admit(id: string, intent: EmailIntent, t: Transaction): Promise<void>
  /** Keeps a notice back for some seconds, as one with what is held back already of that kind for the user. */
  hold(notice: Pick<Email, 'id' | 'kind'>, seconds: number, t: Transaction): Promise<void>
  /** Forgets an e-mail that is sent or not wanted. */
  done(id: string): Promise<void>
  /** Keeps an e-mail for another attempt after `delay` seconds, or as failed for good. `error` holds no secret. */
  failed(id: string, error: string, delay: number | undefined): Promise<void>
  /** Deletes what failed for good, 7 days after it was due first. */
  prune(): Promise<void>
}

/** Days for which what couldn't be delivered is kept, from when it was due first. */
const keptDays = 7

/** An entry that nobody has attempted, and its first turn. */
const due = (seconds: number) => ({ attempts: 0, createdAt: fromNow(0), nextAttemptAt: fromNow(seconds) })

// Passes over what other workers are claiming at this moment.
const claim: Statement = {
  name: 'email-claim',
  text: `UPDATE emails e SET next_attempt_at = now() + make_interval(secs => $1), attempts = attempts + 1
    WHERE id = (SELECT id FROM emails WHERE next_attempt_at <= now()
      ORDER BY next_attempt_at FOR UPDATE SKIP LOCKED LIMIT 1)
    RETURNING ${selectList(claimed, 'e')}`,
}

// The one that is held keeps its id and its turn.
const merge: Statement = {
  name: 'email-merge',
  text: `WITH fresh AS (DELETE FROM emails WHERE id = $1 RETURNING kind, parameters, locale)
    INSERT INTO emails AS held (kind, parameters, locale, created_at, next_attempt_at)
    SELECT 'held-notice', parameters || jsonb_build_object('notice', kind, 'times', 1), locale,
      now(), now() + make_interval(secs => $2) FROM fresh
    ON CONFLICT ((parameters ->> 'userId'), (parameters ->> 'notice')) WHERE kind = 'held-notice' DO UPDATE SET
      parameters = CASE WHEN excluded.parameters ->> 'at' > held.parameters ->> 'at' THEN excluded.parameters
        ELSE held.parameters END || jsonb_build_object('times', (held.parameters ->> 'times')::int + 1)`,
}

/** The queue of e-mails in a database. */
export function createEmails(database: Database): Emails {
  const table = defineTable(database, 'emails', attributes)
  return {
    async add(intent, locale, transaction) {
      await table.create({ ...intent, locale, ...due(0) }, { transaction })
    },
    claim: async lease => (await database.run<Email>(claim, [lease]))[0],
    async admit(id, intent, transaction) {
      await table.update({ ...intent, ...due(0) }, { where: { id }, transaction })
    },
    async hold({ id, kind }, seconds, transaction) {
      if (kind === 'held-notice') await table.update(due(seconds), { where: { id }, transaction })
      else await database.run(merge, [id, seconds], transaction)
    },
    async done(id) {
      await table.destroy({ where: { id } })
    },
    async failed(id, error, delay) {
      const nextAttemptAt = delay === undefined ? null : fromNow(delay)
      await table.update({ lastError: error, nextAttemptAt }, { where: { id } })
    },
    async prune() {
      const createdAt = { [Op.lt]: fromNow(-keptDays * 86_400) }
      await table.destroy({ where: { nextAttemptAt: null, createdAt } })
    },
  }
}
