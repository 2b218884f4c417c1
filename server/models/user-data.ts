// Reads the stored data of a user from all tables: to diagnose problems of the account, and to export the data (LGPD).
import { snakeCase } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import type { AuditAction } from '../policy/audit-actions.js'
import { organizationFields } from '../rules/organization.js'
import { profile, profileFields } from '../rules/profile.js'

/** Metadata of a user's answer to a question. */
interface SavedAnswer {
  readonly questionId: number
  readonly question: string
  /** Whether the question is offered. Apps don't show retired questions. */
  readonly offered: boolean
  /** Whether an answer is in effect. */
  readonly counts: boolean
  /** Seconds until a pending answer takes effect; null without one. */
  readonly waits: number | null
}

/** Data that determines what a user can do and that isn't part of the user's record. */
export interface Standing {
  /** Whether the user has a password. */
  readonly password: boolean
  /** Whether an active organization (the user's own, if it has one) has an active provider, whose key activates users. */
  readonly provider: boolean
  readonly answers: readonly SavedAnswer[]
  /** E-mails to the user that failed permanently, by id. */
  readonly failedEmails: readonly { readonly id: number; readonly error: string | null }[]
}

/** The reader of a user's data: administrators, or the user itself, who gets no data of other people. */
export type Reader = 'administrator' | 'owner'

/** Reads the stored data of a user. */
export interface UserData {
  standing(id: number): Promise<Standing | undefined>
  /**
   * Returns all stored data of a user except audit events, with a member for each table; undefined when the user doesn't
   * exist. Omits hashes, keys and digests, but lists a row for each stored key, code or network. The export for the owner
   * also omits what other people entered, and internal state of the registry.
   */
  export(id: number, reader: Reader, t?: Transaction): Promise<Record<string, unknown> | undefined>
  /**
   * Returns the audit events that a user caused or that concern the user, newest first: staged events, then sealed events.
   * `before` selects earlier events. Omits the client addresses of other actors.
   */
  events(id: number, page: EventPage): Promise<Placed<Record<string, unknown>>[]>
  /** Returns the same events for the owner: a description of the actor, and the client address of the owner's own acts. */
  ownEvents(id: number, page: EventPage, t?: Transaction): Promise<Placed<OwnEvent>[]>
  /**
   * Returns the last sign-in of a user before the session that began at `startedAt` (seconds since 1970), among the newest
   * 1,000 events of the user. The address is null if it is unknown.
   */
  previousSignIn(id: number, startedAt: number): Promise<{ at: Date; address: string | null } | undefined>
}

/** The position of an event in the audit log: its id if it is sealed, or its sequence number if it is staged. */
export type EventPlace = { readonly id: string } | { readonly seq: string }

/** The events to read: at most `limit`, earlier than `before`. */
interface EventPage {
  readonly before: EventPlace | undefined
  readonly limit: number
}

/** An event with its position. */
interface Placed<Event> {
  readonly place: EventPlace
  readonly event: Event
}

/** An event as its user sees it. */
export interface OwnEvent {
  /** ISO 8601. */
  readonly time: string
  readonly action: string
  readonly refused: boolean
  readonly by: string
  /** Null if another actor caused the event. */
  readonly address: string | null
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

/** The columns of an event of the user `$1`, by reader. */
const eventColumns: Record<Reader, string> = {
  // The client addresses of other people are their personal data.
  administrator: `at, action, outcome, reason, actor, actor_id, subject_id, object, request_id,
    CASE WHEN actor_id = $1 OR (actor_id IS NULL AND actor NOT LIKE 'cli:%') THEN address END AS address`,
  // A sign-up has no actor, because the user had no id yet.
  owner: `at AS time, action, outcome <> 'ok' AS refused,
    CASE WHEN actor_id = $1 OR action = 'user.sign-up' THEN 'you'
      WHEN action = 'user.deactivate' THEN 'your organization'
      WHEN actor = 'user' OR actor LIKE 'cli:%' THEN 'an administrator'
      WHEN actor = 'service' THEN 'the system'
      WHEN actor LIKE 'service:%' THEN 'a service'
      ELSE 'an unknown client' END AS by,
    CASE WHEN actor_id = $1 OR action = 'user.sign-up' THEN address END AS address`,
}

/** Members of an event that only hold its position, by reader. */
const placeOnly: Record<Reader, string> = {
  administrator: `CASE WHEN id IS NULL THEN ARRAY['id', 'seq'] ELSE ARRAY['seq'] END`,
  owner: `ARRAY['id', 'seq']`,
}

// Events that are sealed between two pages get ids above those of earlier pages. An event can appear twice only when staged
// events fill a page.
function eventsFor(reader: Reader): Statement {
  const columns = eventColumns[reader]
  const sealed = (whose: string) => `(SELECT id, NULL::bigint AS seq, ${columns} FROM audit_events
    WHERE ${whose} AND id < $2 ORDER BY id DESC LIMIT $4)`
  return {
    name: `user-data-events-${reader}`,
    text: `SELECT CASE WHEN id IS NULL THEN jsonb_build_object('seq', seq::text) ELSE jsonb_build_object('id', id::text) END AS place,
        to_jsonb(newest) - ${placeOnly[reader]} AS event
      FROM (SELECT * FROM (
        ${sealed('subject_id = $1')} UNION ALL ${sealed('actor_id = $1 AND actor_id IS DISTINCT FROM subject_id')}
        UNION ALL (SELECT NULL, seq, ${columns} FROM audit_staged
          WHERE (subject_id = $1 OR actor_id = $1) AND seq < $3 ORDER BY seq DESC LIMIT $4)
      ) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT $4) newest ORDER BY seq DESC NULLS LAST, id DESC`,
  }
}

const events: Record<Reader, Statement> = { administrator: eventsFor('administrator'), owner: eventsFor('owner') }

/** The maximum of a bigint, as an upper bound of ids and sequence numbers. */
const maxBigint = String(2n ** 63n - 1n)

const newestOf = (table: string, place: string) => `(SELECT ${place}, at, action, outcome, address FROM ${table}
  WHERE subject_id = $1 ORDER BY ${place} DESC LIMIT 1000)`

// Skips the sign-in of the session itself: the newest one until its start, which is in whole seconds. The tolerance covers
// small differences of clocks.
const previousSignIn: Statement = {
  name: 'user-data-previous-sign-in',
  text: `SELECT at, address FROM (
      SELECT id, NULL::bigint AS seq, at, action, outcome, address FROM ${newestOf('audit_events', 'id')} sealed
      UNION ALL SELECT NULL, seq, at, action, outcome, address FROM ${newestOf('audit_staged', 'seq')} staged
    ) newest
    WHERE action = ANY($3) AND outcome = 'ok' AND at < to_timestamp($2::float8 + 1.1)
    ORDER BY seq DESC NULLS LAST, id DESC OFFSET 1 LIMIT 1`,
}

/** Actions that begin a session. */
const signIns: readonly AuditAction[] = [
  'user.sign-up',
  'session.login',
  'session.login-by-answers',
  'session.login-by-key',
  'session.admin-login',
]

/**
 * The exported columns of the user `u`, by reader. A new column that isn’t of the profile is for administrators until it is listed
 * for the owner.
 */
const userColumns: Record<Reader, string> = {
  administrator: `to_jsonb(u) - ARRAY['password_hash', 'username_key', 'nickname_key', 'username_skeleton', 'nickname_skeleton']`,
  owner: `(SELECT to_jsonb(t) FROM (SELECT u.id, u.username, u.password_updated_at, u.email, u.security_question,
      u.terms_of_usage, u.role, u.active, u.suspended, u.organization_id, u.created_at, u.unactivated_seen_at, u.activated_at,
      u.avatar, ${profileFields.map(field => `u.${snakeCase(profile[field].attribute)}`).join(', ')}) t)`,
}

/** The export of a table with data of the user `u`: columns for every reader, and `more` for administrators only. */
interface ExportedTable {
  readonly from: string
  /** Absent: the whole table is for administrators only. */
  readonly columns?: string
  readonly more?: string
  readonly order: string
}

/** Columns of organizations: with personal data of the people who run it, or without. */
function organizationColumns(personal: boolean): string[] {
  return organizationFields
    .filter(field => (field.personal ?? false) === personal)
    .map(({ attribute }) => snakeCase(attribute))
}

const exportedTables: Readonly<Record<string, ExportedTable>> = {
  organizations: {
    from: 'organizations WHERE id = u.organization_id',
    columns: ['id', 'active', 'creation_date', ...organizationColumns(false)].join(', '),
    more: organizationColumns(true).join(', '),
    order: 't.id',
  },
  former_usernames: {
    from: 'former_usernames WHERE user_id = $1',
    columns: 'username_key, reserved_until',
    order: 't.username_key',
  },
  provider_keys: { from: 'provider_keys WHERE user_id = $1', columns: 'id', order: 't.id' },
  answers: {
    from: 'answers a JOIN questions q ON q.id = a.question_id WHERE a.user_id = $1',
    columns: 'q.id AS question_id, q.question, a.answer_hash IS NOT NULL AS answered, a.next_counts_at',
    order: 't.question_id',
  },
  unmatched_answers: { from: 'unmatched_answers WHERE user_id = $1', columns: 'question', order: 't.question' },
  known_addresses: { from: 'known_addresses WHERE user_id = $1', columns: 'seen_at', order: 't.seen_at' },
  mailed_keys: {
    from: 'mailed_keys WHERE user_id = $1',
    columns: 'purpose, organization_id, email, expires_at',
    order: 't.purpose',
  },
  totp_secrets: {
    from: 'totp_secrets WHERE user_id = $1',
    columns: 'secret_sealed IS NOT NULL AS enrolled, locked_at',
    order: 't.enrolled',
  },
  predecessor_users: { from: 'predecessor_users WHERE user_id = $1', columns: 'true AS imported', order: 't.imported' },
  creation_requests: { from: 'creation_requests WHERE user_id = $1', more: 'created_at', order: 't.created_at' },
  emails: {
    from: `emails WHERE coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') IN ($1::int::text, u.username_key)
      AND (parameters ->> 'userId' = $1::int::text
        OR (kind = 'recovery-request' AND parameters ->> 'usernameKey' = u.username_key))`,
    columns: 'id, kind, locale, created_at, next_attempt_at',
    // Parameters can hold data of other people: the address that a caller gave, and the reason of an administrator.
    more: "parameters - 'actor' AS parameters, attempts, last_error",
    order: 't.id',
  },
}

function exportFor(reader: Reader): Statement {
  const members = Object.entries(exportedTables).flatMap(([name, { from, columns, more, order }]) => {
    const shown = [columns, reader === 'administrator' ? more : undefined].filter(each => each !== undefined)
    return shown.length > 0 ? [`'${name}', ${rows(shown.join(', '), from, order)}`] : []
  })
  return {
    name: `user-data-export-${reader}`,
    text: `SELECT jsonb_build_object(
      'users', ${userColumns[reader]} || jsonb_build_object('has_password', u.password_hash <> ''),
      ${members.join(',\n')}
    ) AS data FROM users u WHERE u.id = $1`,
  }
}

const exported: Record<Reader, Statement> = { administrator: exportFor('administrator'), owner: exportFor('owner') }

/** Creates the methods that read the data of users in a database. */
export function createUserData(database: Database): UserData {
  async function eventsOf<Event>(reader: Reader, id: number, { before, limit }: EventPage, t?: Transaction) {
    const sealedBefore = before && 'id' in before ? before.id : maxBigint
    const stagedBefore = before ? ('seq' in before ? before.seq : '0') : maxBigint
    return database.run<Placed<Event>>(events[reader], [id, sealedBefore, stagedBefore, limit], t)
  }
  return {
    standing: async id => (await database.run<Standing>(standing, [id]))[0],
    export: async (id, reader, t) =>
      (await database.run<{ data: Record<string, unknown> }>(exported[reader], [id], t))[0]?.data,
    events: (id, page) => eventsOf('administrator', id, page),
    ownEvents: (id, page, t) => eventsOf('owner', id, page, t),
    previousSignIn: async (id, startedAt) =>
      (await database.run<{ at: Date; address: string | null }>(previousSignIn, [id, startedAt, signIns]))[0],
  }
}
