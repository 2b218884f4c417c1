// Counts attempts to sign in and other limited actions, each within a time window. The statements are written by hand: each
// counts, reads and records in one round trip (see database/).

import { createHash } from 'node:crypto'
import { attribute, flag, integer, nullable, type Row, selectList, text, time } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { type Query, sql } from '../database/sql.js'
import { network } from '../requests/client-address.js'
import type { Role } from '../rules/roles.js'
import type { Audit, AuditEvent } from './audit.js'
import { addToBucket, type BucketLimit, bucketLevel, relaxed } from './bucket.js'
import type { DataKeys } from './data-key.js'
import { knowableNetworks, knows, pruneKnown, stillKnown } from './known-network.js'
import { verifies } from './signing-key.js'
import { activeUser, presentUser } from './user-state.js'

/**
 * Proofs whose failures count for each account, separately for each proof. `administration` is the password at SignIn of
 * Administration. One-time codes are counted with their secrets, and mailed keys by key and network.
 */
export const proofs = ['password', 'answers', 'administration'] as const

/** A proof whose failures count for each account. */
export type Proof = (typeof proofs)[number]

/** A device on which an account signed in before. Its client still has a token of that session. */
export interface Device {
  /** Id of the key that signed the token: once it isn't published any more, the device is unknown. */
  readonly kid: string
  /** The user of the token. */
  readonly userId: number
  /** Username key of the user when the token was issued. */
  readonly usernameKey: string
  /** Whether the user was active when the token was issued. */
  readonly active: boolean
  /** Token generation of the user when the token was issued: once it is revoked, the device is unknown. */
  readonly generation: number
  /** The session. All its refreshed tokens share it, so that a refresh of a stolen token permits no further attempts. */
  readonly session: string
}

/**
 * Names of counters, as keyed digests, because text from an unknown client is never stored. An IPv6 client is its /64.
 */
export type CounterKeys = ReturnType<typeof createCounterKeys>

/** Creates the names of counters. */
export function createCounterKeys(dataKeys: Pick<DataKeys, 'digest'>) {
  const name = (...parts: string[]) => dataKeys.digest('attempts', parts.join('\0')).subarray(0, 16)
  const mailedKeys = (address: string) => name('mailed-key', network(address))
  return {
    /** Attempts of a proof on an account from networks and devices that it doesn't know; wrong mailed keys from any network. */
    account: (proof: Proof | 'mailed key', usernameKey: string) => name('account', proof, usernameKey),
    /** Attempts of a proof on an account from a network that it knows (`knownNetwork`), except from known networks within it. */
    known: (proof: Proof, usernameKey: string, network: Buffer) =>
      name('known', proof, usernameKey, network.toString('hex')),
    /** Attempts of a proof on an account from a device that it knows. */
    device: (proof: Proof, { userId, session }: Device) => name('device', proof, String(userId), session),
    /** Wrong activation keys that a user gave. */
    activation: (userId: number) => name('activation', String(userId)),
    /** Requests for a recovery key of a user to another address than the registered one. */
    otherAddress: (userId: number) => name('other-address', String(userId)),
    /** Actions of a kind by one client address, on one account if it is given. */
    address: (kind: string, address: string, account?: string) =>
      name('address', kind, network(address), ...(account === undefined ? [] : [account])),
    /** Attempts of mailed keys from one client address. */
    mailedKeys,
    /** Attempts of a mailed key, by its digest, from one client address, or the account of all these: as `countTry` does. */
    mailedKey: (keyDigest: Buffer, address?: string) =>
      createHash('sha256')
        .update(keyDigest)
        .update(address === undefined ? '' : mailedKeys(address))
        .digest()
        .subarray(0, 16),
    /** E-mails that share a limit. */
    emails: (limit: string, of: string) => name('emails', limit, of),
    /** A network, for the list of those known to an account. */
    knownNetwork: (network: string) => name('known-network', network),
  }
}

const accountAttributes = {
  id: integer,
  username: text,
  passwordHash: text,
  email: nullable(text),
  role: attribute<Role>('TEXT'),
  active: flag,
  suspended: flag,
  desk: flag,
  organizationId: nullable(integer),
  tokenGeneration: integer,
  passwordUpdatedAt: nullable(time),
  recoveryFrom: nullable(time),
}

/** The data of an account that a sign-in needs. */
export interface Account extends Row<typeof accountAttributes> {}

/** An attempt to begin. */
interface Beginning {
  readonly usernameKey: string
  /** The proof of the attempt; undefined if it doesn't count for the account. */
  readonly proof: Proof | undefined
  readonly address: string
  /** The device of the token that the client sends. It counts as known only for its own account and token generation. */
  readonly device: Device | undefined
  readonly limits: AttemptLimits
}

/** The limits of attempts. */
interface AttemptLimits {
  /** Maximum sum of failures and attempts in flight of a counter. */
  readonly max: number
  /** The bucket of failures of a client address. */
  readonly bucket: BucketLimit
}

/** The counter of an attempt. */
interface Counter {
  readonly subject: Buffer
  /** The counter of the account, if this is a separate counter for a known network or device; else null. */
  readonly account: Buffer | null
}

/** The start of an attempt. */
export interface AttemptStart {
  readonly account: Account | undefined
  /** Its counter; undefined if it doesn't count for the account. */
  readonly counter: Counter | undefined
  /** What it must wait for; null if it is counted as in flight, and may continue. */
  readonly obstacle: 'address' | 'failures' | 'attempts' | null
  /** Whether the account knows the device or a network of the address. */
  readonly known: boolean
  /** The level of the bucket of the client address. */
  readonly addressLevel: number
  /** Seconds until the failures expire. */
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
interface Count {
  readonly count: number
  /** Seconds until the count restarts. */
  readonly seconds: number
}

/** Seconds after which an attempt no longer counts as in flight. Longer than the longest deadline of a call. */
const inFlightSeconds = 30

/** The failures and the attempts in flight of the counter `a` that still count. */
const failed = sql`CASE WHEN a.window_ends > clock_timestamp() THEN a.count ELSE 0 END`
const inFlight = sql`CASE WHEN a.in_flight_until > clock_timestamp() THEN a.in_flight ELSE 0 END`

/** Adds to the count of a subject, whose window begins with the first and doesn't move: further attempts don't extend a lock. */
const addOne = (subject: Query, account: Query, seconds: number | Query, from = sql``) => sql`
  INSERT INTO attempts AS a (subject, account, count, window_ends)
  SELECT ${subject}, ${account}, 1, clock_timestamp() + make_interval(secs => ${seconds}) ${from}
  ON CONFLICT (subject) DO UPDATE SET in_flight = greatest(a.in_flight - 1, 0),
    count = ${failed} + 1,
    window_ends = CASE WHEN a.window_ends <= clock_timestamp() THEN excluded.window_ends ELSE a.window_ends END
  RETURNING subject, count, window_ends`

/**
 * The parts of a statement that count an attempt of each mailed key in a relation, from a client address (`mailedKeys` of the counter
 * keys), for so many `seconds`. `tried` has the count by `digest`. The relation has one row with a null digest if there is no key.
 */
export const countTries = (relation: string, address: Buffer) => sql`
  keys AS MATERIALIZED (SELECT digest, seconds, substring(sha256(coalesce(digest, '') || ${address}::bytea) FOR 16) AS counter,
    substring(sha256(digest) FOR 16) AS key FROM ${sql.text(relation)}),
  counted AS (${addOne(sql`counter`, sql`key`, sql`seconds`, sql`FROM keys, relaxed`)}),
  tried AS (SELECT digest, count FROM keys JOIN counted ON subject = counter)`

const columns = sql.text(selectList(accountAttributes, 'u'))

/** Counts attempts and other limited actions, each within a time window. */
export type Attempts = ReturnType<typeof createAttempts>

/** Creates the counters in a database. */
export function createAttempts(database: Database, audit: Pick<Audit, 'stamp'>, counterKeys: CounterKeys) {
  const networkKeys = (address: string) => {
    const [inner, outer] = knowableNetworks(address)
    return [counterKeys.knownNetwork(inner), counterKeys.knownNetwork(outer)] as const
  }

  /** The counters of an attempt by where it comes from: a known device, the inner or outer known network, or elsewhere. */
  function counters({ proof, usernameKey, address, device }: Beginning) {
    if (!proof) return {}
    const [inner, outer] = networkKeys(address).map(network => counterKeys.known(proof, usernameKey, network))
    const ofDevice = device && counterKeys.device(proof, device)
    return { device: ofDevice, inner, outer, elsewhere: counterKeys.account(proof, usernameKey) }
  }

  /** The networks that a user knows, as digests. */
  async function networksOf(userId: number, t?: Transaction): Promise<Buffer[]> {
    const read = sql('attempt-networks-of-user')`SELECT address FROM known_addresses WHERE user_id = ${userId}`
    return (await database.run<{ address: Buffer }>(read, t)).map(({ address }) => address)
  }

  const stamped = (event: AuditEvent | undefined) => (event ? audit.stamp(event) : null)

  return {
    networksOf,
    /**
     * Counts an attempt as in flight unless it exceeds a limit, and reads the account.
     *
     * | the account knows | counter of the proof | it must wait for                                           |
     * |-------------------|----------------------|------------------------------------------------------------|
     * | the device        | of the device        | the counter                                                |
     * | the address or /64 | of that network     | the counter                                                |
     * | the /24 or /48    | of that network      | the counter                                                |
     * | none of them      | of the account       | the bucket of the address, if it is full; else the counter |
     *
     * The counter: `failures` if they reach the maximum, `attempts` if only those in flight do. An attempt without a proof has
     * no counter. A device takes precedence over networks, as OWASP recommends, so that its owner can sign in while others in
     * the same network guess the password.
     */
    async begin(beginning: Beginning): Promise<AttemptStart> {
      const { usernameKey, address, device, limits } = beginning
      const { max, bucket } = limits
      const subjects = counters(beginning)
      const [inner, outer] = networkKeys(address)
      const ofBucket = counterKeys.address('failures', address)
      // No user has the id 0: an unknown user's networks are looked up, too, so that the time is the same.
      const id = sql`coalesce(id, 0)`
      const full = sql`CASE WHEN ${failed} >= ${max}::int THEN 'failures' WHEN ${failed} + ${inFlight} >= ${max} THEN 'attempts' END`
      type Row = Account &
        Omit<AttemptStart, 'account' | 'counter'> & { id: number | null; place: keyof typeof subjects }
      const [row] = await database.run<Row>(sql('attempt-begin')`WITH ${relaxed}, account AS (
          SELECT * FROM users u WHERE username_key = ${usernameKey} AND ${presentUser.sql}
        ), origin AS (
          -- Where the attempt comes from, for the account.
          SELECT CASE WHEN id = ${device?.userId}::int AND token_generation = ${device?.generation}::int
              AND EXISTS (SELECT FROM signing_keys WHERE kid = ${device?.kid} AND ${verifies}) THEN 'device'
            WHEN ${knows(id, inner)} THEN 'inner' WHEN ${knows(id, outer)} THEN 'outer' ELSE 'elsewhere' END AS place
          FROM relaxed LEFT JOIN account ON true
        ), found AS (
          -- Its counter, NULL for an attempt without a proof, and the level of the bucket of the address.
          SELECT place, place <> 'elsewhere' AS known, ${subjects.elsewhere}::bytea AS of_account,
            CASE place WHEN 'device' THEN ${subjects.device}::bytea WHEN 'inner' THEN ${subjects.inner}
              WHEN 'outer' THEN ${subjects.outer} ELSE ${subjects.elsewhere} END AS subject,
            coalesce((SELECT ${bucketLevel(bucket)} FROM buckets b WHERE subject = ${ofBucket}), 0) AS level
          FROM origin
        ), allowed AS (
          SELECT *, known OR level + 1 <= ${bucket.capacity}::float8 AS allowed FROM found
        ), begun AS (
          -- No row if the counter has reached its limit.
          INSERT INTO attempts AS a (subject, account, count, window_ends, in_flight, in_flight_until)
          SELECT subject, CASE WHEN known THEN of_account END, 0, clock_timestamp(), 1,
            clock_timestamp() + make_interval(secs => ${inFlightSeconds})
          FROM allowed WHERE subject IS NOT NULL AND allowed
          ON CONFLICT (subject) DO UPDATE SET
            in_flight = ${inFlight} + 1, in_flight_until = excluded.in_flight_until
          WHERE ${full} IS NULL
          RETURNING 1
        )
        SELECT ${columns}, f.place, f.known, f.level AS "addressLevel",
          CASE WHEN NOT f.allowed THEN 'address' WHEN f.subject IS NOT NULL AND NOT EXISTS (SELECT FROM begun)
            -- Others began meanwhile.
            THEN coalesce(${full}, 'attempts') END AS obstacle,
          greatest(0, coalesce(extract(epoch FROM a.window_ends - clock_timestamp()), 0))::float8 AS seconds
        FROM allowed f LEFT JOIN account u ON true LEFT JOIN attempts a ON a.subject = f.subject`)
      const { place, known } = row!
      const subject = subjects[place]
      const counter = subject && { subject, account: known ? subjects.elsewhere! : null }
      return { ...row!, counter, account: row!.id === null ? undefined : row }
    },
    /** Removes an attempt that neither failed nor succeeded. */
    async undo(subject: Buffer): Promise<void> {
      await database.run(sql('attempt-undo')`WITH ${relaxed}
        UPDATE attempts SET in_flight = greatest(in_flight - 1, 0) FROM relaxed WHERE subject = ${subject}`)
    },
    /**
     * Counts a failed attempt, also in the bucket of its client address, and ends it if it is counted as in flight. Records
     * the events for the user, each once in a window. It records no event without `userId` or, like `succeed` and `record`,
     * for a user that has been erased; the statement waits for the disk as if it did. Returns the level of the bucket.
     */
    async fail(
      { subject, account }: Counter,
      { max, seconds, first, last }: Failures,
      { userId, address, bucket }: { userId: number | undefined; address: string; bucket: BucketLimit },
    ): Promise<number> {
      const [firstEvent, lastEvent] = [first, last].map(stamped)
      // The row may be missing: a row whose attempts were in flight for too long is pruned. As in the next two statements, each
      // part reads from the previous part, which fixes the order of locks: the count, the user, the rest. An erasure locks the
      // user first, but permits FOR KEY SHARE until it ends. Only an event waits for the disk.
      const [row] = await database.run<{ level: number }>(sql('attempt-fail')`WITH
        failed AS (${addOne(sql`${subject}::bytea`, sql`${account}::bytea`, seconds)}),
        due AS MATERIALIZED (
          SELECT CASE count WHEN ${max}::int THEN ${lastEvent}::jsonb WHEN 1 THEN ${firstEvent}::jsonb END AS event FROM failed
        ), relaxed AS MATERIALIZED (
          SELECT set_config('synchronous_commit', 'off', true) FROM due WHERE event IS NULL
        ), present AS MATERIALIZED (
          SELECT FROM users WHERE id = ${userId ?? null} AND (SELECT count(*) FROM relaxed) = 0 FOR KEY SHARE
        ), recorded AS MATERIALIZED (
          SELECT audit_append(event)::text AS done FROM due WHERE EXISTS (SELECT FROM present)
        ), added AS (
          ${addToBucket(counterKeys.address('failures', address), bucket, sql`(SELECT count(done) FROM recorded) >= 0`)}
        )
        SELECT level FROM added`)
      return row!.level
    },
    /**
     * Ends a successful attempt: clears the failures, stores the networks of the address as known, and records the event.
     * If the user has been deleted or erased, or its token generation is another, it returns false, and only clears the failures.
     */
    async succeed(
      subject: Buffer | undefined,
      address: string,
      { id: userId, tokenGeneration }: Pick<Account, 'id' | 'tokenGeneration'>,
      event: AuditEvent,
      t?: Transaction,
    ): Promise<boolean> {
      const [inner, outer] = networkKeys(address)
      // For an account that was never activated, `seen` updates the time of the last sign-in. It skips a locked row: a wait
      // would break the order of locks, and the lock belongs to another sign-in or to a change of the user.
      const query = sql('attempt-succeed')`WITH cleared AS (
          UPDATE attempts SET count = 0, window_ends = clock_timestamp(), in_flight = greatest(in_flight - 1, 0)
          WHERE subject = ${subject} RETURNING 1
        ), present AS MATERIALIZED (
          SELECT id, unactivated_seen_at IS NOT NULL AS unactivated FROM users u
          WHERE id = ${userId} AND token_generation = ${tokenGeneration} AND ${presentUser.sql}
            AND (SELECT count(*) FROM cleared) >= 0 FOR KEY SHARE
        ), seen AS (UPDATE users SET unactivated_seen_at = clock_timestamp() WHERE id = (
          SELECT id FROM users WHERE id = (SELECT id FROM present WHERE unactivated) AND unactivated_seen_at IS NOT NULL
          FOR NO KEY UPDATE SKIP LOCKED)
        ), remembered AS (INSERT INTO known_addresses (user_id, address, seen_at)
          SELECT id, network, clock_timestamp() FROM present, (VALUES (${inner}::bytea), (${outer})) AS networks (network)
          ON CONFLICT (user_id, address) DO UPDATE SET seen_at = clock_timestamp() RETURNING 1)
        SELECT audit_append(${stamped(event)}) WHERE EXISTS (SELECT FROM remembered)`
      const rows = await database.run(query, t)
      return rows.length > 0
    },
    /** Deletes the networks that a user knows. */
    async forgetNetworks(userId: number, t: Transaction): Promise<void> {
      await database.run(sql('known-addresses-forget')`DELETE FROM known_addresses WHERE user_id = ${userId}`, t)
    },
    /** Records an event of an attempt. Counts nothing. */
    async record(event: AuditEvent, t?: Transaction): Promise<void> {
      const id = event.subject_id
      const query = sql(
        'attempt-record',
      )`WITH present AS MATERIALIZED (SELECT FROM users WHERE id = ${id} FOR KEY SHARE)
          SELECT audit_append(${stamped(event)}) WHERE ${id}::int IS NULL OR EXISTS (SELECT FROM present)`
      await database.run(query, t)
    },
    /** Increments a count and returns it. */
    async count(subject: Buffer, seconds: number): Promise<Count> {
      const [row] = await database.run<Count>(sql('attempt-count')`
        WITH counted AS (${addOne(sql`${subject}::bytea`, sql`NULL::bytea`, seconds)})
        SELECT count, extract(epoch FROM window_ends - clock_timestamp())::float8 AS seconds FROM counted`)
      return row!
    },
    /** Returns the current counts of an account and of its known networks and devices, highest first. */
    readAll: (account: Buffer) =>
      database.run<Count & { readonly subject: Buffer }>(sql('attempts-of-account')`
        SELECT subject, count, ceil(extract(epoch FROM window_ends - clock_timestamp()))::int AS seconds
        FROM attempts WHERE (subject = ${account} OR account = ${account}) AND window_ends > clock_timestamp() AND count > 0
        ORDER BY count DESC, window_ends DESC`),
    /** Clears the counts of accounts and of their known networks and devices. Returns the number of cleared counts. */
    async clear(accounts: readonly Buffer[], t?: Transaction): Promise<number> {
      const query = sql('attempt-clear')`UPDATE attempts SET count = 0, window_ends = clock_timestamp()
        WHERE (subject = ANY(${accounts}::bytea[]) OR account = ANY(${accounts}::bytea[]))
          AND count > 0 AND window_ends > clock_timestamp() RETURNING 1`
      return (await database.run(query, t)).length
    },
    /**
     * Keeps the counts of an account that gets another username. Call it before the statement that changes the username: a
     * sign-in locks counts, then the user.
     */
    async rename(userId: number, former: string, usernameKey: string, t: Transaction): Promise<void> {
      const networks = await networksOf(userId, t)
      const knownKeys = (proof: Proof, network: Buffer) =>
        [former, usernameKey].map(key => counterKeys.known(proof, key, network))
      const names = [...proofs, 'mailed key' as const].flatMap(proof => {
        const accounts = [counterKeys.account(proof, former), counterKeys.account(proof, usernameKey)]
        const known = proof === 'mailed key' ? [] : networks.map(network => knownKeys(proof, network))
        return [accounts, ...known].map(pair => [...pair, ...accounts])
      })
      const column = (number: number) => names.map(name => name[number])
      // Copies counts instead of moving them, because an attempt in flight ends under the former subject. If the new username
      // already has a count, from before it had a user, the higher count applies. `devices` keeps the counts of devices, whose
      // subjects don't depend on the username. It skips known networks: their former counts expire.
      const query = sql('attempt-rename')`WITH names AS MATERIALIZED (
          SELECT * FROM unnest(${column(0)}::bytea[], ${column(1)}::bytea[], ${column(2)}::bytea[], ${column(3)}::bytea[])
            AS n (former, next, former_account, next_account)
        ), devices AS (
          UPDATE attempts a SET account = n.next_account FROM names n
          WHERE a.account = n.former_account AND n.former = n.former_account AND NOT a.subject = ANY(${column(0)}::bytea[])
        )
        INSERT INTO attempts AS a (subject, account, count, window_ends)
        SELECT n.next, CASE WHEN n.next <> n.next_account THEN n.next_account END, f.count, f.window_ends
        FROM names n JOIN attempts f ON f.subject = n.former WHERE f.count > 0 AND f.window_ends > clock_timestamp()
        ON CONFLICT (subject) DO UPDATE SET
          count = greatest(${failed}, excluded.count),
          window_ends = greatest(a.window_ends, excluded.window_ends)`
      await database.run(query, t)
    },
    /** Deletes expired counts, and known networks that have been unused for too long. */
    async prune(): Promise<void> {
      // Skips locked rows, so that it never waits for a sign-in that waits for it.
      await database.runUnlimited(sql('attempts-prune')`
        DELETE FROM attempts WHERE subject IN (SELECT subject FROM attempts
        WHERE greatest(window_ends, in_flight_until) < clock_timestamp() FOR UPDATE SKIP LOCKED)`)
      await database.runUnlimited(pruneKnown)
    },
    /** Returns the innermost network of an address that a user knows; undefined when it knows none. */
    async knownNetwork(userId: number, address: string): Promise<string | undefined> {
      const [inner, outer] = networkKeys(address)
      const id = sql`u.id`
      const [row] = await database.run<{ place: number | null }>(sql('attempt-known-network')`
        SELECT CASE WHEN ${knows(id, inner)} THEN 0 WHEN ${knows(id, outer)} THEN 1 END AS place
        FROM users u WHERE id = ${userId}`)
      return row?.place == null ? undefined : knowableNetworks(address)[row.place]
    },
    /** Returns the username keys of active accounts that know a network, latest first. */
    async accountsKnowing(network: string, max: number): Promise<string[]> {
      const rows = await database.read<{ key: string }>(sql('attempt-accounts-knowing')`
        SELECT u.username_key AS key FROM known_addresses k JOIN users u ON u.id = k.user_id
        WHERE k.address = ${counterKeys.knownNetwork(network)} AND ${activeUser.sql} AND ${stillKnown}
        ORDER BY k.seen_at DESC LIMIT ${max}`)
      return rows.map(({ key }) => key)
    },
  }
}
