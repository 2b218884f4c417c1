// What is stored of one user in all tables, read together: to explain what it can't do, and to hand it out (LGPD).
import type { Database, Statement } from '../database/connection.js'

/** An answer of a user, without the answer. */
interface SavedAnswer {
  readonly questionId: number
  readonly question: string
  /** Whether the question is offered; a retired one is in no list that apps show. */
  readonly offered: boolean
  /** Whether an answer counts now. */
  readonly counts: boolean
  /** Seconds until one counts that waits; null when none does. */
  readonly waits: number | null
}

/** What stands behind what a user can do, and is part of no record. */
export interface Standing {
  /** Whether there is a password to sign in with. */
  readonly password: boolean
  /** Whether there is an active provider of an active organization (its own, when it has one), whose key activates clients. */
  readonly provider: boolean
  readonly answers: readonly SavedAnswer[]
  /** E-mails to it that failed permanently, newest last. */
  readonly failedEmails: readonly { readonly id: number; readonly error: string | null }[]
}

/** Reads what is stored of a user. */
export interface UserData {
  standing(id: number): Promise<Standing | undefined>
  /**
   * All that is stored of a user but events of the audit log, a member for each table; undefined when there is no such
   * user. Without what is secret or says nothing: hashes, keys, and digests, of which it tells how many there are.
   */
  export(id: number): Promise<Record<string, unknown> | undefined>
  /**
   * Events that a user made or that were done to it, the newest first: not sealed yet, then sealed; those before a place,
   * if one is given. Of events that others made it leaves out where they came from.
   */
  events(id: number, page: { readonly before: EventPlace | undefined; readonly limit: number }): Promise<OwnEvent[]>
}

/** Where an event is in the audit log: its number among the sealed ones, or among those that aren't sealed yet. */
export type EventPlace = { readonly id: string } | { readonly seq: string }

/** An event of a user: one of the two numbers is null. */
interface OwnEvent {
  readonly id: string | null
  readonly seq: string | null
  readonly event: Record<string, unknown>
}

const standing: Statement = {
  name: 'user-data-standing',
  text: `SELECT u.password_hash <> '' AS password,
    EXISTS (SELECT FROM users p JOIN organizations o ON o.id = p.organization_id
      WHERE p.role = 'ROLE_INSTITUTION' AND p.active AND NOT p.suspended AND o.active
        AND (u.organization_id IS NULL OR o.id = u.organization_id)) AS provider,
    ARRAY (SELECT jsonb_build_object('questionId', q.id, 'question', q.question, 'offered', q.active,
        'counts', a.answer_hash IS NOT NULL OR coalesce(a.next_counts_at <= now(), false),
        'waits', CASE WHEN a.next_counts_at > now() THEN ceil(extract(epoch FROM a.next_counts_at - now())) END)
      FROM answers a JOIN questions q ON q.id = a.question_id WHERE a.user_id = u.id ORDER BY q.id) AS answers,
    ARRAY (SELECT jsonb_build_object('id', e.id, 'error', e.last_error) FROM emails e
      WHERE e.next_attempt_at IS NULL AND e.parameters ->> 'userId' = $1::text ORDER BY e.id) AS "failedEmails"
    FROM users u WHERE u.id = $1::int`,
}

const rows = (columns: string, from: string, order: string) =>
  `(SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY ${order}), '[]') FROM (SELECT ${columns} FROM ${from}) t)`

const eventColumns = `at, action, outcome, reason, actor, actor_id, subject_id, object, request_id,
  CASE WHEN actor_id = $1 OR (actor_id IS NULL AND actor NOT LIKE 'cli:%') THEN address END AS address`

const sealed = (whose: string) => `(SELECT id, NULL::bigint AS seq, ${eventColumns} FROM audit_events
  WHERE ${whose} AND id < $2 ORDER BY id DESC LIMIT $4)`

// Events that are sealed between two pages get numbers above all that were shown. Only where those not sealed fill a page
// may one be shown twice.
const events: Statement = {
  name: 'user-data-events',
  text: `SELECT id, seq, to_jsonb(newest) - CASE WHEN id IS NULL THEN ARRAY['id', 'seq'] ELSE ARRAY['seq'] END AS event
    FROM (SELECT * FROM (
      ${sealed('subject_id = $1')} UNION ALL ${sealed('actor_id = $1 AND actor_id IS DISTINCT FROM subject_id')}
      UNION ALL (SELECT NULL, seq, ${eventColumns} FROM audit_staged
        WHERE (subject_id = $1 OR actor_id = $1) AND seq < $3 ORDER BY seq DESC LIMIT $4)
    ) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT $4) newest ORDER BY seq DESC NULLS LAST, id DESC`,
}

/** Above every number of an event. */
const highest = String(2n ** 63n - 1n)

// Looks at e-mails that are queued one by one: few are, unless the mail server is down.
const exported: Statement = {
  name: 'user-data-export',
  slow: true,
  text: `SELECT jsonb_build_object(
    'users', to_jsonb(u) - ARRAY['password_hash', 'username_key', 'nickname_key', 'username_skeleton', 'nickname_skeleton']
      || jsonb_build_object('has_password', u.password_hash <> ''),
    'organizations', ${rows(
      'id, active, name, address, creation_date, inep_code, login, phone, responsible, type, website, email',
      'organizations WHERE id = u.organization_id',
      't.id',
    )},
    'former_usernames', ${rows('username_key, reserved_until', 'former_usernames WHERE user_id = $1', 't.username_key')},
    'provider_keys', ${rows('id', 'provider_keys WHERE user_id = $1', 't.id')},
    'answers', ${rows(
      'q.id AS question_id, q.question, a.answer_hash IS NOT NULL AS answered, a.next_counts_at',
      'answers a JOIN questions q ON q.id = a.question_id WHERE a.user_id = $1',
      't.question_id',
    )},
    'unmatched_answers', ${rows('question', 'unmatched_answers WHERE user_id = $1', 't.question')},
    'known_addresses', ${rows('seen_at', 'known_addresses WHERE user_id = $1', 't.seen_at')},
    'mailed_keys', ${rows('purpose, organization_id, email, expires_at', 'mailed_keys WHERE user_id = $1', 't.purpose')},
    'totp_secrets', ${rows('secret_sealed IS NOT NULL AS enrolled, locked_at', 'totp_secrets WHERE user_id = $1', 't.enrolled')},
    'creation_requests', ${rows('created_at', 'creation_requests WHERE user_id = $1', 't.created_at')},
    'emails', ${rows(
      "id, kind, parameters - 'actor' AS parameters, locale, attempts, created_at, next_attempt_at, last_error",
      "emails WHERE parameters ->> 'userId' = $1::text OR (kind = 'recovery-request' AND parameters ->> 'usernameKey' = u.username_key)",
      't.id',
    )}
  ) AS data FROM users u WHERE u.id = $1`,
}

/** What is stored of users in a database. */
export function createUserData(database: Database): UserData {
  return {
    standing: async id => (await database.run<Standing>(standing, [id]))[0],
    export: async id => (await database.run<{ data: Record<string, unknown> }>(exported, [id]))[0]?.data,
    async events(id, { before, limit }) {
      const sealedBefore = before && 'id' in before ? before.id : highest
      const stagedBefore = before ? ('seq' in before ? before.seq : '0') : highest
      return database.run<OwnEvent>(events, [id, sealedBefore, stagedBefore, limit])
    },
  }
}
