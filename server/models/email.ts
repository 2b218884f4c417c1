import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bigint,
  defineTable,
  expression,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import type { administrationPolicies } from '../policy/administration.js'
import type { Purpose } from './mailed-key.js'

/**
 * A request for a recovery key: the account, the e-mail address, and the origin of the request. Without an account, that is with an
 * empty key, it asks for the usernames that the address belongs to.
 */
export interface RecoveryRequest {
  readonly usernameKey: string
  readonly email: string
  readonly address: string
  readonly requestId: string
  /** The service that sent the request, as `service:<name>`; absent for other callers. */
  readonly actor?: string
}

/** A recovery request from a network that the account knows. The bucket of the network doesn't count it. */
interface ExemptRequest extends RecoveryRequest {
  /** The network of the client address, as rate limits count it. */
  readonly network: string
  /** Whether the e-mail address is the one registered for the account. */
  readonly registered: boolean
}

/** A request of a user for a new e-mail address, with the token generation of the request. */
interface EmailChange {
  readonly userId: number
  readonly to: string
  readonly generation: number
}

/** Kinds of security notices to the owner of an account. */
export type Notice =
  | 'password-changed'
  | 'recovery-login'
  | 'first-recovery'
  | 'answer-saved'
  | 'answer-waits'
  | 'answers-cleared'
  | 'answers-deleted'
  | 'email-changed'
  | 'username-changed'
  | 'wrong-codes'
  | 'account-deleted'
  | 'provider-key-rotated'
  | 'account-activated'
  | 'organization-changed'
  | 'member-deactivated'
  | 'session-ended'
  | 'key-issued'

/** An event of a user's account, with its time (ISO 8601) and client address; of merged events, the last and their number. */
interface Happened {
  readonly userId: number
  readonly at: string
  readonly address: string
  readonly times?: number
  /** The recipient, if it isn't the current address of the user. */
  readonly to?: string
}

/** The user whom a notice is for. */
export interface NotifiedUser {
  readonly id: number
  readonly email: string | null
}

/** The client address of a change, the language of its notice, and the recipient as in `Happened`. */
export interface NotifiedChange extends Pick<Happened, 'address' | 'to'> {
  readonly locale: string
}

type Rows = typeof administrationPolicies

/** Administrative actions on users that cause notices: all audited actions except imports and those that only read. */
export type Administered = Exclude<
  Extract<Rows[keyof Rows]['audit'][number], `user.${string}`>,
  'user.export' | 'user.export-secrets' | 'user.import' | 'user.show-key'
>

/** An administrative action on the user `subjectId`, of which `userId` is notified. */
interface Administration {
  readonly userId: number
  readonly subjectId: number
  readonly action: Administered
  /** The new role. */
  readonly role?: string
  /** Actor and time (ISO 8601), as in the audit log. */
  readonly actor: string
  readonly actorId?: number
  readonly at: string
  /** The reason given with a change on the database itself. */
  readonly reason?: string
}

/** A change of the e-mail address of an organization, with its time (ISO 8601) and client address, and the former address. */
interface OrganizationEmailChange extends Pick<Happened, 'at' | 'address'> {
  readonly organizationId: number
  readonly to: string
}

/** A request for an e-mail. The sender decides on it later, so that callers can't measure it; it may hold notices. */
type Request = { stage: 'requested' | 'held' } & (
  | { kind: 'recovery-key'; parameters: RecoveryRequest }
  | { kind: 'email-code'; parameters: EmailChange }
  | { kind: Notice; parameters: Happened }
)

/** An e-mail to be sent. Its key is created when it is sent. */
type Ready = { stage: 'ready' } & (
  | { kind: 'recovery-key'; parameters: { userId: number; to: string } | { usernamesOf: string } }
  | { kind: 'activation-key'; parameters: { userId: number; organizationId: number } }
  | { kind: 'email-code'; parameters: EmailChange }
  | { kind: Notice; parameters: Happened }
  /**
   * A change on the database itself, of which another administrator is notified. It is exempt from quotas and never merged,
   * so that other e-mails can't delay or hide it.
   */
  | { kind: 'administration'; parameters: Administration }
  /** A change of the e-mail address of an organization, of which the former address is notified. Also exempt from quotas. */
  | { kind: 'organization-email-changed'; parameters: OrganizationEmailChange }
  /** A change to an administrator, who is notified at the address at the time of the change. Also exempt from quotas. */
  | { kind: 'administered'; parameters: Administration & { readonly to: string } }
)

/** What a queue entry is for, and its stage. */
export type EmailIntent = Request | Ready

/** Kinds of e-mails with a key, by its purpose. */
const kinds: Readonly<Partial<Record<Purpose, Email['kind']>>> = {
  recovery: 'recovery-key',
  email: 'email-code',
  activation: 'activation-key',
}

const claimed = {
  id: hasDefault(key(bigint)),
  kind: attribute<EmailIntent['kind']>('TEXT'),
  stage: hasDefault(attribute<EmailIntent['stage']>('TEXT')),
  parameters: attribute<EmailIntent['parameters']>('JSONB'),
  locale: text,
  attempts: hasDefault(integer),
  /** 0 for a first attempt, 1 for a retry, 2 for any attempt for an inactive account. The lowest precedes. */
  priority: hasDefault(integer),
  createdAt: hasDefault(time),
}

const attributes = {
  ...claimed,
  /** Null after a permanent failure. */
  nextAttemptAt: hasDefault(nullable(time)),
  lastError: hasDefault(nullable(text)),
}

/** A due e-mail, leased to one worker. */
export type Email = EmailIntent & {
  readonly id: string
  readonly locale: string
  /** Number of attempts to send the e-mail, including the current one. */
  readonly attempts: number
  /** 0 for a first attempt. */
  readonly priority: number
  readonly createdAt: Date
  /** Its age in seconds, by the clock of the database, at the start of the attempt. */
  readonly age: number
}

/** An e-mail of one kind that isn't ready. */
export type RequestedEmail<K extends Email['kind'] = Email['kind']> = Email & Request & { kind: K }

/** An e-mail of one kind that is to be sent. */
export type ReadyEmail<K extends Email['kind'] = Email['kind']> = Email & Ready & { kind: K }

/** An e-mail that was sent. */
const sentAttributes = {
  id: key(bigint),
  kind: text,
  userId: integer,
  createdAt: time,
  attempts: integer,
  sentAt: hasDefault(time),
  answer: text,
}

/** An e-mail as administrators see it, of the queue or one that was sent. */
export type QueuedEmail = Pick<Email, 'id' | 'kind' | 'attempts' | 'createdAt'> & {
  readonly stage?: EmailIntent['stage']
  /** Id of the user that the e-mail concerns; null if it is unknown. */
  readonly userId: number | null
  /** Time of the next attempt; null after a permanent failure. */
  readonly nextAttemptAt: Date | null
  /** Error codes of the last attempt. */
  readonly lastError: string | null
  /** Only of one that was sent. */
  readonly sentAt?: Date
  /** Answer of the mail server that accepted it. */
  readonly answer?: string
}

/** The queue of e-mails. */
export type Emails = ReturnType<typeof createEmails>

interface Backlog {
  readonly waiting: number
  readonly oldestSeconds: number
  readonly retried: number
  readonly uncomposed: number
  readonly held: number
  readonly failed: number
}

/** Begins the error of an attempt that failed before there was an e-mail to send. */
export const notComposed = 'not composed: '

/** Days of retention of permanent failures, from the creation of the e-mail, and of e-mails that were sent. */
const keptDays = 7

// Skips rows that other workers are claiming.
const due = (priority: number) => sql`(
  SELECT id FROM emails WHERE priority = ${sql.text(priority)} AND next_attempt_at <= now()
  ORDER BY next_attempt_at FOR UPDATE SKIP LOCKED LIMIT 1)`

const columns = sql`${sql.text(selectList(claimed, 'e'))},
  greatest(0, extract(epoch FROM now() - e.created_at))::float8 AS age`

/** What administrators see of an e-mail. */
const queued = ['id', 'kind', 'stage', 'attempts', 'createdAt', 'parameters', 'nextAttemptAt', 'lastError']

function toQueued({ parameters, ...email }: Row<typeof attributes>): QueuedEmail {
  return { ...email, userId: 'userId' in parameters ? parameters.userId : null }
}

/** Creates the queue of e-mails in a database. */
export function createEmails(database: Database) {
  const table = defineTable(database, 'emails', attributes)
  const sentEmails = defineTable(database, 'sent_emails', sentAttributes)
  const add = async (intent: EmailIntent, locale: string, transaction?: Transaction) => {
    await table.create({ ...intent, locale, createdAt: fromNow(0), nextAttemptAt: fromNow(0) }, { transaction })
  }
  return {
    /** Returns e-mails by id. `failed` selects only permanent failures (true) or only the others (false). */
    async list({ afterId = '0', failed, limit }: { afterId?: string; failed?: boolean; limit: number }) {
      const isFailed = failed === undefined ? {} : { nextAttemptAt: { [failed ? Op.is : Op.not]: null } }
      const where = { id: { [Op.gt]: afterId }, ...isFailed }
      return (await table.findAll({ attributes: queued, where, order: ['id'], limit })).map(row => toQueued(row.get()))
    },
    /** Returns e-mails of a user, queued or sent, by id; `failed` as above. `last`: the newest alone. */
    async ofUser(
      { id: userId, usernameKey }: { readonly id: number; readonly usernameKey: string },
      {
        afterId = '0',
        failed,
        limit = 1,
        last = false,
      }: { afterId?: string; failed?: boolean; limit?: number; last?: boolean },
    ) {
      const order = sql.text(`ORDER BY id ${last ? 'DESC' : ''} LIMIT`)
      const failing = failed !== undefined && sql`(next_attempt_at IS NULL) = ${failed}`
      const owner = sql`coalesce(parameters ->> 'userId', parameters ->> 'usernameKey')`
      // Neither is the other: an id of digits alone can be the name of another user.
      const own = sql`${owner} IN (${String(userId)}, ${usernameKey})
        AND (parameters ->> 'userId' = ${String(userId)} OR parameters ->> 'usernameKey' = ${usernameKey})`
      return database.run<QueuedEmail>(sql`SELECT * FROM (
          (SELECT id, kind, stage, ${userId}::int AS "userId", created_at AS "createdAt", attempts,
            next_attempt_at AS "nextAttemptAt", last_error AS "lastError", NULL::timestamptz AS "sentAt", NULL AS answer
          FROM emails WHERE ${sql.all(own, sql`id > ${afterId}`, failing)} ${order} ${limit})
          UNION ALL
          (SELECT id, kind, NULL, user_id, created_at, attempts, NULL, NULL, sent_at, answer
          FROM sent_emails WHERE ${sql.all(sql`user_id = ${userId} AND id > ${afterId}`, failed && sql`false`)} ${order} ${limit})
        ) every ${order} ${limit}`)
    },
    /** Returns the e-mail with an id. A transaction locks its row until its end. */
    async find(id: string, transaction?: Transaction) {
      const row = await table.findByPk(id, { attributes: queued, transaction, lock: transaction?.LOCK.UPDATE })
      return row ? toQueued(row.get()) : undefined
    },
    /** Makes an e-mail due now. An e-mail that is in flight may be sent twice. */
    async retry(id: string, transaction: Transaction) {
      await table.update({ nextAttemptAt: fromNow(0) }, { where: { id }, transaction })
    },
    /** Makes the next e-mails after `afterId` that failed permanently due now. Returns their ids, ascending. */
    async retryFailed(afterId: string, limit: number, t: Transaction) {
      const where = { id: { [Op.gt]: afterId }, nextAttemptAt: null }
      const options = { attributes: ['id'], where, limit, transaction: t, lock: t.LOCK.NO_KEY_UPDATE }
      const ids = (await table.findAll({ ...options, order: ['id'] })).map(row => row.get().id)
      await table.update({ nextAttemptAt: fromNow(0) }, { where: { id: ids }, transaction: t })
      return ids
    },
    add,
    /** Queues a notice of a change that happens now to a user's account, unless the user has no e-mail address. */
    async notify(
      kind: Notice,
      { id: userId, email }: NotifiedUser,
      { address, to, locale }: NotifiedChange,
      transaction: Transaction,
    ) {
      const parameters = { userId, at: new Date().toISOString(), address, to }
      if (email) await add({ kind, stage: 'requested', parameters }, locale, transaction)
    },
    /** Queues a notice of a new e-mail address of an organization, to the former one, unless it had none. */
    async notifyOrganization(
      { id: organizationId, email: to }: { readonly id: number; readonly email: string | null },
      { address, locale }: NotifiedChange,
      transaction: Transaction,
    ) {
      if (to === null) return
      const parameters = { organizationId, at: new Date().toISOString(), address, to }
      await add({ kind: 'organization-email-changed', stage: 'ready', parameters }, locale, transaction)
    },
    /**
     * Queues a recovery request. It replaces a queued request with the same account, network and `registered`, which bounds the
     * number of queued requests. Requests with wrong addresses don't replace the owner's.
     */
    async replaceRequest(request: ExemptRequest, locale: string) {
      await database.run(sql('email-replace-request')`
        INSERT INTO emails (kind, parameters, locale, created_at, next_attempt_at)
        VALUES ('recovery-key', ${request}, ${locale}, now(), now())
        ON CONFLICT ((parameters ->> 'usernameKey'), (parameters ->> 'network'), (parameters ->> 'registered'))
          WHERE parameters ->> 'network' IS NOT NULL
          DO UPDATE SET parameters = excluded.parameters, locale = excluded.locale, created_at = excluded.created_at`)
    },
    /**
     * Leases an e-mail for `lease` seconds: by the lowest `priority`, then the earliest due time. An e-mail that isn't settled
     * within its lease is due again. Without `retries`, leases only first attempts.
     */
    claim(lease: number, retries: boolean) {
      const claim = sql('email-claim')`
        UPDATE emails e SET next_attempt_at = now() + make_interval(secs => ${lease}), attempts = attempts + 1
        WHERE id = coalesce(${due(0)}, CASE WHEN ${retries}::boolean THEN coalesce(${due(1)}, ${due(2)}) END)
        RETURNING ${columns}`
      return first(database.run<Email>(claim))
    },
    /**
     * Makes an e-mail ready, with new parameters if some are given. For an active account the lease continues; otherwise the
     * e-mail is due again with the last priority. A recovery key keeps the age of its request; other e-mails restart their age.
     * Returns undefined when the e-mail has been discarded.
     */
    admit(id: string, active: boolean, parameters: Ready['parameters'] | undefined, t: Transaction) {
      const admit = sql('email-admit')`
        UPDATE emails e SET stage = 'ready', parameters = coalesce(${parameters}, parameters),
          created_at = CASE WHEN kind = 'recovery-key' THEN created_at ELSE now() END,
          attempts = CASE WHEN ${active}::boolean THEN 1 ELSE 0 END,
          priority = CASE WHEN ${active} THEN priority ELSE 2 END,
          next_attempt_at = CASE WHEN ${active} THEN next_attempt_at ELSE now() END
        WHERE id = ${id} RETURNING ${columns}`
      return first(database.run<ReadyEmail>(admit, t))
    },
    /**
     * Holds a notice for `seconds`, as a new entry, which is merged into a held notice of the same kind for the user to the same
     * recipient.
     */
    async hold(id: string, seconds: number, t: Transaction) {
      const hold = sql('email-hold')`
        WITH due AS (DELETE FROM emails WHERE id = ${id} RETURNING kind, parameters, locale)
        INSERT INTO emails AS held (kind, stage, parameters, locale, created_at, next_attempt_at)
        SELECT kind, 'held', parameters, locale, now(), now() + make_interval(secs => ${seconds}) FROM due
        ON CONFLICT ((parameters ->> 'userId'), kind, coalesce(parameters ->> 'to', '')) WHERE stage = 'held' DO UPDATE SET
          parameters = CASE WHEN excluded.parameters ->> 'at' > held.parameters ->> 'at' THEN excluded.parameters
            ELSE held.parameters END || jsonb_build_object('times', coalesce((held.parameters ->> 'times')::int, 1) + 1)`
      await database.run(hold, t)
    },
    /** Discards queued e-mails that contain or request keys of these purposes. An e-mail that is being composed is not sent. */
    async discard(userId: number, purposes: readonly Purpose[], t: Transaction) {
      const discard = sql('emails-discard')`
        DELETE FROM emails USING users u
        WHERE u.id = ${userId} AND kind = ANY(${purposes.flatMap(purpose => kinds[purpose] ?? [])})
          AND coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') IN (u.id::text, u.username_key)
          AND (parameters ->> 'userId' = u.id::text OR parameters ->> 'usernameKey' = u.username_key)`
      await database.run(discard, t)
    },
    /** Deletes an e-mail that no longer applies. */
    async done(id: string, transaction?: Transaction) {
      await table.destroy({ where: { id }, transaction })
    },
    /** Deletes an e-mail that has been sent. If it is about a user, it keeps that, with the answer of the mail server. */
    async sent(id: string, answer: string) {
      await database.run(sql('email-sent')`
        WITH done AS (DELETE FROM emails WHERE id = ${id} RETURNING *)
        INSERT INTO sent_emails (id, kind, user_id, created_at, attempts, answer)
        SELECT id, kind, (parameters ->> 'userId')::int, created_at, attempts, ${answer}
        FROM done WHERE parameters ->> 'userId' IS NOT NULL ON CONFLICT DO NOTHING`)
    },
    /** Schedules another attempt after `delay` seconds; without a delay, marks a permanent failure. `error` has no secrets. */
    async failed(id: string, error: string, delay: number | undefined) {
      const priority = expression<number>('greatest(priority, 1)')
      const nextAttemptAt = delay === undefined ? null : fromNow(delay)
      await table.update({ lastError: error, nextAttemptAt, priority }, { where: { id } })
    },
    /**
     * Returns the number of waiting e-mails, excluding held notices, with the age of the oldest one in seconds; the number of
     * those whose last attempt failed, and of those among them that couldn't be composed or whose last attempt ended without a
     * result; and the numbers of notices that a quota holds and of permanent failures. Counts up to 10,000 e-mails.
     */
    async backlog() {
      const isDue = sql`next_attempt_at IS NOT NULL`
      const count = sql('email-backlog')`
        SELECT count(*) FILTER (WHERE ${isDue} AND stage <> 'held')::int AS waiting,
          greatest(0, extract(epoch FROM now() - min(created_at) FILTER (WHERE ${isDue} AND stage <> 'held')))::float8
            AS "oldestSeconds",
          count(*) FILTER (WHERE ${isDue} AND last_error IS NOT NULL)::int AS retried,
          count(*) FILTER (WHERE ${isDue} AND CASE WHEN last_error IS NULL THEN attempts > 1
            ELSE starts_with(last_error, '${sql.text(notComposed)}') END)::int AS uncomposed,
          count(*) FILTER (WHERE stage = 'held')::int AS held,
          count(*) FILTER (WHERE next_attempt_at IS NULL)::int AS failed
        FROM (SELECT stage, created_at, next_attempt_at, last_error, attempts FROM emails ORDER BY id LIMIT 10000) e`
      return (await first(database.read<Backlog>(count)))!
    },
    /** Deletes e-mails that failed permanently, 7 days after their creation, and those that were sent. */
    async prune() {
      const createdAt = { [Op.lt]: fromNow(-keptDays * 86_400) }
      await table.destroy({ where: { nextAttemptAt: null, createdAt } })
      await sentEmails.destroy({ where: { sentAt: createdAt } })
    },
  }
}
