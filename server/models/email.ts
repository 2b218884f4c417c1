import type { Transaction } from 'sequelize'
import {
  attribute,
  bigint,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { administrationPolicies } from '../policy/administration.js'
import type { Purpose } from './mailed-key.js'

/** Who wants a recovery key sent where, and where the request came from. */
export interface RecoveryRequest {
  readonly usernameKey: string
  readonly email: string
  readonly address: string
  readonly requestId: string
  /** The service that asked, `service:<name>`, if it was one. */
  readonly actor?: string
}

/** A recovery request that the bucket of its network doesn't count, as the account knows the network. */
interface ExemptRequest extends RecoveryRequest {
  /** The network of the address, as limits count it. */
  readonly network: string
  /** Whether the e-mail address is the one registered for the account. */
  readonly registered: boolean
}

/** Who wants another e-mail address, which, and of which token generation the request was. */
interface EmailChange {
  readonly userId: number
  readonly to: string
  readonly generation: number
}

/** What owners are notified of. */
export type Notice =
  | 'password-changed'
  | 'recovery-login'
  | 'answer-saved'
  | 'email-changed'
  | 'username-changed'
  | 'wrong-codes'

/** What happened to a user's account, when (ISO 8601) and from where. */
interface Happened {
  readonly userId: number
  readonly at: string
  readonly address: string
  /** Where the notice goes, unless to the address that the user has then. */
  readonly to?: string
}

/** Several of one kind in one notice, with time and address of the last one. */
interface Merged extends Happened {
  readonly notice: Notice
  readonly times: number
}

type Rows = typeof administrationPolicies

/** What Administration does to users and e-mails tell of: all that its rows record but what only shows something. */
export type Administered = Exclude<
  Extract<Rows[keyof Rows]['audit'][number], `user.${string}`>,
  'user.export' | 'user.show-key'
>

/** What was done to a user (`subjectId`), by whom, when (ISO 8601) and why; `userId` is notified. */
interface Administration {
  readonly userId: number
  readonly subjectId: number
  readonly action: Administered
  /** The role that was given. */
  readonly role?: string
  /** As the audit log has them. */
  readonly actor: string
  readonly actorId?: number
  readonly at: string
  /** What was given on the database itself. */
  readonly reason?: string
}

/** What an e-mail is for, and what it needs besides a key. */
export type EmailIntent =
  /** A request for a recovery key; whether an e-mail follows is decided out of the caller's sight. */
  | { kind: 'recovery-request'; parameters: RecoveryRequest }
  | { kind: 'recovery-key'; parameters: { userId: number; to: string } }
  | { kind: 'activation-key'; parameters: { userId: number; organizationId: number } }
  /** A user asked for another e-mail address; whether a code goes there is decided later, where no caller can measure it. */
  | { kind: 'email-request'; parameters: EmailChange }
  | { kind: 'email-code'; parameters: EmailChange }
  /** A notice; whether it goes out at once or later is decided when its turn comes. */
  | { kind: Notice; parameters: Happened }
  /** It waits for its recipient's quota; what happens meanwhile is merged into it. */
  | { kind: 'held-notice'; parameters: Merged }
  | { kind: 'notice'; parameters: Merged }
  /**
   * Something done on the database itself to tell another administrator of, by itself and at once: no quota lets one hide
   * behind others.
   */
  | { kind: 'administration'; parameters: Administration }
  /** The same for the administrator it was done to, on the database itself or not, at its address of that time. */
  | { kind: 'administered'; parameters: Administration & { readonly to: string } }

/** E-mails that bring a key of each purpose, or ask for one. */
const bringing: Record<Purpose, readonly EmailIntent['kind'][]> = {
  recovery: ['recovery-request', 'recovery-key'],
  email: ['email-request', 'email-code'],
  activation: ['activation-key'],
}

const claimed = {
  id: hasDefault(key(bigint)),
  kind: attribute<EmailIntent['kind']>('TEXT'),
  parameters: attribute<EmailIntent['parameters']>('JSONB'),
  locale: text,
  attempts: hasDefault(integer),
  /** 0 for a first attempt, 1 for a retry, 2 for any attempt for an account that isn't active; the lowest goes first. */
  priority: hasDefault(integer),
  createdAt: hasDefault(time),
}

const attributes = {
  ...claimed,
  /** Null once it failed permanently. */
  nextAttemptAt: hasDefault(nullable(time)),
  lastError: hasDefault(nullable(text)),
}

/** An e-mail that is due, on loan to one worker. */
export type Email = EmailIntent & {
  readonly id: string
  readonly locale: string
  /** Attempts to send it so far, this one included. */
  readonly attempts: number
  /** 0 for a first attempt. */
  readonly priority: number
  readonly createdAt: Date
}

/** An e-mail of one kind. */
export type Queued<K extends Email['kind']> = Extract<Email, { kind: K }>

/** An e-mail as administrators see it, without its text. */
export type QueuedEmail = Pick<Email, 'id' | 'kind' | 'attempts' | 'createdAt'> & {
  /** Id of the user it concerns, when it is known. */
  readonly userId: number | null
  /** When it is due; null once it failed permanently. */
  readonly nextAttemptAt: Date | null
  /** Codes of what went wrong at the last attempt. */
  readonly lastError: string | null
}

/** The queue of e-mails. */
export interface Emails {
  /** E-mails by id after one; optionally only those that failed permanently, or only the others. */
  list(filter: { afterId?: string; failed?: boolean; limit: number }): Promise<QueuedEmail[]>
  /** The e-mail with a number. */
  find(id: string): Promise<QueuedEmail | undefined>
  /** The same, locked until the end of the transaction. */
  lock(id: string, t: Transaction): Promise<QueuedEmail | undefined>
  /** Makes an e-mail due now. One that is being sent at this moment may go out twice. */
  retry(id: string, t: Transaction): Promise<void>
  /** Queues an e-mail. */
  add(intent: EmailIntent, locale: string, t?: Transaction): Promise<void>
  /**
   * Queues a recovery request. It replaces one that waits for the same account, network and value of `registered`, so
   * however many are made they don't fill the queue, and those with wrong addresses don't displace the owner's.
   */
  replaceRequest(request: ExemptRequest, locale: string): Promise<void>
  /**
   * Lends the e-mail of the lowest priority that has been due longest, for `lease` seconds; it comes back if it isn't
   * settled by then. Without `retries` it lends first attempts only.
   */
  claim(lease: number, retries: boolean): Promise<Email | undefined>
  /**
   * Turns an entry into an e-mail that may go out. For an active account its loan goes on; for another it is due again,
   * behind all others. It is as old as the request for a recovery key, otherwise new. Undefined when it was discarded
   * meanwhile.
   */
  admit<I extends EmailIntent>(
    id: string,
    intent: I,
    active: boolean,
    t: Transaction,
  ): Promise<Queued<I['kind']> | undefined>
  /**
   * Keeps a notice back for some seconds, as one with what is held back already of that kind for the user. One to an
   * address of its own stays by itself, as no other notice goes there.
   */
  hold(notice: Pick<Email, 'id' | 'kind'>, seconds: number, t: Transaction): Promise<void>
  /** Discards what waits to bring a user keys of these purposes; one that is being composed brings none then. */
  discard(userId: number, purposes: readonly Purpose[], t: Transaction): Promise<void>
  /** Deletes an e-mail that is sent or not wanted. */
  done(id: string, t?: Transaction): Promise<void>
  /** Keeps an e-mail for another attempt after `delay` seconds, or as failed permanently. `error` holds no secret. */
  failed(id: string, error: string, delay: number | undefined): Promise<void>
  /**
   * How many e-mails wait to be sent (those held back for their recipient's quota don't) and for how long the oldest has,
   * in seconds; how many failed permanently. Up to 10,000 are counted.
   */
  backlog(): Promise<{ waiting: number; oldestSeconds: number; failed: number }>
  /** Deletes what failed permanently, 7 days after it was due first. */
  prune(): Promise<void>
}

/** Days for which what couldn't be delivered is kept, from when it was due first. */
const keptDays = 7

// Each e-mail is written four times on its way, and there may be many at once.
const add: Statement = {
  name: 'email-add',
  text: `INSERT INTO emails (kind, parameters, locale, created_at, next_attempt_at) VALUES ($1, $2, $3, now(), now())`,
}

// A request that waits already is overwritten rather than left, so that both cases write and take the same time.
const replaceRequest: Statement = {
  name: 'email-replace-request',
  text: `INSERT INTO emails (kind, parameters, locale, created_at, next_attempt_at)
    VALUES ('recovery-request', $1, $2, now(), now())
    ON CONFLICT ((parameters ->> 'usernameKey'), (parameters ->> 'network'), (parameters ->> 'registered'))
      WHERE kind = 'recovery-request' AND parameters ->> 'network' IS NOT NULL
      DO UPDATE SET parameters = excluded.parameters, locale = excluded.locale, created_at = excluded.created_at`,
}

const admit: Statement = {
  name: 'email-admit',
  text: `UPDATE emails e SET kind = $2::text, parameters = $3,
      created_at = CASE WHEN $2 = 'recovery-key' THEN created_at ELSE now() END,
      attempts = CASE WHEN $4::boolean THEN 1 ELSE 0 END,
      priority = CASE WHEN $4 THEN priority ELSE 2 END,
      next_attempt_at = CASE WHEN $4 THEN next_attempt_at ELSE now() END
    WHERE id = $1 RETURNING ${selectList(claimed, 'e')}`,
}

const discard: Statement = {
  name: 'emails-discard',
  text: `DELETE FROM emails
    WHERE (coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') = $1::int::text
        AND kind = ANY($2) AND kind <> 'recovery-request')
      OR (coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') = (SELECT username_key FROM users WHERE id = $1::int)
        AND kind = ANY($2) AND kind = 'recovery-request')`,
}

const done: Statement = { name: 'email-done', text: 'DELETE FROM emails WHERE id = $1' }

// Passes over what other workers are claiming at this moment.
const due = (priority: number) => `(SELECT id FROM emails WHERE priority = ${priority} AND next_attempt_at <= now()
      ORDER BY next_attempt_at FOR UPDATE SKIP LOCKED LIMIT 1)`

// By priority one after the other: an order by both columns would read all that isn't due yet.
const claim: Statement = {
  name: 'email-claim',
  text: `UPDATE emails e SET next_attempt_at = now() + make_interval(secs => $1), attempts = attempts + 1
    WHERE id = coalesce(${due(0)}, CASE WHEN $2::boolean THEN coalesce(${due(1)}, ${due(2)}) END)
    RETURNING ${selectList(claimed, 'e')}`,
}

const failed: Statement = {
  name: 'email-failed',
  text: `UPDATE emails SET last_error = $2, next_attempt_at = now() + make_interval(secs => $3),
      priority = greatest(priority, 1) WHERE id = $1`,
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

const backlog: Statement = {
  name: 'email-backlog',
  text: `SELECT count(*) FILTER (WHERE next_attempt_at IS NOT NULL AND kind <> 'held-notice')::int AS "waiting",
      coalesce(extract(epoch FROM now() - min(created_at)
        FILTER (WHERE next_attempt_at IS NOT NULL AND kind <> 'held-notice')), 0)::float8 AS "oldestSeconds",
      count(*) FILTER (WHERE next_attempt_at IS NULL)::int AS "failed"
    FROM (SELECT kind, created_at, next_attempt_at FROM emails ORDER BY id LIMIT 10000) e`,
}

const queued = `SELECT id, kind, attempts, created_at AS "createdAt", (parameters ->> 'userId')::int AS "userId",
    next_attempt_at AS "nextAttemptAt", last_error AS "lastError" FROM emails`

const list: Statement = {
  name: 'email-list',
  text: `${queued} WHERE id > $1 AND ($2::boolean IS NULL OR (next_attempt_at IS NULL) = $2) ORDER BY id LIMIT $3`,
}

const find: Statement = { name: 'email-find', text: `${queued} WHERE id = $1` }

const lock: Statement = { name: 'email-lock', text: `${find.text} FOR UPDATE` }

const prune: Statement = {
  name: 'emails-prune',
  text: 'DELETE FROM emails WHERE next_attempt_at IS NULL AND created_at < now() - make_interval(days => $1)',
}

/** The queue of e-mails in a database. */
export function createEmails(database: Database): Emails {
  const table = defineTable(database, 'emails', attributes)
  return {
    list: ({ afterId = '0', failed, limit }) => database.run<QueuedEmail>(list, [afterId, failed ?? null, limit]),
    find: async id => (await database.run<QueuedEmail>(find, [id]))[0],
    lock: async (id, t) => (await database.run<QueuedEmail>(lock, [id], t))[0],
    async retry(id, transaction) {
      await table().update({ nextAttemptAt: fromNow(0) }, { where: { id }, transaction })
    },
    async add(intent, locale, transaction) {
      await database.run(add, [intent.kind, intent.parameters, locale], transaction)
    },
    async replaceRequest(request, locale) {
      await database.run(replaceRequest, [request, locale])
    },
    claim: async (lease, retries) => (await database.run<Email>(claim, [lease, retries]))[0],
    admit: async <I extends EmailIntent>(id: string, intent: I, active: boolean, transaction: Transaction) =>
      (await database.run<Queued<I['kind']>>(admit, [id, intent.kind, intent.parameters, active], transaction))[0],
    async hold({ id, kind }, seconds, transaction) {
      // As one that wasn't attempted yet.
      const anew = { attempts: 0, priority: 0, createdAt: fromNow(0), nextAttemptAt: fromNow(seconds) }
      if (kind === 'held-notice' || kind === 'email-changed') await table().update(anew, { where: { id }, transaction })
      else await database.run(merge, [id, seconds], transaction)
    },
    async discard(userId, purposes, transaction) {
      await database.run(discard, [userId, purposes.flatMap(purpose => bringing[purpose])], transaction)
    },
    async done(id, transaction) {
      await database.run(done, [id], transaction)
    },
    async failed(id, error, delay) {
      await database.run(failed, [id, error, delay ?? null])
    },
    backlog: async () => (await database.read<Awaited<ReturnType<Emails['backlog']>>>(backlog, []))[0]!,
    async prune() {
      await database.run(prune, [keptDays])
    },
  }
}
