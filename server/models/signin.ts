import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import { knownAddressDays, limits, type Subjects } from './attempt.js'
import type { AuditEvent } from './audit.js'
import type { Role } from './user.js'

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

/** A try to sign in that has been counted already. */
export interface SignInAttempt {
  /** Whom it is about; undefined when nobody has the name. */
  readonly account: Account | undefined
  /** Seconds to wait, when too many tries failed before this one. */
  readonly wait: number | undefined
  /** Whether this try is the one that reached a limit, so that the record shows each lock once. */
  readonly reached: boolean
  /** Subjects it was counted against. */
  readonly subjects: readonly [account: Buffer, address: Buffer]
}

/** Counts tries to sign in and reads the account; ends a successful one. */
export interface SignIns {
  /** Counts a try against account and client address and reads the account, in one statement. */
  begin(usernameKey: string, address: string): Promise<SignInAttempt>
  /** Takes back a try of which nothing was compared, so that a busy service locks nobody. */
  undo(attempt: SignInAttempt): Promise<void>
  /**
   * Ends a successful try: clears the account's count, takes the try back from the address's count, remembers the
   * address as known to the account, renews the password's hash when `renewed` is given, records the event.
   */
  succeed(
    attempt: SignInAttempt & { account: Account },
    address: string,
    event: AuditEvent,
    options?: { renewed?: string; transaction?: Transaction },
  ): Promise<void>
  /** Whether the client address counts as known to a user. */
  knows(userId: number, address: string): Promise<boolean>
}

// The count of a known address stands in for the account's own, so that failures elsewhere lock nobody out there.
// Nobody waits for the disk: a crash of PostgreSQL may forget the tries of the last second, and nothing else.
const begin: Statement = {
  name: 'signin-begin',
  text: `WITH relaxed AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true)
  ), account AS (
    SELECT id, username, password_hash, email, role, active, suspended, organization_id, token_generation
    FROM users WHERE username_key = $1
  ), known AS (
    SELECT EXISTS (SELECT FROM known_addresses k JOIN account a ON a.id = k.user_id
      WHERE k.address = $5 AND k.seen_at > now() - interval '${knownAddressDays} days') AS yes FROM relaxed
  ), counted AS (
    SELECT c.* FROM known, attempts_count(ARRAY[CASE WHEN known.yes THEN $3::bytea ELSE $2::bytea END, $4::bytea],
      ${limits.account.seconds}) c
  )
  SELECT a.id, a.username, a.password_hash AS "passwordHash", a.email, a.role, a.active, a.suspended,
    a.organization_id AS "organizationId", a.token_generation AS "tokenGeneration", known.yes AS known,
    c1.count AS "accountCount", c1.seconds_left AS "accountSeconds",
    c2.count AS "addressCount", c2.seconds_left AS "addressSeconds"
  FROM known JOIN counted c1 ON c1.place = 1 JOIN counted c2 ON c2.place = 2 LEFT JOIN account a ON true`,
}

// Each part reads from the one before, which settles the order of locks; the record comes last.
const succeed: Statement = {
  name: 'signin-succeed',
  text: `WITH cleared AS (DELETE FROM attempts WHERE subject = $1 RETURNING 1),
  refunded AS (UPDATE attempts SET count = greatest(count - 1, 0)
    WHERE subject = $2 AND (SELECT count(*) FROM cleared) >= 0 RETURNING 1),
  remembered AS (INSERT INTO known_addresses (user_id, address)
    SELECT $3, $4 WHERE (SELECT count(*) FROM refunded) >= 0
    ON CONFLICT (user_id, address) DO UPDATE SET seen_at = now() RETURNING 1),
  renewed AS (UPDATE users SET password_hash = $5 WHERE id = $3 AND password_hash = $6 AND $5::text IS NOT NULL
    AND (SELECT count(*) FROM remembered) >= 0 RETURNING 1)
  SELECT audit_append($7) WHERE (SELECT count(*) FROM renewed) >= 0`,
}

const undo: Statement = {
  name: 'signin-undo',
  text: `WITH account AS (UPDATE attempts SET count = greatest(count - 1, 0) WHERE subject = $1 RETURNING 1)
    UPDATE attempts SET count = greatest(count - 1, 0) WHERE subject = $2 AND (SELECT count(*) FROM account) >= 0`,
}

const knows: Statement = {
  name: 'signin-knows',
  text: `SELECT FROM known_addresses WHERE user_id = $1 AND address = $2
    AND seen_at > now() - interval '${knownAddressDays} days'`,
}

type BeginRow = Account & {
  id: number | null
  known: boolean
  accountCount: number
  accountSeconds: number
  addressCount: number
  addressSeconds: number
}

/** Sign-ins against a database. */
export function createSignIns(database: Database, subjects: Subjects): SignIns {
  return {
    async begin(usernameKey, address) {
      const everywhere = subjects.account(usernameKey)
      const fromHere = subjects.known(usernameKey, address)
      const byAddress = subjects.address(address)
      const values = [usernameKey, everywhere, fromHere, byAddress, subjects.knownAddress(address)]
      const row = (await database.run<BeginRow>(begin, values))[0]!
      const over = {
        account: row.accountCount > limits.account.count,
        address: row.addressCount > limits.address.count,
      }
      const waits = [over.account ? row.accountSeconds : 0, over.address ? row.addressSeconds : 0]
      return {
        account: row.id === null ? undefined : row,
        wait: over.account || over.address ? Math.max(1, Math.ceil(Math.max(...waits))) : undefined,
        reached: row.accountCount === limits.account.count + 1 || row.addressCount === limits.address.count + 1,
        subjects: [row.known ? fromHere : everywhere, byAddress],
      }
    },
    async undo({ subjects: counted }) {
      await database.run(undo, [...counted])
    },
    async succeed(attempt, address, event, { renewed, transaction } = {}) {
      const { account, subjects: counted } = attempt
      const values = [
        counted[0],
        counted[1],
        account.id,
        subjects.knownAddress(address),
        renewed ?? null,
        account.passwordHash,
        JSON.stringify(event),
      ]
      await database.run(succeed, values, transaction)
    },
    knows: async (userId, address) => (await database.run(knows, [userId, subjects.knownAddress(address)])).length > 0,
  }
}
