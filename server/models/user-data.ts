// What is stored of one user in all tables, read together: to explain what it can't do, and to hand it out (LGPD).
import type { Database, Statement, Transaction } from '../database/connection.js'
import type { AuditAction } from '../policy/audit-actions.js'

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

/** Whom what is stored of a user is handed to: administrators, or the user itself, who gets no data of other people. */
export type Reader = 'administrator' | 'owner'

/** Reads what is stored of a user. */
export interface UserData {
  standing(id: number): Promise<Standing | undefined>
  /**
   * All that is stored of a user but events of the audit log, a member for each table; undefined when there is no such
   * user. Without what is secret or says nothing: hashes, keys, and digests, of which it tells how many there are. The
   * owner gets neither what others wrote or typed in, nor the registry's own bookkeeping.
   */
  export(id: number, reader: Reader, t?: Transaction): Promise<Record<string, unknown> | undefined>
  /**
   * Events that a user made or that were done to it, the newest first: not sealed yet, then sealed; those before a place,
   * if one is given.
   */
  events(id: number, page: EventPage): Promise<Placed<Record<string, unknown>>[]>
  /** The same as the owner may see them: who acted in plain words, and the address of what it did itself. */
  ownEvents(id: number, page: EventPage, t?: Transaction): Promise<Placed<OwnEvent>[]>
  /**
   * The last sign-in of a user before the session that began at `startedAt` (seconds since 1970), among its newest 1,000
   * events; the address is null if it is unknown.
   */
  previousSignIn(id: number, startedAt: number): Promise<{ at: Date; address: string | null } | undefined>
}

/** Where an event is in the audit log: its number among the sealed ones, or among those that aren't sealed yet. */
export type EventPlace = { readonly id: string } | { readonly seq: string }

/** Which events to read: so many, those before a place if one is given. */
interface EventPage {
  readonly before: EventPlace | undefined
  readonly limit: number
}

/** An event with its place. */
interface Placed<Event> {
  readonly place: EventPlace
  readonly event: Event
}

/** An event as the user concerned sees it. */
export interface OwnEvent {
  /** ISO 8601. */
  readonly time: string
  readonly action: string
  readonly refused: boolean
  readonly by: string
  /** Null if the user didn't act itself. */
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

/** What each reader sees of an event of the user `$1`. */
const eventColumns: Record<Reader, string> = {
  // Where other users and administrators acted from is theirs.
  administrator: `at, action, outcome, reason, actor, actor_id, subject_id, object, request_id,
    CASE WHEN actor_id = $1 OR (actor_id IS NULL AND actor NOT LIKE 'cli:%') THEN address END AS address`,
  // Before its sign-up a user has no id: the event has no actor.
  owner: `at AS time, action, outcome <> 'ok' AS refused,
    CASE WHEN actor_id = $1 OR action = 'user.sign-up' THEN 'you'
      WHEN actor = 'user' OR actor LIKE 'cli:%' THEN 'an administrator'
      WHEN actor = 'service' THEN 'the system'
      WHEN actor LIKE 'service:%' THEN 'a service'
      ELSE 'an unknown client' END AS by,
    CASE WHEN actor_id = $1 OR action = 'user.sign-up' THEN address END AS address`,
}

/** Members of an event that only tell its place. */
const placeOnly: Record<Reader, string> = {
  administrator: `CASE WHEN id IS NULL THEN ARRAY['id', 'seq'] ELSE ARRAY['seq'] END`,
  owner: `ARRAY['id', 'seq']`,
}

// Events that are sealed between two pages get numbers above all that were shown. Only where those not sealed fill a page
// may one be shown twice.
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

/** Above every number of an event. */
const highest = String(2n ** 63n - 1n)

const newestOf = (table: string, place: string) => `(SELECT ${place}, at, action, outcome, address FROM ${table}
  WHERE subject_id = $1 ORDER BY ${place} DESC LIMIT 1000)`

// The newest one that isn't later is that of the session itself: it is recorded just before the session begins, whose time
// is cut to a second. Clocks may differ a little.
const previousSignIn: Statement = {
  name: 'user-data-previous-sign-in',
  text: `SELECT at, address FROM (
      SELECT id, NULL::bigint AS seq, at, action, outcome, address FROM ${newestOf('audit_events', 'id')} sealed
      UNION ALL SELECT NULL, seq, at, action, outcome, address FROM ${newestOf('audit_staged', 'seq')} staged
    ) newest
    WHERE action = ANY($3) AND outcome = 'ok' AND at < to_timestamp($2::float8 + 1.1)
    ORDER BY seq DESC NULLS LAST, id DESC OFFSET 1 LIMIT 1`,
}

/** What begins a session. */
const signIns: readonly AuditAction[] = [
  'user.sign-up',
  'session.login',
  'session.login-by-answers',
  'session.login-by-key',
  'session.admin-login',
]

/** What an export has of the user `u`: a column that comes later is for administrators, until it is listed for the owner. */
const userColumns: Record<Reader, string> = {
  administrator: `to_jsonb(u) - ARRAY['password_hash', 'username_key', 'nickname_key', 'username_skeleton', 'nickname_skeleton']`,
  owner: `(SELECT to_jsonb(t) FROM (SELECT u.id, u.username, u.nickname, u.password_updated_at, u.email, u.date_of_birth,
      u.gender, u.state, u.city, u.institution_type, u.institution, u.security_question, u.terms_of_usage, u.role, u.active,
      u.suspended, u.organization_id, u.created_at, u.unactivated_seen_at) t)`,
}

/** What an export has of a table with data of the user `u`: columns for every reader, and those for administrators alone. */
interface ExportedTable {
  readonly from: string
  /** None: the whole table is for administrators alone. */
  readonly columns?: string
  readonly more?: string
  readonly order: string
}

const exportedTables: Readonly<Record<string, ExportedTable>> = {
  organizations: {
    from: 'organizations WHERE id = u.organization_id',
    columns: 'id, active, name, address, creation_date, inep_code, type, website',
    // Of the people who run it.
    more: 'login, phone, responsible, email',
    order: 't.id',
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
  creation_requests: { from: 'creation_requests WHERE user_id = $1', more: 'created_at', order: 't.created_at' },
  emails: {
    from: `emails WHERE coalesce(parameters ->> 'userId', parameters ->> 'usernameKey') IN ($1::int::text, u.username_key)
      AND (parameters ->> 'userId' = $1::int::text
        OR (kind = 'recovery-request' AND parameters ->> 'usernameKey' = u.username_key))`,
    columns: 'id, kind, locale, created_at, next_attempt_at',
    // Whoever asks for an e-mail gives an address, and has one; administrators give a reason.
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

/** What is stored of users in a database. */
export function createUserData(database: Database): UserData {
  async function eventsOf<Event>(reader: Reader, id: number, { before, limit }: EventPage, t?: Transaction) {
    const sealedBefore = before && 'id' in before ? before.id : highest
    const stagedBefore = before ? ('seq' in before ? before.seq : '0') : highest
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
