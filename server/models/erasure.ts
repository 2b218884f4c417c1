// Erases users: afterwards no table refers to the user, and the audit log still verifies.
import type { Database, Statement, Transaction } from '../database/connection.js'
import { emailKey } from '../rules/names.js'
import { type CounterKeys, knowableNetworks, proofs } from './attempt.js'

/** Proof of an erasure, without personal data. It lets a restore of an older backup erase the user again. */
export interface Receipt {
  /** Id of the user. Ids are never reused. */
  readonly user: number
  /** Time of the erasure by the clock of the database (ISO 8601). */
  readonly eraseTime: string
  /**
   * Number of rows deleted from each table; for `audit_events` and `audit_staged`, rows whose client address and salt were
   * erased.
   */
  readonly rows: Readonly<Record<string, number>>
}

/** Erases users. */
export interface Erasure {
  /**
   * Erases a user: the account, its keys, answers and known networks, its queued e-mails, and its counters. In the audit
   * log, erases the client addresses of events that the user caused, and of events on the user by an unidentified actor. The
   * addresses of other actors stay, because they are their personal data. The events stay, with the id of the user. Counters
   * of client addresses and of spent mailed keys don't identify the user, and expire within three days.
   *
   * Returns undefined when the user doesn't exist. Appends no event: the caller records the actor. Call it in an unlimited
   * transaction, because it scans the whole audit log until the log has an index by actor.
   */
  erase(userId: number, t: Transaction): Promise<Receipt | undefined>
  /** Returns the ids of users that have been erased. Deleted users still exist. */
  erased(ids: readonly number[]): Promise<number[]>
}

const names: Statement = {
  name: 'erasure-names',
  text: 'SELECT username_key AS "usernameKey", email, clock_timestamp() AS at FROM users WHERE id = $1',
}

const erased: Statement = {
  name: 'erasure-erased',
  text: 'SELECT id FROM unnest($1::bigint[]) AS given (id) WHERE NOT EXISTS (SELECT FROM users u WHERE u.id = given.id)',
}

const mailedKeys: Statement = {
  name: 'erasure-mailed-keys',
  text: 'SELECT key_digest AS digest FROM mailed_keys WHERE user_id = $1',
}

/**
 * SQL condition: an event holds a client address of the user. The user is the actor, or is the subject of an unidentified
 * actor, who may be the user. The second part matches an index on (actor_id) WHERE actor_id IS DISTINCT FROM subject_id.
 */
const own = `address IS NOT NULL AND ((subject_id = $1 AND (actor_id IS NULL OR actor_id = $1))
  OR (actor_id = $1 AND actor_id IS DISTINCT FROM subject_id))`

const addresses: Statement = {
  name: 'erasure-addresses',
  text: `SELECT address FROM audit_staged WHERE ${own} UNION SELECT address FROM audit_events WHERE ${own}`,
}

const counting = (name: string, text: string): Statement => ({
  name: `erasure-${name}`,
  text: `WITH deleted AS (${text} RETURNING 1) SELECT count(*)::int AS count FROM deleted`,
})

// Includes the counts for networks and devices that the account knows.
const deleteAttempts = counting(
  'attempts',
  'DELETE FROM attempts WHERE subject = ANY($1::bytea[]) OR account = ANY($1)',
)

const deleteQuotas = counting('email_quotas', 'DELETE FROM email_quotas WHERE subject = ANY($1::bytea[])')

const byUser = (table: string) => counting(table, `DELETE FROM ${table} WHERE user_id = $1`)

const deleteEmails = counting(
  'emails',
  `DELETE FROM emails WHERE parameters ->> 'userId' = $1::text
    OR (kind = 'recovery-request' AND parameters ->> 'usernameKey' = $2)`,
)

const deleteUser = counting('users', 'DELETE FROM users WHERE id = $1')

// The digest of the address stays; without the salt, it doesn't reveal the address.
const forgetAddresses = (table: string) =>
  counting(table, `UPDATE ${table} SET address = NULL, salt = NULL WHERE ${own}`)

/**
 * Tables whose rows belong to one user, in the order of locks: a sign-in by a mailed key spends the key before it stores the
 * known network.
 */
const owned = [
  'former_usernames',
  'provider_keys',
  'answers',
  'unmatched_answers',
  'mailed_keys',
  'known_addresses',
  'totp_secrets',
  'creation_requests',
  'predecessor_users',
]

/** Creates the erasure of users from a database. */
export function createErasure(database: Database, counterKeys: CounterKeys): Erasure {
  async function count(statement: Statement, values: readonly unknown[], t: Transaction): Promise<number> {
    return (await database.run<{ count: number }>(statement, values, t))[0]!.count
  }

  /** Returns the keys of the user's counters, as far as they can be derived: others expire within three days. */
  async function counterKeysOf(id: number, usernameKey: string, email: string | null, t: Transaction) {
    const keys = await database.run<{ digest: Buffer }>(mailedKeys, [id], t)
    const known = (await database.run<{ address: string }>(addresses, [id], t)).map(({ address }) => address)
    const recipient = email === null ? [] : [emailKey(email), `${emailKey(email)}\0known`]
    return {
      attempts: [
        ...[...proofs, 'mailed key' as const].map(proof => counterKeys.account(proof, usernameKey)),
        counterKeys.activation(id),
        ...known.flatMap(address => keys.map(({ digest }) => counterKeys.mailedKey(digest, address))),
      ],
      quotas: [
        counterKeys.emails('recovery', String(id)),
        ...known.flatMap(knowableNetworks).map(network => counterKeys.emails('recovery', `${id}\0${network}`)),
        counterKeys.emails('partner', String(id)),
        counterKeys.emails('partnerAddresses', String(id)),
        counterKeys.emails('exports', String(id)),
        ...recipient.map(of => counterKeys.emails('recipient', of)),
        ...(email === null ? [] : [counterKeys.emails('notices', `${id}\0${emailKey(email)}`)]),
      ],
    }
  }

  return {
    erased: async ids => (await database.run<{ id: string }>(erased, [ids])).map(({ id }) => Number(id)),
    async erase(id, t) {
      const [user] = await database.run<{ usernameKey: string; email: string | null; at: Date }>(names, [id], t)
      if (!user) return undefined
      const { usernameKey, email, at } = user
      const { attempts, quotas } = await counterKeysOf(id, usernameKey, email, t)
      // Locks rows in the same order as a sign-in, and staged events before sealed events.
      const rows: Record<string, number> = {
        attempts: await count(deleteAttempts, [attempts], t),
        email_quotas: await count(deleteQuotas, [quotas], t),
      }
      for (const table of owned) rows[table] = await count(byUser(table), [id], t)
      // From here on, no sign-in in flight can insert another row.
      rows.users = await count(deleteUser, [id], t)
      rows.emails = await count(deleteEmails, [id, usernameKey], t)
      rows.audit_staged = await count(forgetAddresses('audit_staged'), [id], t)
      rows.audit_events = await count(forgetAddresses('audit_events'), [id], t)
      return { user: id, eraseTime: at.toISOString(), rows }
    },
  }
}
