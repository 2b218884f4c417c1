// Attempts to sign in, the addresses that accounts signed in from, and other things that are counted within a time.
// The statements are written by hand: each counts, reads and records in one round trip (measured; see database/).
import { network } from '../clientaddress.js'
import { bytes, defineTable, integer, key, preset, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'
import type { Role } from '../roles.js'
import type { Audit, AuditEvent } from './audit.js'

/**
 * Proofs whose failures are counted for each account, each for itself. `administration` is the password at SignIn of
 * Administration. One-time codes are counted with their secrets, mailed keys by key and network.
 */
export const proofs = ['password', 'answers', 'administration'] as const

/** One of them. */
export type Proof = (typeof proofs)[number]

/** Names of what is counted, as keyed digests: what somebody unknown typed is stored nowhere. An IPv6 client is its /64. */
export interface Subjects {
  /** All attempts of a proof on an account from addresses it doesn't know. */
  account(proof: Proof, usernameKey: string): Buffer
  /** Attempts of a proof on an account from one address that it knows. */
  known(proof: Proof, usernameKey: string, address: string): Buffer
  /** Wrong activation keys that a user gave. */
  activation(userId: number): Buffer
  /** What one client address did of a kind. */
  address(kind: string, address: string): Buffer
  /** Attempts of a mailed key, by its digest, from one client address. */
  mailedKey(keyDigest: Buffer, address: string): Buffer
  /** E-mails that count for a limit together. */
  emails(limit: string, of: string): Buffer
  /** A client address, for the list of those known to an account. */
  knownAddress(address: string): Buffer
}

/** Makes the names of what is counted. */
export function createSubjects(masterKey: Pick<MasterKey, 'digest'>): Subjects {
  const name = (...parts: string[]) => masterKey.digest('attempts', parts.join('\0')).subarray(0, 16)
  return {
    account: (proof, usernameKey) => name('account', proof, usernameKey),
    known: (proof, usernameKey, address) => name('known', proof, usernameKey, network(address)),
    activation: userId => name('activation', String(userId)),
    address: (kind, address) => name('address', kind, network(address)),
    mailedKey: (keyDigest, address) => name('mailed-key', keyDigest.toString('hex'), network(address)),
    emails: (limit, of) => name('emails', limit, of),
    knownAddress: address => name('known-address', network(address)),
  }
}

/** What a sign-in needs to know of an account. */
export interface Account {
  readonly id: number
  readonly username: string
  readonly passwordHash: string
  readonly email: string | null
  readonly role: Role
  readonly active: boolean
  readonly suspended: boolean
  readonly organizationId: number | null
  readonly tokenGeneration: number
}

/** What is asked when an attempt begins. */
export interface BeginValues {
  readonly usernameKey: string
  /** Where it counts, from an address that the account doesn't know and from one that it does; null where no account counts it. */
  readonly subjects: { readonly account: Buffer | null; readonly known: Buffer | null; readonly address: Buffer }
  readonly knownAddress: Buffer
  readonly knownDays: number
  /** Most failures and attempts under way together. */
  readonly most: number
  readonly underWaySeconds: number
  /** The bucket of the client address holds up those that the account doesn't know. */
  readonly bucket: { readonly capacity: number; readonly perSecond: number }
}

/** An attempt that was counted as under way, or why it wasn't. */
export interface Begun {
  readonly account: Account | undefined
  /** Whether the account knows the address. */
  readonly known: boolean
  /** How full the bucket of the client address is. */
  readonly addressLevel: number
  /** Whether it may go on. If not, the rest says why. */
  readonly begun: boolean
  /** Failures before this one. */
  readonly failed: number
  /** Seconds until those are forgotten. */
  readonly seconds: number
}

/** A count within a time. */
export interface Count {
  readonly count: number
  /** Seconds until it starts anew. */
  readonly seconds: number
}

const attributes = {
  subject: key(bytes),
  count: integer,
  windowEnds: time,
  underWay: preset(integer),
  underWayUntil: preset(time),
}

const addressAttributes = { userId: key(integer), address: key(bytes), seenAt: preset(time) }

/** Counts attempts and what else is limited within a time. */
export interface Attempts {
  /** Counts an attempt as under way, unless a limit stands in the way, and reads the account. */
  begin(values: BeginValues): Promise<Begun>
  /** Ends an attempt that wasn't decided: it never was. */
  undo(subject: Buffer): Promise<void>
  /**
   * Ends a failed attempt and records it. Returns the failures now, this one included; 0 where no account counts it. Like
   * the other two that record, it names no user who was erased meanwhile: then it leaves no event.
   */
  fail(subject: Buffer | null, seconds: number, event: AuditEvent): Promise<number>
  /**
   * Ends a successful attempt: forgets the failures, remembers the address, records the event. False, without any of the
   * latter two, when the user is deleted or erased by now.
   */
  succeed(
    subject: Buffer | null,
    knownAddress: Buffer,
    userId: number,
    event: AuditEvent,
    t?: Transaction,
  ): Promise<boolean>
  /** Records what becomes of an attempt, and counts nothing. */
  record(event: AuditEvent, t?: Transaction): Promise<void>
  /** Counts one more and returns the count. */
  count(subject: Buffer, seconds: number): Promise<Count>
  /** The current count of a subject. */
  read(subject: Buffer): Promise<Count | undefined>
  /** Forgets the counts of subjects and returns how many there were. */
  clear(subjects: readonly Buffer[], t?: Transaction): Promise<number>
  /** Deletes counts whose time is over, and addresses that have been unused for so many days. */
  prune(knownDays: number): Promise<void>
  /** Whether an address counts as known to a user. */
  knows(userId: number, knownAddress: Buffer, days: number): Promise<boolean>
  /** Username keys of active accounts that know an address, the latest first. */
  accountsKnowing(knownAddress: Buffer, days: number, most: number): Promise<string[]>
}

// Nobody waits for the disk: a crash of PostgreSQL may forget the attempts of the last second, and nothing else.
const begin: Statement = {
  name: 'attempt-begin',
  text: `WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
  ), account AS (
    SELECT id, username, password_hash, email, role, active, suspended, organization_id, token_generation
    FROM users WHERE username_key = $1 AND deleted_at IS NULL
  ), here AS (
    SELECT EXISTS (SELECT FROM known_addresses k WHERE k.user_id = (SELECT id FROM account) AND k.address = $5
      AND k.seen_at > clock_timestamp() - make_interval(days => $6)) AS known FROM relaxed
  ), counted AS (
    SELECT known, CASE WHEN known THEN $3::bytea ELSE $2::bytea END AS subject, coalesce((SELECT greatest(0,
      level - extract(epoch FROM clock_timestamp() - updated_at) * $10::float8) FROM buckets WHERE subject = $4), 0) AS level
    FROM here
  ), begun AS (
    INSERT INTO attempts AS a (subject, count, window_ends, under_way, under_way_until)
    SELECT subject, 0, clock_timestamp(), 1, clock_timestamp() + make_interval(secs => $8) FROM counted
    WHERE subject IS NOT NULL AND (known OR level + 1 <= $9::float8)
    ON CONFLICT (subject) DO UPDATE SET
      under_way = CASE WHEN a.under_way_until <= clock_timestamp() THEN 1 ELSE a.under_way + 1 END,
      under_way_until = excluded.under_way_until
    WHERE CASE WHEN a.window_ends <= clock_timestamp() THEN 0 ELSE a.count END
      + CASE WHEN a.under_way_until <= clock_timestamp() THEN 0 ELSE a.under_way END < $7::int
    RETURNING 1
  )
  SELECT a.id, a.username, a.password_hash AS "passwordHash", a.email, a.role, a.active, a.suspended,
    a.organization_id AS "organizationId", a.token_generation AS "tokenGeneration", c.known, c.level AS "addressLevel",
    CASE WHEN c.subject IS NULL THEN c.known OR c.level + 1 <= $9::float8 ELSE EXISTS (SELECT FROM begun) END AS begun,
    coalesce(f.count, 0) AS failed,
    coalesce(extract(epoch FROM f.window_ends - clock_timestamp()), 0)::float8 AS seconds
  FROM counted c LEFT JOIN account a ON true
    LEFT JOIN attempts f ON f.subject = c.subject AND f.window_ends > clock_timestamp()`,
}

const undo: Statement = {
  name: 'attempt-undo',
  text: `WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    UPDATE attempts SET under_way = greatest(under_way - 1, 0) FROM relaxed WHERE subject = $1`,
}

// The window begins with the first failure and doesn't move: a lock is never longer for being tried. The row may be gone:
// what is under way for long is pruned. As in the next two, each part reads from the one before, which settles the order
// of locks: the count, the user, the rest. An erasure has the user first, but lets others share its key until the end.
const fail: Statement = {
  name: 'attempt-fail',
  text: `WITH failed AS (INSERT INTO attempts AS a (subject, count, window_ends)
    SELECT $1, 1, clock_timestamp() + make_interval(secs => $2) WHERE $1::bytea IS NOT NULL
    ON CONFLICT (subject) DO UPDATE SET under_way = greatest(a.under_way - 1, 0),
      count = CASE WHEN a.window_ends <= clock_timestamp() THEN 1 ELSE a.count + 1 END,
      window_ends = CASE WHEN a.window_ends <= clock_timestamp() THEN excluded.window_ends ELSE a.window_ends END
    RETURNING count),
  present AS MATERIALIZED (
    SELECT FROM users WHERE id = $4 AND (SELECT count(*) FROM failed) >= 0 FOR KEY SHARE
  ), recorded AS MATERIALIZED (
    SELECT audit_append($3) WHERE $4::int IS NULL OR EXISTS (SELECT FROM present)
  )
  SELECT coalesce((SELECT count FROM failed), 0) AS count, (SELECT count(*) FROM recorded) AS recorded`,
}

// Of an account that was never activated it is remembered when it was seen, unless somebody else holds the row: to wait for
// that would be the wrong order, and who holds it is another sign-in, or changes more.
const succeed: Statement = {
  name: 'attempt-succeed',
  text: `WITH cleared AS (UPDATE attempts SET count = 0, window_ends = clock_timestamp(), under_way = greatest(under_way - 1, 0)
    WHERE subject = $1 RETURNING 1),
  present AS MATERIALIZED (
    SELECT id, unactivated_seen_at IS NOT NULL AS unactivated FROM users
    WHERE id = $3 AND deleted_at IS NULL AND (SELECT count(*) FROM cleared) >= 0 FOR KEY SHARE
  ), seen AS (UPDATE users SET unactivated_seen_at = clock_timestamp() WHERE id = (
    SELECT id FROM users WHERE id = (SELECT id FROM present WHERE unactivated) AND unactivated_seen_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED)
  ), remembered AS (INSERT INTO known_addresses (user_id, address, seen_at)
    SELECT id, $2, clock_timestamp() FROM present
    ON CONFLICT (user_id, address) DO UPDATE SET seen_at = clock_timestamp() RETURNING 1)
  SELECT audit_append($4) FROM remembered`,
}

const record: Statement = {
  name: 'attempt-record',
  text: `WITH present AS MATERIALIZED (SELECT FROM users WHERE id = $2 FOR KEY SHARE)
  SELECT audit_append($1) WHERE $2::int IS NULL OR EXISTS (SELECT FROM present)`,
}

const count: Statement = {
  name: 'attempt-count',
  text: `INSERT INTO attempts AS a (subject, count, window_ends)
    VALUES ($1, 1, clock_timestamp() + make_interval(secs => $2))
    ON CONFLICT (subject) DO UPDATE SET
      count = CASE WHEN a.window_ends <= clock_timestamp() THEN 1 ELSE a.count + 1 END,
      window_ends = CASE WHEN a.window_ends <= clock_timestamp() THEN excluded.window_ends ELSE a.window_ends END
    RETURNING count, extract(epoch FROM window_ends - clock_timestamp())::float8 AS seconds`,
}

const read: Statement = {
  name: 'attempt-read',
  text: `SELECT count, ceil(extract(epoch FROM window_ends - clock_timestamp()))::int AS seconds
    FROM attempts WHERE subject = $1 AND window_ends > clock_timestamp() AND count > 0`,
}

const clear: Statement = {
  name: 'attempt-clear',
  text: `UPDATE attempts SET count = 0, window_ends = clock_timestamp()
    WHERE subject = ANY($1::bytea[]) AND count > 0 AND window_ends > clock_timestamp() RETURNING 1`,
}

// Passes over rows in use, so that it never waits for a sign-in while one waits for it.
const prune: Statement = {
  name: 'attempts-prune',
  slow: true,
  text: `DELETE FROM attempts WHERE subject IN (SELECT subject FROM attempts
    WHERE greatest(window_ends, under_way_until) < clock_timestamp() FOR UPDATE SKIP LOCKED)`,
}

// By the time of the transaction: a condition with clock_timestamp() finds nothing by index.
const pruneAddresses: Statement = {
  name: 'known-addresses-prune',
  slow: true,
  text: 'DELETE FROM known_addresses WHERE seen_at < now() - make_interval(days => $1)',
}

const knows: Statement = {
  name: 'attempt-knows',
  text: `SELECT FROM known_addresses WHERE user_id = $1 AND address = $2
    AND seen_at > clock_timestamp() - make_interval(days => $3)`,
}

const accountsKnowing: Statement = {
  name: 'attempt-accounts-knowing',
  text: `SELECT u.username_key AS key FROM known_addresses k JOIN users u ON u.id = k.user_id
    WHERE k.address = $1 AND k.seen_at > clock_timestamp() - make_interval(days => $2) AND u.active AND NOT u.suspended
    ORDER BY k.seen_at DESC LIMIT $3`,
}

type BeginRow = Account & Omit<Begun, 'account'> & { readonly id: number | null }

/** The counts in a database. */
export function createAttempts(database: Database, audit: Pick<Audit, 'stamp'>): Attempts {
  defineTable(database, 'attempts', attributes)
  defineTable(database, 'known_addresses', addressAttributes)
  return {
    async begin({ usernameKey, subjects, knownAddress, knownDays, most, underWaySeconds, bucket }) {
      const [row] = await database.run<BeginRow>(begin, [
        usernameKey,
        subjects.account,
        subjects.known,
        subjects.address,
        knownAddress,
        knownDays,
        most,
        underWaySeconds,
        bucket.capacity,
        bucket.perSecond,
      ])
      return { ...row!, account: row!.id === null ? undefined : row }
    },
    async undo(subject) {
      await database.run(undo, [subject])
    },
    async fail(subject, seconds, event) {
      const values = [subject, seconds, audit.stamp(event), event.subject_id ?? null]
      return (await database.run<{ count: number }>(fail, values))[0]!.count
    },
    succeed: async (subject, knownAddress, userId, event, transaction) =>
      (await database.run(succeed, [subject, knownAddress, userId, audit.stamp(event)], transaction)).length > 0,
    async record(event, transaction) {
      await database.run(record, [audit.stamp(event), event.subject_id ?? null], transaction)
    },
    count: async (subject, seconds) => (await database.run<Count>(count, [subject, seconds]))[0]!,
    read: async subject => (await database.run<Count>(read, [subject]))[0],
    clear: async (subjects, transaction) => (await database.run(clear, [subjects], transaction)).length,
    async prune(knownDays) {
      await database.run(prune, [])
      await database.run(pruneAddresses, [knownDays])
    },
    knows: async (userId, knownAddress, days) => (await database.run(knows, [userId, knownAddress, days])).length > 0,
    accountsKnowing: async (knownAddress, days, most) =>
      (await database.read<{ key: string }>(accountsKnowing, [knownAddress, days, most])).map(({ key }) => key),
  }
}
