// Counts attempts to sign in and other limited actions, each within a time window, and stores the networks that accounts
// signed in from. The statements are written by hand: each counts, reads and records in one round trip (see database/).

import { bytes, defineTable, hasDefault, integer, key, nullable, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { network, networksOf } from '../requests/client-address.js'
import type { Role } from '../rules/roles.js'
import type { Audit, AuditEvent } from './audit.js'
import type { MasterKey } from './master-key.js'

/**
 * Proofs whose failures count for each account, separately for each proof. `administration` is the password at SignIn of
 * Administration. One-time codes are counted with their secrets, and mailed keys by key and network.
 */
export const proofs = ['password', 'answers', 'administration'] as const

/** A proof whose failures count for each account. */
export type Proof = (typeof proofs)[number]

/**
 * Returns the networks of a client address that an account knows after a sign-in, innermost first: the address or its /64,
 * and its /24 or /48.
 */
export function knowableNetworks(address: string): readonly [inner: string, outer: string] {
  const networks = networksOf(address)
  return [networks[0]!, networks.at(-1)!]
}

/** A device on which an account signed in before. Its client still has a token of that session. */
export interface Device {
  /** The user of the token. */
  readonly userId: number
  /** Username key of the user when the token was issued. */
  readonly usernameKey: string
  /** Whether the user was active when the token was issued. */
  readonly active: boolean
  /** The session. All its refreshed tokens share it, so that a refresh of a stolen token permits no further attempts. */
  readonly session: string
}

/** Names of counters, as keyed digests, because text from an unknown client is never stored. An IPv6 client is its /64. */
export interface CounterKeys {
  /** Attempts of a proof on an account from networks and devices that it doesn't know; wrong mailed keys from any network. */
  account(proof: Proof | 'mailed key', usernameKey: string): Buffer
  /** Attempts of a proof on an account from a network that it knows (`knownNetwork`), except from known networks within it. */
  known(proof: Proof, usernameKey: string, knownNetwork: Buffer): Buffer
  /** Attempts of a proof on an account from a device that it knows. */
  device(proof: Proof, userId: number, session: string): Buffer
  /** Wrong activation keys that a user gave. */
  activation(userId: number): Buffer
  /** Actions of a kind by one client address. */
  address(kind: string, address: string): Buffer
  /** Attempts of a mailed key, by its digest, from one client address. */
  mailedKey(keyDigest: Buffer, address: string): Buffer
  /** E-mails that share a limit. */
  emails(limit: string, of: string): Buffer
  /** A network, for the list of those known to an account. */
  knownNetwork(network: string): Buffer
}

/** Creates the names of counters. */
export function createCounterKeys(masterKey: Pick<MasterKey, 'digest'>): CounterKeys {
  const name = (...parts: string[]) => masterKey.digest('attempts', parts.join('\0')).subarray(0, 16)
  return {
    account: (proof, usernameKey) => name('account', proof, usernameKey),
    known: (proof, usernameKey, network) => name('known', proof, usernameKey, network.toString('hex')),
    device: (proof, userId, session) => name('device', proof, String(userId), session),
    activation: userId => name('activation', String(userId)),
    address: (kind, address) => name('address', kind, network(address)),
    mailedKey: (keyDigest, address) => name('mailed-key', keyDigest.toString('hex'), network(address)),
    emails: (limit, of) => name('emails', limit, of),
    knownNetwork: network => name('known-network', network),
  }
}

/** The data of an account that a sign-in needs. */
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
  readonly passwordUpdatedAt: Date | null
}

/** Parameters of the start of an attempt. */
interface BeginValues {
  readonly usernameKey: string
  /** The proof of the attempt; undefined if it doesn't count for the account. */
  readonly proof: Proof | undefined
  readonly address: string
  /** The device of the token that the client sends. It counts as known only for its own account. */
  readonly device: Device | undefined
  readonly knownDays: number
  /** Maximum sum of failures and attempts in flight. */
  readonly max: number
  readonly inFlightSeconds: number
  /** The bucket of the client address. It limits only addresses that the account doesn't know. */
  readonly bucket: { readonly capacity: number; readonly perSecond: number }
}

/** The counter of an attempt. */
export interface Counter {
  readonly subject: Buffer
  /** The counter of the account, if this is a separate counter for a known network or device; else null. */
  readonly account: Buffer | null
}

/** The start of an attempt: it is counted as in flight, or the fields say why not. */
export interface AttemptStart {
  readonly account: Account | undefined
  /** Whether the account knows the device or a network of the address. */
  readonly known: boolean
  /** Its counter; undefined if it doesn't count for the account. */
  readonly counter: Counter | undefined
  /** The level of the bucket of the client address. */
  readonly addressLevel: number
  /** Whether the attempt may continue. */
  readonly begun: boolean
  /** Number of failures before this attempt. */
  readonly failed: number
  /** Seconds until these failures expire. */
  readonly seconds: number
}

/** The events of failures within a time window: one for the first failure, and one when the limit is reached. */
interface Failures {
  /** The limit: the number of failures that records `last`. */
  readonly max: number
  /** Length of the window. */
  readonly seconds: number
  /** Absent if the first failure isn't recorded, because unknown clients could cause too many events. */
  readonly first?: AuditEvent
  readonly last: AuditEvent
}

/** A count within a time window. */
export interface Count {
  readonly count: number
  /** Seconds until the count restarts. */
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

/** Counts attempts and other limited actions, each within a time window. */
export interface Attempts {
  /** Counts an attempt as in flight unless it exceeds a limit, and reads the account. */
  begin(values: BeginValues): Promise<AttemptStart>
  /** Removes an attempt that neither failed nor succeeded. */
  undo(subject: Buffer): Promise<void>
  /**
   * Counts a failed attempt, and ends it if it is counted as in flight. Records the events of `failures` for the user, each
   * once in a window. It records no event without `userId` or, like `succeed` and `record`, for a user that has been erased.
   */
  fail(counter: Counter, failures: Failures, userId: number | undefined): Promise<void>
  /**
   * Ends a successful attempt: clears the failures, stores the networks of the address as known, and records the event.
   * If the user has been deleted or erased, it returns false, and only clears the failures.
   */
  succeed(
    subject: Buffer | undefined,
    address: string,
    userId: number,
    event: AuditEvent,
    t?: Transaction,
  ): Promise<boolean>
  /** Records an event of an attempt. Counts nothing. */
  record(event: AuditEvent, t?: Transaction): Promise<void>
  /** Increments a count and returns it. */
  count(subject: Buffer, seconds: number): Promise<Count>
  /** Returns the current counts of an account and of its known networks and devices, highest first. */
  readAll(account: Buffer): Promise<(Count & { readonly subject: Buffer })[]>
  /** Clears the counts of accounts and of their known networks and devices. Returns the number of cleared counts. */
  clear(accounts: readonly Buffer[], t?: Transaction): Promise<number>
  /**
   * Keeps the counts of an account that gets another username. Call it before the statement that changes the username: a
   * sign-in locks counts, then the user.
   */
  rename(userId: number, former: string, usernameKey: string, t: Transaction): Promise<void>
  /** Deletes expired counts, and known networks that have been unused for `knownDays`. */
  prune(knownDays: number): Promise<void>
  /** Returns the innermost network of an address that a user knows; undefined when it knows none. */
  knownNetwork(userId: number, address: string, days: number): Promise<string | undefined>
  /** Returns the username keys of active accounts that know a network, latest first. */
  accountsKnowing(network: string, days: number, max: number): Promise<string[]>
}

/** Returns an SQL condition: whether the user of the row, by its column `id`, knows a network. */
const knows = (network: string, days: string) => `EXISTS (SELECT FROM known_addresses k WHERE k.user_id = id
      AND k.address = ${network} AND k.seen_at > clock_timestamp() - make_interval(days => ${days}))`

// `relaxed` doesn't wait for the disk: a crash of PostgreSQL loses at most the attempts of the last second. A known device
// takes precedence over known networks, as OWASP recommends, so that its owner can sign in while others in the same network
// guess the password.
//
// $1 username key; $2 counters: of the device, the inner network, the outer network, the account, or none; $3 bucket of
// failures of the client address; $4 inner and $5 outer network; $6 days for which a network is known; $7 limit of failures
// and attempts in flight; $8 seconds after which an attempt in flight expires; $9 capacity of the bucket, $10 its drain per
// second; $11 user of the device.
const begin: Statement = {
  name: 'attempt-begin',
  text: `WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
  ), account AS (
    SELECT id, username, password_hash, email, role, active, suspended, organization_id, token_generation, password_updated_at
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
    a.organization_id AS "organizationId", a.token_generation AS "tokenGeneration",
    a.password_updated_at AS "passwordUpdatedAt", c.known, c.subject,
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

// The window begins with the first failure and doesn't move, so that further attempts don't extend a lock. The row may be
// missing: a row whose attempts were in flight for too long is pruned. As in the next two statements, each part reads from
// the previous part, which fixes the order of locks: the count, the user, the rest. An erasure locks the user first, but
// permits FOR KEY SHARE until it ends. Only an event waits for the disk.
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

// For an account that was never activated, `seen` updates the time of the last sign-in. It skips a locked row: a wait would
// break the order of locks, and the lock belongs to another sign-in or to a change of the user.
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

const networksOfUser: Statement = {
  name: 'attempt-networks-of-user',
  text: 'SELECT address FROM known_addresses WHERE user_id = $1',
}

// Copies counts instead of moving them, because an attempt in flight ends under the former subject. If the new username
// already has a count, from before it had a user, the higher count applies. `devices` keeps the counts of devices, whose
// subjects don't depend on the username. It skips known networks: their former counts expire.
const rename: Statement = {
  name: 'attempt-rename',
  text: `WITH names AS MATERIALIZED (
    SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bytea[], $4::bytea[]) AS n (former, next, former_account, next_account)
  ), devices AS (
    UPDATE attempts a SET account = n.next_account FROM names n
    WHERE a.account = n.former_account AND n.former = n.former_account AND NOT a.subject = ANY($1)
  )
  INSERT INTO attempts AS a (subject, account, count, window_ends)
  SELECT n.next, CASE WHEN n.next <> n.next_account THEN n.next_account END, f.count, f.window_ends
  FROM names n JOIN attempts f ON f.subject = n.former WHERE f.count > 0 AND f.window_ends > clock_timestamp()
  ON CONFLICT (subject) DO UPDATE SET
    count = CASE WHEN a.window_ends > clock_timestamp() THEN greatest(a.count, excluded.count) ELSE excluded.count END,
    window_ends = greatest(a.window_ends, excluded.window_ends)`,
}

// Skips locked rows, so that it never waits for a sign-in that waits for it.
const prune: Statement = {
  name: 'attempts-prune',
  slow: true,
  text: `DELETE FROM attempts WHERE subject IN (SELECT subject FROM attempts
    WHERE greatest(window_ends, in_flight_until) < clock_timestamp() FOR UPDATE SKIP LOCKED)`,
}

// now() permits the use of an index; clock_timestamp() doesn't.
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

/** Creates the counters in a database. */
export function createAttempts(database: Database, audit: Pick<Audit, 'stamp'>, counterKeys: CounterKeys): Attempts {
  defineTable(database, 'attempts', attributes)
  defineTable(database, 'known_addresses', addressAttributes)

  const networkKeys = (address: string) => knowableNetworks(address).map(counterKeys.knownNetwork)

  /** Returns the counters of an attempt in the order of `place`: device, address, outer network, account. */
  function counters({ proof, usernameKey, address, device }: BeginValues): (Buffer | null)[] {
    if (!proof) return []
    return [
      device ? counterKeys.device(proof, device.userId, device.session) : null,
      ...networkKeys(address).map(network => counterKeys.known(proof, usernameKey, network)),
      counterKeys.account(proof, usernameKey),
    ]
  }

  return {
    async begin(values) {
      const { usernameKey, address, device, knownDays, max, inFlightSeconds, bucket } = values
      const subjects = counters(values)
      const [row] = await database.run<BeginRow>(begin, [
        usernameKey,
        subjects,
        counterKeys.address('failures', address),
        ...networkKeys(address),
        knownDays,
        max,
        inFlightSeconds,
        bucket.capacity,
        bucket.perSecond,
        device?.userId ?? null,
      ])
      const { subject, known, id } = row!
      const counter = subject ? { subject, account: known ? subjects.at(-1)! : null } : undefined
      return { ...row!, counter, account: id === null ? undefined : row }
    },
    async undo(subject) {
      await database.run(undo, [subject])
    },
    async fail({ subject, account }, { max, seconds, first, last }, userId) {
      const stamped = (event: AuditEvent | undefined) => (event && userId !== undefined ? audit.stamp(event) : null)
      await database.run(fail, [subject, account, seconds, max, stamped(first), stamped(last), userId ?? null])
    },
    async succeed(subject, address, userId, event, transaction) {
      const values = [subject ?? null, ...networkKeys(address), userId, audit.stamp(event)]
      return (await database.run(succeed, values, transaction)).length > 0
    },
    async record(event, transaction) {
      await database.run(record, [audit.stamp(event), event.subject_id ?? null], transaction)
    },
    count: async (subject, seconds) => (await database.run<Count>(count, [subject, seconds]))[0]!,
    readAll: account => database.run<Count & { subject: Buffer }>(readAll, [account]),
    clear: async (accounts, transaction) => (await database.run(clear, [accounts], transaction)).length,
    async rename(userId, former, usernameKey, transaction) {
      const networks = await database.run<{ address: Buffer }>(networksOfUser, [userId], transaction)
      const names = [...proofs, 'mailed key' as const].flatMap(proof => {
        const accounts = [counterKeys.account(proof, former), counterKeys.account(proof, usernameKey)] as const
        const known = proof === 'mailed key' ? [] : networks.map(({ address }) => address)
        const pairs = known.map(network =>
          [former, usernameKey].map(key => counterKeys.known(proof as Proof, key, network)),
        )
        return [accounts, ...pairs].map(pair => [...pair, ...accounts])
      })
      await database.run(
        rename,
        [0, 1, 2, 3].map(column => names.map(name => name[column])),
        transaction,
      )
    },
    async prune(knownDays) {
      await database.run(prune, [])
      await database.run(pruneNetworks, [knownDays])
    },
    async knownNetwork(userId, address, days) {
      const [row] = await database.run<{ place: number | null }>(knownNetwork, [userId, ...networkKeys(address), days])
      return row?.place == null ? undefined : knowableNetworks(address)[row.place]
    },
    accountsKnowing: async (network, days, max) =>
      (await database.read<{ key: string }>(accountsKnowing, [counterKeys.knownNetwork(network), days, max])).map(
        ({ key }) => key,
      ),
  }
}
