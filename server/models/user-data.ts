// Reads the stored data of a user from all tables: to diagnose problems of the account, and to export the data (LGPD).
import { snakeCase } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import type { AuditAction } from '../policy/audit-actions.js'
import { organizationFields } from '../rules/organization.js'
import { profile, profileFields } from '../rules/profile.js'
import type { ActivationKeys } from './activation-key.js'
import { providerUser } from './user-state.js'

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
  /** Whether the keys of the user's organization work; null without one. */
  readonly keysWork: boolean | null
  /** Whether a provider (of the user's organization, if it has one) has a key that works. */
  readonly provider: boolean
  readonly answers: readonly SavedAnswer[]
  /** E-mails to the user that failed permanently, by id. */
  readonly failedEmails: readonly { readonly id: number; readonly error: string | null }[]
}

/** The reader of a user's data: administrators, or the user itself, who gets no data of other people. */
type Reader = 'administrator' | 'owner'

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
interface OwnEvent {
  /** ISO 8601. */
  readonly time: string
  readonly action: string
  readonly refused: boolean
  readonly by: string
  /** Null if another actor caused the event. */
  readonly address: string | null
  /** Why refresh tokens ended. */
  readonly reason?: string
  /** The service at which the user signed in, or whose tokens ended. */
  readonly service?: string
  /** Username of the member of the user's organization who issued a key. */
  readonly member?: string
}

const rows = (columns: string, from: string, order: string) =>
  `(SELECT coalesce(jsonb_agg(to_jsonb(t) ORDER BY ${order}), '[]') FROM (SELECT ${columns} FROM ${from}) t)`

/** Whether a member of the user's organization issued a key, not an administrator. */
const issuedByMember = sql`(action = 'user.issue-key' AND object IS NOT NULL)`

/** The columns of an event of a user, by reader. */
const eventColumns: Record<Reader, (id: number) => Query> = {
  // The client addresses of other people are their personal data.
  administrator: id => sql`at, action, outcome, reason, actor, actor_id, subject_id, object, request_id,
    CASE WHEN actor_id = ${id} OR (actor_id IS NULL AND actor NOT LIKE 'cli:%') THEN address END AS address`,
  // A sign-up has no actor, because the user had no id yet.
  owner: id => sql`at AS time, action, outcome <> 'ok' AS refused,
    CASE WHEN actor_id = ${id} OR action = 'user.sign-up' THEN 'you'
      WHEN action = 'user.deactivate' OR ${issuedByMember} THEN 'your organization'
      WHEN actor = 'user' OR actor LIKE 'cli:%' THEN 'an administrator'
      WHEN actor = 'service' THEN 'the system'
      WHEN actor LIKE 'service:%' THEN 'a service'
      ELSE 'an unknown client' END AS by,
    CASE WHEN action = 'session.end' THEN reason END AS reason,
    CASE WHEN action IN ('session.authorize', 'session.end') THEN substring(object FROM '^service:(.*)') END AS service,
    CASE WHEN ${issuedByMember} THEN (SELECT username FROM users WHERE id = actor_id) END AS member,
    CASE WHEN actor_id = ${id} OR action = 'user.sign-up' THEN address END AS address`,
}

/** Members of an event that only hold its position, by reader. */
const placeOnly: Record<Reader, Query> = {
  administrator: sql`CASE WHEN id IS NULL THEN ARRAY['id', 'seq'] ELSE ARRAY['seq'] END`,
  owner: sql`(ARRAY['id', 'seq'] || CASE WHEN reason IS NULL THEN ARRAY['reason'] ELSE '{}' END
    || CASE WHEN service IS NULL THEN ARRAY['service'] ELSE '{}' END
    || CASE WHEN member IS NULL THEN ARRAY['member'] ELSE '{}' END)`,
}

/** The maximum of a bigint, as an upper bound of ids and sequence numbers. */
const maxBigint = String(2n ** 63n - 1n)

// Events that are sealed between two pages get ids above those of earlier pages. An event can appear twice only when staged
// events fill a page.
function eventsFor(reader: Reader, id: number, { before, limit }: EventPage): Query {
  const columns = eventColumns[reader](id)
  const sealedBefore = before && 'id' in before ? before.id : maxBigint
  const stagedBefore = before ? ('seq' in before ? before.seq : '0') : maxBigint
  const sealed = (whose: Query) => sql`(SELECT id, NULL::bigint AS seq, ${columns} FROM audit_events
    WHERE ${whose} AND id < ${sealedBefore} ORDER BY id DESC LIMIT ${limit})`
  return sql(`user-data-events-${reader}`)`
    SELECT CASE WHEN id IS NULL THEN jsonb_build_object('seq', seq::text) ELSE jsonb_build_object('id', id::text) END AS place,
      to_jsonb(newest) - ${placeOnly[reader]} AS event
    FROM (SELECT * FROM (
      ${sealed(sql`subject_id = ${id}`)}
      UNION ALL ${sealed(sql`actor_id = ${id} AND actor_id IS DISTINCT FROM subject_id`)}
      UNION ALL (SELECT NULL, seq, ${columns} FROM audit_staged
        WHERE (subject_id = ${id} OR actor_id = ${id}) AND seq < ${stagedBefore} ORDER BY seq DESC LIMIT ${limit})
    ) every ORDER BY seq DESC NULLS LAST, id DESC LIMIT ${limit}) newest ORDER BY seq DESC NULLS LAST, id DESC`
}

const newestOf = (
  id: number,
  table: Query,
  place: Query,
) => sql`(SELECT ${place}, at, action, outcome, object, address FROM ${table}
  WHERE subject_id = ${id} ORDER BY ${place} DESC LIMIT 1000)`

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
  administrator: `to_jsonb(u) - ARRAY['password_hash', 'username_key', 'nickname_key', 'username_skeleton', 'nickname_skeleton',
    'recovery_from', 'recovery_kept']`,
  owner: `(SELECT to_jsonb(t) FROM (SELECT u.id, u.username, u.password_updated_at, u.email, u.email_proved, u.security_question,
      u.terms_of_usage, u.role, u.active, u.suspended, u.desk, u.organization_id, u.created_at, u.unactivated_seen_at, u.activated_at,
      ${profileFields.map(field => `u.${snakeCase(profile[field].attribute)}`).join(', ')}) t)`,
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
    columns: ['id', 'active', ...organizationColumns(false)].join(', '),
    more: organizationColumns(true).join(', '),
    order: 't.id',
  },
  former_usernames: {
    from: 'former_usernames WHERE user_id = u.id',
    columns: 'username_key, reserved_until',
    order: 't.username_key',
  },
  provider_keys: { from: 'provider_keys WHERE user_id = u.id', columns: 'id', order: 't.id' },
  answers: {
    from: 'answers a JOIN questions q ON q.id = a.question_id WHERE a.user_id = u.id',
    columns: 'q.id AS question_id, q.question, a.answer_hash IS NOT NULL AS answered, a.next_counts_at',
    order: 't.question_id',
  },
  unmatched_answers: { from: 'unmatched_answers WHERE user_id = u.id', columns: 'question', order: 't.question' },
  known_addresses: { from: 'known_addresses WHERE user_id = u.id', columns: 'seen_at', order: 't.seen_at' },
  refreshed_sessions: {
    from: 'refreshed_sessions l LEFT JOIN services s ON s.id = l.service_id WHERE l.user_id = u.id',
    columns: 's.name AS service, l.issued_at, l.ends_at, l.ended',
    order: 't.ends_at',
  },
  mailed_keys: {
    from: 'mailed_keys WHERE user_id = u.id',
    columns: 'purpose, organization_id, email, expires_at',
    order: 't.purpose',
  },
  totp_secrets: {
    from: 'totp_secrets WHERE user_id = u.id',
    columns: 'secret_sealed IS NOT NULL AS enrolled, locked_at',
    order: 't.enrolled',
  },
  emails: {
    from: `emails WHERE coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') IN (u.id::text, u.username_key)
      AND (parameters ->> 'userId' = u.id::text OR parameters ->> 'usernameKey' = u.username_key)`,
    columns: 'id, kind, stage, locale, created_at, next_attempt_at',
    // Parameters can hold data of other people: the address that a caller gave, and the reason of an administrator.
    more: "parameters - 'actor' AS parameters, attempts, last_error",
    order: 't.id',
  },
  sent_emails: {
    from: 'sent_emails WHERE user_id = u.id',
    columns: 'id, kind, created_at, sent_at',
    more: 'attempts, answer',
    order: 't.id',
  },
}

function exportFor(reader: Reader, id: number): Query {
  const members = Object.entries(exportedTables).flatMap(([name, { from, columns, more, order }]) => {
    const shown = [columns, reader === 'administrator' ? more : undefined].filter(each => each !== undefined)
    return shown.length > 0 ? [`'${name}', ${rows(shown.join(', '), from, order)}`] : []
  })
  return sql(`user-data-export-${reader}`)`SELECT jsonb_build_object(
      'users', ${sql.text(userColumns[reader])} || jsonb_build_object('has_password', u.password_hash <> ''),
      ${sql.text(members.join(',\n'))}
    ) AS data FROM users u WHERE u.id = ${id}`
}

/** Creates the methods that read the data of users in a database. */
export function createUserData(database: Database, { keysWork }: Pick<ActivationKeys, 'keysWork'>) {
  const eventsOf = <Event>(reader: Reader, id: number, page: EventPage, t?: Transaction) =>
    database.run<Placed<Event>>(eventsFor(reader, id, page), t)
  return {
    standing(id: number) {
      const read = sql('user-data-standing')`
        SELECT self.password_hash <> '' AS password,
          (SELECT ${keysWork} FROM organizations o WHERE o.id = self.organization_id) AS "keysWork",
          EXISTS (SELECT FROM users u JOIN organizations o ON o.id = u.organization_id
            WHERE ${providerUser.sql} AND ${keysWork} AND (self.organization_id IS NULL OR o.id = self.organization_id)) AS provider,
          ARRAY (SELECT jsonb_build_object('questionId', q.id, 'question', q.question, 'offered', q.active,
              'counts', a.answer_hash IS NOT NULL OR coalesce(a.next_counts_at <= now(), false),
              'waits', CASE WHEN a.next_counts_at > now() THEN ceil(extract(epoch FROM a.next_counts_at - now())) END)
            FROM answers a JOIN questions q ON q.id = a.question_id WHERE a.user_id = self.id ORDER BY q.id) AS answers,
          ARRAY (SELECT jsonb_build_object('id', e.id, 'error', e.last_error) FROM emails e
            WHERE e.next_attempt_at IS NULL AND e.parameters ->> 'userId' = ${id}::text ORDER BY e.id) AS "failedEmails"
        FROM users self WHERE self.id = ${id}::int`
      return first(database.run<Standing>(read))
    },
    /**
     * Returns all stored data of a user except audit events, with a member for each table; undefined when the user doesn't
     * exist. Omits hashes, keys and digests, but lists a row for each stored key, code or network. The export for the owner
     * also omits what other people entered, and internal state of the registry.
     */
    export: async (id: number, reader: Reader, t?: Transaction) =>
      (await first(database.run<{ data: Record<string, unknown> }>(exportFor(reader, id), t)))?.data,
    /**
     * Returns the audit events that a user caused or that concern the user, newest first: staged events, then sealed events.
     * `before` selects earlier events. Omits the client addresses of other actors.
     */
    events: (id: number, page: EventPage) => eventsOf<Record<string, unknown>>('administrator', id, page),
    /** Returns the same events for the owner: a description of the actor, and the client address of the owner's own acts. */
    ownEvents: (id: number, page: EventPage, t?: Transaction) => eventsOf<OwnEvent>('owner', id, page, t),
    /**
     * Returns the last sign-in of a user before the session that began at `startedAt` (seconds since 1970), among the newest
     * 1,000 events of the user. The address is null if it is unknown.
     */
    previousSignIn(id: number, startedAt: number) {
      const read = sql('user-data-previous-sign-in')`
        SELECT at, address FROM (
          SELECT id, NULL::bigint AS seq, at, action, outcome, address FROM ${newestOf(id, sql`audit_events`, sql`id`)} sealed
          UNION ALL SELECT NULL, seq, at, action, outcome, address FROM ${newestOf(id, sql`audit_staged`, sql`seq`)} staged
        ) newest
        WHERE action = ANY(${signIns}) AND outcome = 'ok' AND at < to_timestamp(${startedAt}::float8 + 1.1)
        ORDER BY seq DESC NULLS LAST, id DESC OFFSET 1 LIMIT 1`
      return first(database.run<{ at: Date; address: string | null }>(read))
    },
    /**
     * Returns when the earliest of a user's answers was saved, waiting ones and one to a text of the sign-up included; undefined if
     * there are none. An answer without an event among the newest 1,000 of the user counts from the sign-up on.
     */
    async answersSince(id: number) {
      const read = sql('user-data-answers-since')`
        SELECT min(coalesce(saved.at, u.created_at)) AS since
        FROM users u, (SELECT 'question:' || question_id AS object FROM answers WHERE user_id = ${id}
          UNION ALL SELECT '' FROM unmatched_answers WHERE user_id = ${id}) given
        LEFT JOIN LATERAL (SELECT max(at) AS at FROM (
            SELECT at, action, outcome, object FROM ${newestOf(id, sql`audit_events`, sql`id`)} sealed
            UNION ALL SELECT at, action, outcome, object FROM ${newestOf(id, sql`audit_staged`, sql`seq`)} staged
          ) newest WHERE action = 'user.save-answer' AND outcome = 'ok' AND newest.object = given.object) saved ON true
        WHERE u.id = ${id}`
      return (await first(database.run<{ since: Date | null }>(read)))?.since ?? undefined
    },
  }
}
