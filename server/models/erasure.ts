// Erasing a user: no table names it any more, and the audit log still verifies.
import type { Database, Statement, Transaction } from '../database/connection.js'
import { emailKey } from '../rules/names.js'
import { type CounterKeys, knowableNetworks, proofs } from './attempt.js'

/** Shows that a user was erased, and holds nothing personal. With it, an older backup is restored without the user. */
export interface Receipt {
  /** The user's id, which is never used again. */
  readonly user: number
  /** When, by the database's clock (ISO 8601). */
  readonly erasedAt: string
  /**
   * Rows deleted from each table; of `audit_events` and `audit_staged` those whose client address was erased with its salt.
   */
  readonly rows: Readonly<Record<string, number>>
}

/** Erases users. */
export interface Erasure {
  /**
   * Erases a user: the account, its keys, answers and known networks, e-mails that wait for it, what was counted under its
   * name, and in the audit log the client addresses of what it did, and of what nobody known did to it. Those of others who
   * acted on it are theirs. Events themselves stay, under the id. Counts of client addresses, and of mailed keys that were
   * spent, name no user; they lapse within three days. Returns undefined when there is no such user. Appends no event: the
   * caller says who did it. Until the audit log has an index by actor this reads all of it, so call it in an unlimited
   * transaction.
   */
  erase(userId: number, t: Transaction): Promise<Receipt | undefined>
  /** Which of these users are there no longer, nor deleted ones. */
  gone(ids: readonly number[]): Promise<number[]>
}

const names: Statement = {
  name: 'erasure-names',
  text: 'SELECT username_key AS "usernameKey", email, clock_timestamp() AS at FROM users WHERE id = $1',
}

const gone: Statement = {
  name: 'erasure-gone',
  text: 'SELECT id FROM unnest($1::bigint[]) AS given (id) WHERE NOT EXISTS (SELECT FROM users u WHERE u.id = given.id)',
}

const mailedKeys: Statement = {
  name: 'erasure-mailed-keys',
  text: 'SELECT key_digest AS digest FROM mailed_keys WHERE user_id = $1',
}

/**
 * Events that tell the user's own client address: it acted, or somebody unknown did, as far as anyone knows itself. Said so
 * that an index on (actor_id) WHERE actor_id IS DISTINCT FROM subject_id finds the second kind.
 */
const own = `address IS NOT NULL AND ((subject_id = $1 AND (actor_id IS NULL OR actor_id = $1))
  OR (actor_id = $1 AND actor_id IS DISTINCT FROM subject_id))`

const addresses: Statement = {
  name: 'erasure-addresses',
  text: `SELECT address FROM audit_staged WHERE ${own} UNION SELECT address FROM audit_events WHERE ${own}`,
}

const counting = (name: string, text: string): Statement => ({
  name: `erasure-${name}`,
  text: `WITH gone AS (${text} RETURNING 1) SELECT count(*)::int AS count FROM gone`,
})

// With those of networks and devices that the account knows.
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

// The commitment is left; without the salt, its value can't be found.
const forgetAddresses = (table: string) =>
  counting(table, `UPDATE ${table} SET address = NULL, salt = NULL WHERE ${own}`)

/** Tables that belong to users, row by row. A sign-in by a mailed key spends the key before it remembers the address. */
const owned = [
  'former_usernames',
  'provider_keys',
  'answers',
  'unmatched_answers',
  'mailed_keys',
  'known_addresses',
  'totp_secrets',
  'creation_requests',
]

/** Erases users from a database. */
export function createErasure(database: Database, counterKeys: CounterKeys): Erasure {
  async function count(statement: Statement, values: readonly unknown[], t: Transaction): Promise<number> {
    return (await database.run<{ count: number }>(statement, values, t))[0]!.count
  }

  /** What is counted under the user's names, as far as these can be told: the rest lapses within three days. */
  async function countsOf(id: number, usernameKey: string, email: string | null, t: Transaction) {
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
        ...recipient.map(of => counterKeys.emails('recipient', of)),
      ],
    }
  }

  return {
    gone: async ids => (await database.run<{ id: string }>(gone, [ids])).map(({ id }) => Number(id)),
    async erase(id, t) {
      const [user] = await database.run<{ usernameKey: string; email: string | null; at: Date }>(names, [id], t)
      if (!user) return undefined
      const { usernameKey, email, at } = user
      const { attempts, quotas } = await countsOf(id, usernameKey, email, t)
      // In the order in which a sign-in locks rows, and staged events before those that they become.
      const rows: Record<string, number> = {
        attempts: await count(deleteAttempts, [attempts], t),
        email_quotas: await count(deleteQuotas, [quotas], t),
      }
      for (const table of owned) rows[table] = await count(byUser(table), [id], t)
      // From here on no sign-in is in progress that could leave a row.
      rows.users = await count(deleteUser, [id], t)
      rows.emails = await count(deleteEmails, [id, usernameKey], t)
      rows.audit_staged = await count(forgetAddresses('audit_staged'), [id], t)
      rows.audit_events = await count(forgetAddresses('audit_events'), [id], t)
      return { user: id, erasedAt: at.toISOString(), rows }
    },
  }
}
