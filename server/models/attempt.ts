// Attempts to sign in, the networks that accounts signed in from, and other things that are counted within a time.
// The statements are written by hand: each counts, reads and records in one round trip (measured; see database/).

import { bytes, defineTable, hasDefault, integer, key, nullable, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { network, networksOf } from '../requests/client-address.js'
import type { Role } from '../rules/roles.js'
import type { Audit, AuditEvent } from './audit.js'
import type { MasterKey } from './master-key.js'

/**
 * Proofs whose failures are counted for each account, each for itself. `administration` is the password at SignIn of
 * Administration. One-time codes are counted with their secrets, mailed keys by key and network.
 */
export const proofs = ['password', 'answers', 'administration'] as const

/** One of them. */
export type Proof = (typeof proofs)[number]

/**
 * The networks of a client address that an account gets to know by a sign-in, innermost first: the address or /64, and the
 * /24 or /48 that it is in.
 */
export function knowableNetworks(address: string): readonly [inner: string, outer: string] {
  const networks = networksOf(address)
  return [networks[0]!, networks.at(-1)!]
}

/** A device on which an account signed in before: its client still has a token of that session. */
export interface Device {
  /** The user that the token is of. */
  readonly userId: number
  /** Username key of that user, and whether it was active, when the token was issued. */
  readonly usernameKey: string
  readonly active: boolean
  /** The session, the same for all tokens that it was refreshed with: a stolen token gets no more tries by refreshing it. */
  readonly session: string
}

/** Names of what is counted, as keyed digests: what somebody unknown typed is stored nowhere. An IPv6 client is its /64. */
export interface CounterKeys {
  /** All attempts of a proof on an account from networks and devices that it doesn't know; wrong mailed keys from anywhere. */
  account(proof: Proof | 'mailed key', usernameKey: string): Buffer
  /** Attempts of a proof on an account from a network that it knows, without those inside it that it knows, too. */
  known(proof: Proof, usernameKey: string, network: string): Buffer
  /** Attempts of a proof on an account from a device that it knows. */
  device(proof: Proof, usernameKey: string, session: string): Buffer
  /** Wrong activation keys that a user gave. */
  activation(userId: number): Buffer
  /** What one client address did of a kind. */
  address(kind: string, address: string): Buffer
  /** Attempts of a mailed key, by its digest, from one client address. */
  mailedKey(keyDigest: Buffer, address: string): Buffer
  /** E-mails that count for a limit together. */
  emails(limit: string, of: string): Buffer
  /** A network, for the list of those known to an account. */
  knownNetwork(network: string): Buffer
}

/** Makes the names of what is counted. */
export function createCounterKeys(masterKey: Pick<MasterKey, 'digest'>): CounterKeys {
  const name = (...parts: string[]) => masterKey.digest('attempts', parts.join('\0')).subarray(0, 16)
  return {
    account: (proof, usernameKey) => name('account', proof, usernameKey),
    known: (proof, usernameKey, network) => name('known', proof, usernameKey, network),
    device: (proof, usernameKey, session) => name('device', proof, usernameKey, session),
    activation: userId => name('activation', String(userId)),
    address: (kind, address) => name('address', kind, network(address)),
    mailedKey: (keyDigest, address) => name('mailed-key', keyDigest.toString('hex'), network(address)),
    emails: (limit, of) => name('emails', limit, of),
    knownNetwork: network => name('known-network', network),
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
  /** What is proven; undefined where no account counts it. */
  readonly proof: Proof | undefined
  readonly address: string
  /** The device that the client shows; it counts for its own user alone. */
  readonly device: Device | undefined
  readonly knownDays: number
  /** Most failures and attempts in flight together. */
  readonly most: number
  readonly inFlightSeconds: number
  /** The bucket of the client address holds up those that the account doesn't know. */
  readonly bucket: { readonly capacity: number; readonly perSecond: number }
}

/** Where the attempts of a proof are counted. */
export interface Counter {
  readonly subject: Buffer
  /** The count of the account, where this is one beside it: of a network or a device that it knows. */
  readonly account: Buffer | null
}

/** An attempt that was counted as in flight, or why it wasn't. */
export interface AttemptStart {
  readonly account: Account | undefined
  /** Whether the account knows the device or a network of the address. */
  readonly known: boolean
  /** Where it counts; undefined where no account counts it. */
  readonly counter: Counter | undefined
  /** How full the bucket of the client address is. */
  readonly addressLevel: number
  /** Whether it may go on. If not, the rest says why. */
  readonly begun: boolean
  /** Failures before this one. */
  readonly failed: number
  /** Seconds until those are forgotten. */
  readonly seconds: number
}

/** Failures within a time that are recorded: one event at the first, and one when they reach a number. */
export interface Failures {
  readonly most: number
  readonly seconds: number
  /** Absent where the first failure is no event: where trying costs a stranger next to nothing. */
  readonly first?: AuditEvent
  readonly last: AuditEvent
}

/** A count within a time. */
export interface Count {
  readonly count: number
  /** Seconds until it starts anew. */
  readonly seconds: number
}

const attributes = {
  subject: key(bytes),
  account: hasDefault(nullable(bytes)),
  count: integer,
  windowEnds: time,
  inFlight: hasDefault(integer),
  inFlightUntil: hasDefault(time),
}

const addressAttributes = { userId: key(integer), address: key(bytes), seenAt: hasDefault(time) }

/** Counts attempts and what else is limited within a time. */
export interface Attempts {
  /** Counts an attempt as in flight, unless a limit stands in the way, and reads the account. */
  begin(values: BeginValues): Promise<AttemptStart>
  /** Ends an attempt that wasn't decided: it never was. */
  undo(subject: Buffer): Promise<void>
  /**
   * Counts a failed attempt and ends it, if it was counted as in flight. What `failures` says is recorded of the user they
   * are of, once within their time. Like the other two that record, it names no user who was erased meanwhile: then it
   * leaves no event, as it does without `userId`.
   */
  fail(counter: Counter, failures: Failures, userId: number | undefined): Promise<void>
  /**
   * Ends a successful attempt: forgets the failures, remembers the networks of the address, records the event. False,
   * without any of the latter two, when the user is deleted or erased by now.
   */
  succeed(
    subject: Buffer | undefined,
    address: string,
    userId: number,
    event: AuditEvent,
    t?: Transaction,
  ): Promise<boolean>
  /** Records what becomes of an attempt, and counts nothing. */
  record(event: AuditEvent, t?: Transaction): Promise<void>
  /** Counts one more and returns the count. */
  count(subject: Buffer, seconds: number): Promise<Count>
  /** The current counts of an account, those of its known networks and devices included, the highest first. */
  readAll(account: Buffer): Promise<(Count & { readonly subject: Buffer })[]>
  /** Forgets the counts of accounts, those of their known networks and devices included, and returns how many there were. */
  clear(accounts: readonly Buffer[], t?: Transaction): Promise<number>
  /** Deletes counts whose time is over, and networks that have been unused for so many days. */
  prune(knownDays: number): Promise<void>
  /** The innermost network of an address that a user knows; undefined when it knows none. */
  knownNetwork(userId: number, address: string, days: number): Promise<string | undefined>
  /** Username keys of active accounts that know a network, the latest first. */
  accountsKnowing(network: string, days: number, most: number): Promise<string[]>
}

// Nobody waits for the disk: a crash of PostgreSQL may forget the attempts of the last second, and nothing else.
/** Whether the user of the row, by its column `id`, knows a network. */
const knows = (network: string, days: string) => `EXISTS (SELECT FROM known_addresses k WHERE k.user_id = id
      AND k.address = ${network} AND k.seen_at > clock_timestamp() - make_interval(days => ${days}))`

// A device comes before the networks, as OWASP has it: its owner goes on though neighbours guess at the account.
const begin: Statement = {
  name: 'attempt-begin',
  text: `WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
  ), account AS (
    SELECT id, username, password_hash, email, role, active, suspended, organization_id, token_generation
    FROM users WHERE username_key = $1 AND deleted_at IS NULL
  ), here AS (
    SELECT CASE WHEN id = $11::int THEN 1 WHEN ${knows('$4', '$6')} THEN 2 WHEN ${knows('$5', '$6')} THEN 3 END AS place
    FROM relaxed LEFT JOIN account ON true
  ), counted AS (
    SELECT place IS NOT NULL AS known, ($2::bytea[])[coalesce(place, 4)] AS subject, coalesce((SELECT greatest(0,
      level - extract(epoch FROM clock_timestamp() - updated_at) * $10::float8) FROM buckets WHERE subject = $3), 0) AS level
    FROM here
  ), begun AS (
    INSERT INTO attempts AS a (subject, account, count, window_ends, in_flight, in_flight_until)
    SELECT subject, CASE WHEN known THEN ($2::bytea[])[4] END, 0, clock_timestamp(), 1,
      clock_timestamp() + make_interval(secs => $8)
    FROM counted WHERE subject IS NOT NULL AND (known OR level + 1 <= $9::float8)
    ON CONFLICT (subject) DO UPDATE SET
      in_flight = CASE WHEN a.in_flight_until <= clock_timestamp() THEN 1 ELSE a.in_flight + 1 END,
      in_flight_until = excluded.in_flight_until
    WHERE CASE WHEN a.window_ends <= clock_timestamp() THEN 0 ELSE a.count END
      + CASE WHEN a.in_flight_until <= clock_timestamp() THEN 0 ELSE a.in_flight END < $7::int
    RETURNING 1
  )
  SELECT a.id, a.username, a.password_hash AS "passwordHash", a.email, a.role, a.active, a.suspended,
    a.organization_id AS "organizationId", a.token_generation AS "tokenGeneration", c.known, c.subject,
    c.level AS "addressLevel",
    CASE WHEN c.subject IS NULL THEN c.known OR c.level + 1 <= $9::float8 ELSE EXISTS (SELECT FROM begun) END AS begun,
    coalesce(f.count, 0) AS failed,
    coalesce(extract(epoch FROM f.window_ends - clock_timestamp()), 0)::float8 AS seconds
  FROM counted c LEFT JOIN account a ON true
    LEFT JOIN attempts f ON f.subject = c.subject AND f.window_ends > clock_timestamp()`,
}

const undo: Statement = {
  name: 'attempt-undo',
  text: `WITH relaxed AS MATERIALIZED (SELECT set_config('synchronous_commit', 'off', true))
    UPDATE attempts SET in_flight = greatest(in_flight - 1, 0) FROM relaxed WHERE subject = $1`,
}

// The window begins with the first failure and doesn't move: a lock is never longer for being tried. The row may be gone:
// what is in flight for long is pruned. As in the next two, each part reads from the one before, which settles the order
// of locks: the count, the user, the rest. An erasure has the user first, but lets others share its key until the end.
// Only an event is worth waiting for the disk.
const fail: Statement = {
  name: 'attempt-fail',
  text: `WITH failed AS (INSERT INTO attempts AS a (subject, account, count, window_ends)
    VALUES ($1, $2, 1, clock_timestamp() + make_interval(secs => $3))
    ON CONFLICT (subject) DO UPDATE SET in_flight = greatest(a.in_flight - 1, 0),
      count = CASE WHEN a.window_ends <= clock_timestamp() THEN 1 ELSE a.count + 1 END,
      window_ends = CASE WHEN a.window_ends <= clock_timestamp() THEN excluded.window_ends ELSE a.window_ends END
    RETURNING count),
  due AS MATERIALIZED (SELECT CASE count WHEN $4::int THEN $6::jsonb WHEN 1 THEN $5::jsonb END AS event FROM failed),
  relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) FROM due WHERE event IS NULL
  ), present AS MATERIALIZED (
    SELECT FROM users WHERE id = $7 AND (SELECT count(*) FROM relaxed) = 0 FOR KEY SHARE
  )
  SELECT audit_append(event) FROM due WHERE EXISTS (SELECT FROM present)`,
}

// Of an account that was never activated it is remembered when it was seen, unless somebody else holds the row: to wait for
// that would be the wrong order, and who holds it is another sign-in, or changes more.
const succeed: Statement = {
  name: 'attempt-succeed',
  text: `WITH cleared AS (UPDATE attempts SET count = 0, window_ends = clock_timestamp(), in_flight = greatest(in_flight - 1, 0)
    WHERE subject = $1 RETURNING 1),
  present AS MATERIALIZED (
    SELECT id, unactivated_seen_at IS NOT NULL AS unactivated FROM users
    WHERE id = $4 AND deleted_at IS NULL AND (SELECT count(*) FROM cleared) >= 0 FOR KEY SHARE
  ), seen AS (UPDATE users SET unactivated_seen_at = clock_timestamp() WHERE id = (
    SELECT id FROM users WHERE id = (SELECT id FROM present WHERE unactivated) AND unactivated_seen_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED)
  ), remembered AS (INSERT INTO known_addresses (user_id, address, seen_at)
    SELECT id, network, clock_timestamp() FROM present, (VALUES ($2::bytea), ($3)) AS networks (network)
    ON CONFLICT (user_id, address) DO UPDATE SET seen_at = clock_timestamp() RETURNING 1)
  SELECT audit_append($5) WHERE EXISTS (SELECT FROM remembered)`,
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

const readAll: Statement = {
  name: 'attempts-of-account',
  text: `SELECT subject, count, ceil(extract(epoch FROM window_ends - clock_timestamp()))::int AS seconds
    FROM attempts WHERE (subject = $1 OR account = $1) AND window_ends > clock_timestamp() AND count > 0
    ORDER BY count DESC, window_ends DESC`,
}

const clear: Statement = {
  name: 'attempt-clear',
  text: `UPDATE attempts SET count = 0, window_ends = clock_timestamp()
    WHERE (subject = ANY($1::bytea[]) OR account = ANY($1)) AND count > 0 AND window_ends > clock_timestamp() RETURNING 1`,
}

// Passes over rows in use, so that it never waits for a sign-in while one waits for it.
const prune: Statement = {
  name: 'attempts-prune',
  slow: true,
  text: `DELETE FROM attempts WHERE subject IN (SELECT subject FROM attempts
    WHERE greatest(window_ends, in_flight_until) < clock_timestamp() FOR UPDATE SKIP LOCKED)`,
}

// By the time of the transaction: a condition with clock_timestamp() finds nothing by index.
const pruneNetworks: Statement = {
  name: 'known-addresses-prune',
  slow: true,
  text: 'DELETE FROM known_addresses WHERE seen_at < now() - make_interval(days => $1)',
}

const knownNetwork: Statement = {
  name: 'attempt-known-network',
  text: `SELECT CASE WHEN ${knows('$2', '$4')} THEN 0 WHEN ${knows('$3', '$4')} THEN 1 END AS place FROM users WHERE id = $1`,
}

const accountsKnowing: Statement = {
  name: 'attempt-accounts-knowing',
  text: `SELECT u.username_key AS key FROM known_addresses k JOIN users u ON u.id = k.user_id
    WHERE k.address = $1 AND k.seen_at > clock_timestamp() - make_interval(days => $2) AND u.active AND NOT u.suspended
    ORDER BY k.seen_at DESC LIMIT $3`,
}

type BeginRow = Account &
  Omit<AttemptStart, 'account' | 'counter'> & { readonly id: number | null; readonly subject: Buffer | null }

/** The counts in a database. */
export function createAttempts(database: Database, audit: Pick<Audit, 'stamp'>, counterKeys: CounterKeys): Attempts {
  defineTable(database, 'attempts', attributes)
  defineTable(database, 'known_addresses', addressAttributes)

  const knowable = (address: string) => knowableNetworks(address).map(counterKeys.knownNetwork)

  /** Where an attempt counts, as the statement has them: for a device, an address, an outer network, and for the account. */
  function counters({ proof, usernameKey, address, device }: BeginValues): (Buffer | null)[] {
    if (!proof) return []
    return [
      device ? counterKeys.device(proof, usernameKey, device.session) : null,
      ...knowableNetworks(address).map(network => counterKeys.known(proof, usernameKey, network)),
      counterKeys.account(proof, usernameKey),
    ]
  }

  return {
    async begin(values) {
      const { usernameKey, address, device, knownDays, most, inFlightSeconds, bucket } = values
      const places = counters(values)
      const [row] = await database.run<BeginRow>(begin, [
        usernameKey,
        places,
        counterKeys.address('failures', address),
        ...knowable(address),
        knownDays,
        most,
        inFlightSeconds,
        bucket.capacity,
        bucket.perSecond,
        device?.userId ?? null,
      ])
      const { subject, known, id } = row!
      const counter = subject ? { subject, account: known ? places.at(-1)! : null } : undefined
      return { ...row!, counter, account: id === null ? undefined : row }
    },
    async undo(subject) {
      await database.run(undo, [subject])
    },
    async fail({ subject, account }, { most, seconds, first, last }, userId) {
      const stamped = (event: AuditEvent | undefined) => (event && userId !== undefined ? audit.stamp(event) : null)
      await database.run(fail, [subject, account, seconds, most, stamped(first), stamped(last), userId ?? null])
    },
    async succeed(subject, address, userId, event, transaction) {
      const values = [subject ?? null, ...knowable(address), userId, audit.stamp(event)]
      return (await database.run(succeed, values, transaction)).length > 0
    },
    async record(event, transaction) {
      await database.run(record, [audit.stamp(event), event.subject_id ?? null], transaction)
    },
    count: async (subject, seconds) => (await database.run<Count>(count, [subject, seconds]))[0]!,
    readAll: account => database.run<Count & { subject: Buffer }>(readAll, [account]),
    clear: async (accounts, transaction) => (await database.run(clear, [accounts], transaction)).length,
    async prune(knownDays) {
      await database.run(prune, [])
      await database.run(pruneNetworks, [knownDays])
    },
    async knownNetwork(userId, address, days) {
      const [row] = await database.run<{ place: number | null }>(knownNetwork, [userId, ...knowable(address), days])
      return row?.place == null ? undefined : knowableNetworks(address)[row.place]
    },
    accountsKnowing: async (network, days, most) =>
      (await database.read<{ key: string }>(accountsKnowing, [counterKeys.knownNetwork(network), days, most])).map(
        ({ key }) => key,
      ),
  }
}
