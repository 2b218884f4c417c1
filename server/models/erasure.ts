// Erases users: afterwards no table refers to the user, and the audit log still verifies.
import type { Database, Transaction } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { emailKey } from '../rules/names.js'
import { type CounterKeys, proofs } from './attempt.js'
import { knowableNetworks } from './known-network.js'

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

/** Days during which a deleted user can be restored, before it is erased. */
export const daysUntilErasure = 30

/**
 * Whether an event holds a client address of the user: it is the actor, or is the subject of an unidentified actor, who may be
 * the user. The second part matches an index on (actor_id) WHERE actor_id IS DISTINCT FROM subject_id.
 */
const holdsAddressOf = (id: number) => sql`address IS NOT NULL
  AND ((subject_id = ${id} AND (actor_id IS NULL OR actor_id = ${id})) OR (actor_id = ${id} AND actor_id IS DISTINCT FROM subject_id))`

/**
 * Tables whose rows belong to one user, in the order of locks: a sign-in by a mailed key spends the key before it stores the
 * known network. They would also cascade, in another order and without being counted.
 */
const owned = [
  'former_usernames',
  'provider_keys',
  'answers',
  'unmatched_answers',
  'mailed_keys',
  'known_addresses',
  'totp_secrets',
  'refreshed_sessions',
]

/** Creates the erasure of users from a database. */
export function createErasure(database: Database, counterKeys: CounterKeys) {
  /** Runs a change, and returns the number of rows. */
  async function count(change: Query, t: Transaction): Promise<number> {
    const counted = sql`WITH changed AS (${change} RETURNING 1) SELECT count(*)::int AS count FROM changed`
    return (await first(database.run<{ count: number }>(counted, t)))!.count
  }

  /** Returns the keys of the user's counters, as far as they can be derived: others expire within three days. */
  async function counterKeysOf(id: number, usernameKey: string, email: string | null, t: Transaction) {
    const digests = sql`SELECT digest FROM mailed_keys, unnest(ARRAY[key_digest, former_digest]) AS digest
      WHERE user_id = ${id} AND digest IS NOT NULL`
    const keys = await database.run<{ digest: Buffer }>(digests, t)
    const addresses = sql`SELECT address FROM audit_staged WHERE ${holdsAddressOf(id)}
      UNION SELECT address FROM audit_events WHERE ${holdsAddressOf(id)}`
    const known = (await database.run<{ address: string }>(addresses, t)).map(({ address }) => address)
    const sharers = ['', '\0known', '\0unproved', '\0administration', `\0${id}`]
    const recipient = email === null ? [] : sharers.map(each => emailKey(email) + each)
    return {
      attempts: [
        ...[...proofs, 'mailed key' as const].map(proof => counterKeys.account(proof, usernameKey)),
        counterKeys.activation(id),
        ...known.flatMap(address => keys.map(({ digest }) => counterKeys.mailedKey(digest, address))),
      ],
      quotas: [
        counterKeys.emails('recovery', String(id)),
        ...known
          .flatMap(knowableNetworks)
          .map(network =>
            counterKeys.emails('recovery', `${id}\0${counterKeys.knownNetwork(network).toString('hex')}`),
          ),
        counterKeys.emails('change', String(id)),
        counterKeys.emails('partner', String(id)),
        counterKeys.emails('partnerAddresses', String(id)),
        counterKeys.emails('exports', String(id)),
        counterKeys.emails('issuedKeys', String(id)),
        ...recipient.map(of => counterKeys.emails('recipient', of)),
        ...(email === null ? [] : [counterKeys.emails('notices', `${id}\0${emailKey(email)}`)]),
      ],
    }
  }

  return {
    /** Returns the ids of users that have been erased. Deleted users still exist. */
    async erased(ids: readonly number[]) {
      const rows = await database.run<{ id: string }>(sql`SELECT id FROM unnest(${ids}::bigint[]) AS given (id)
        WHERE NOT EXISTS (SELECT FROM users u WHERE u.id = given.id)`)
      return rows.map(({ id }) => Number(id))
    },
    /**
     * Erases a user: the account, its keys, answers and known networks, its queued e-mails, and its counters. In the audit
     * log, erases the client addresses of events that the user caused, and of events on the user by an unidentified actor. The
     * addresses of other actors stay, because they are their personal data. The events stay, with the id of the user. Counters
     * of client addresses and of spent mailed keys don't identify the user, and expire within three days.
     *
     * Returns undefined when the user doesn't exist. Appends no event: the caller records the actor. Call it in an unlimited
     * transaction, because it scans the whole audit log until the log has an index by actor.
     */
    async erase(id: number, t: Transaction): Promise<Receipt | undefined> {
      const names = sql`SELECT username_key AS "usernameKey", email, clock_timestamp() AS at FROM users WHERE id = ${id}`
      const user = await first(database.run<{ usernameKey: string; email: string | null; at: Date }>(names, t))
      if (!user) return undefined
      const { usernameKey, email, at } = user
      const { attempts, quotas } = await counterKeysOf(id, usernameKey, email, t)
      // The digest of the address stays; without the salt, it doesn't reveal the address.
      const forgetIn = (table: Query) =>
        sql`UPDATE ${table} SET address = NULL, salt = NULL WHERE ${holdsAddressOf(id)}`
      const deleted: readonly (readonly [table: string, change: Query])[] = [
        // Locks rows in the same order as a sign-in. Includes the counts for networks and devices that the account knows.
        [
          'attempts',
          sql`DELETE FROM attempts WHERE subject = ANY(${attempts}::bytea[]) OR account = ANY(${attempts}::bytea[])`,
        ],
        ['email_quotas', sql`DELETE FROM email_quotas WHERE subject = ANY(${quotas}::bytea[])`],
        ...owned.map(table => [table, sql`DELETE FROM ${sql.text(table)} WHERE user_id = ${id}`] as const),
        // From here on, no sign-in in flight can insert another row.
        ['users', sql`DELETE FROM users WHERE id = ${id}`],
        [
          'emails',
          sql`DELETE FROM emails WHERE parameters ->> 'userId' = ${String(id)}
            OR parameters ->> 'usernameKey' = ${usernameKey}`,
        ],
        // After the queue: the sender moves e-mails from there.
        ['sent_emails', sql`DELETE FROM sent_emails WHERE user_id = ${id}`],
        // Staged events before sealed ones, as sealing does.
        ['audit_staged', forgetIn(sql`audit_staged`)],
        ['audit_events', forgetIn(sql`audit_events`)],
      ]
      const rows: Record<string, number> = {}
      for (const [table, change] of deleted) rows[table] = await count(change, t)
      return { user: id, eraseTime: at.toISOString(), rows }
    },
  }
}
