import { randomInt } from 'node:crypto'
import type { Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  defineTable,
  hasDefault,
  integer,
  key,
  nullable,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import { sql } from '../database/sql.js'
import { type CounterKeys, countTry } from './attempt.js'
import { relaxed } from './bucket.js'
import type { MasterKey } from './master-key.js'

/** Maximum attempts of a mailed key from each client address. */
const mostAttempts = 5

/** Validity in seconds. Activation keys are valid for longer, because an organization passes them on. */
const validity = { recovery: 15 * 60, activation: 72 * 3600, email: 15 * 60 } as const

/** Purpose of a mailed key. */
export type Purpose = keyof typeof validity

/** 32 characters without look-alikes (0 and O, 1 and I): 8 characters have 40 bits of entropy. */
const alphabet = '23456789ABCDEFGHJKLMNPQRSTUVWXYZ'

/** Generates a recovery key, or a code for an e-mail address: 8 characters from a cryptographic random source. */
export function newRecoveryKey(): string {
  return Array.from({ length: 8 }, () => alphabet[randomInt(alphabet.length)]).join('')
}

/** Returns a code in the form that is digested: it is valid only with tokens of this generation. */
export function emailCode(typed: string, tokenGeneration: number): string {
  return `${typed} ${tokenGeneration}`
}

const attributes = {
  userId: key(integer),
  purpose: key(attribute<Purpose>('TEXT')),
  keyDigest: bytes,
  organizationId: hasDefault(nullable(integer)),
  /** The address that a key of the purpose `email` confirms. */
  email: hasDefault(nullable(text)),
  expiresAt: time,
}

const store: Statement = {
  name: 'mailed-key-store',
  text: `INSERT INTO mailed_keys (user_id, purpose, key_digest, organization_id, email, expires_at)
    VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
    ON CONFLICT (user_id, purpose) DO UPDATE SET key_digest = excluded.key_digest,
      organization_id = excluded.organization_id, email = excluded.email, expires_at = excluded.expires_at`,
}

const spend: Statement = {
  name: 'mailed-key-spend',
  text: `DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = 'recovery' AND key_digest = $2 AND expires_at > now()
    RETURNING 1`,
}

const spendEmail: Statement = {
  name: 'mailed-key-spend-email',
  text: `DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = 'email' AND key_digest = $2 AND expires_at > now()
    RETURNING email`,
}

const organizationOf: Statement = {
  name: 'mailed-key-organization',
  text: `SELECT o.id FROM mailed_keys m JOIN organizations o ON o.id = m.organization_id
    WHERE m.user_id = $1 AND m.purpose = 'activation' AND m.key_digest = $2 AND m.expires_at > now() AND o.active`,
}

// Locks the organization first: an attempt while the organization is inactive doesn't spend the key.
const spendActivation: Statement = {
  name: 'mailed-key-spend-activation',
  text: `WITH organization AS (${organizationOf.text} FOR SHARE OF o)
    DELETE FROM mailed_keys m USING organization o
    WHERE m.user_id = $1 AND m.purpose = 'activation' AND m.key_digest = $2 AND m.organization_id = o.id RETURNING o.id`,
}

/** Keys sent by e-mail. Of each purpose, only the newest key of a user is valid, and only once. */
export interface MailedKeys {
  /** Stores a key, and replaces an earlier one. */
  replace(
    userId: number,
    purpose: Exclude<Purpose, 'email'>,
    key: string,
    organizationId?: number,
    t?: Transaction,
  ): Promise<void>
  /** Stores a code that confirms an e-mail address, and replaces an earlier one. */
  replaceEmail(userId: number, code: string, email: string, t: Transaction): Promise<void>
  /**
   * Counts an attempt from a client address, and returns the digest to compare with; undefined when no valid key exists, or
   * the address has no attempts left. Counts every attempt, including successful ones, before the comparison.
   */
  attempt(userId: number, purpose: Purpose, address: string): Promise<Buffer | undefined>
  /** Spends a recovery key. Of parallel calls, only one returns true. */
  spend(userId: number, key: string, t: Transaction): Promise<boolean>
  /** Spends a code, and returns the e-mail address that it confirms; undefined for a wrong code. */
  spendEmail(userId: number, code: string, t: Transaction): Promise<string | undefined>
  /** Returns the active organization of an activation key; undefined for a wrong key. With a transaction, spends the key. */
  organizationOf(userId: number, key: string, t?: Transaction): Promise<number | undefined>
  /** Voids mailed keys. */
  void(userId: number, purposes: readonly Purpose[], t: Transaction): Promise<void>
  /** Returns the keyed digest of a key, bound to user and purpose. */
  digest(userId: number, purpose: Purpose, key: string): Buffer
  /** Deletes expired keys. */
  prune(): Promise<void>
}

const prune: Statement = { name: 'mailed-keys-prune', text: 'DELETE FROM mailed_keys WHERE expires_at < now()' }

/** Creates the mailed keys in a database. */
export function createMailedKeys(database: Database, masterKey: MasterKey, counterKeys: CounterKeys): MailedKeys {
  const table = defineTable(database, 'mailed_keys', attributes)
  const digest: MailedKeys['digest'] = (userId, purpose, key) =>
    masterKey.digest(`mailed-key ${purpose} ${userId}`, key)
  async function replace(
    userId: number,
    purpose: Purpose,
    key: string,
    organizationId: number | null,
    email: string | null,
    t?: Transaction,
  ): Promise<void> {
    const keyDigest = digest(userId, purpose, key)
    await database.run(store, [userId, purpose, keyDigest, organizationId, email, validity[purpose]], t)
  }
  return {
    digest,
    replace: (userId, purpose, key, organizationId, t) =>
      replace(userId, purpose, key, organizationId ?? null, null, t),
    replaceEmail: (userId, code, email, t) => replace(userId, 'email', code, null, email, t),
    async attempt(userId, purpose, address) {
      // Without a key, the same work is done, so that the response time doesn't reveal it.
      const [row] = await database.run<{ digest: Buffer | null; count: number }>(sql(
        'mailed-key-attempt',
      )`WITH ${relaxed},
        current AS MATERIALIZED (
          SELECT key_digest FROM mailed_keys
          WHERE user_id = ${userId} AND purpose = ${purpose} AND expires_at > now()
        ), tried AS (${countTry('current', counterKeys.mailedKeys(address), validity[purpose])})
        SELECT count, (SELECT key_digest FROM current) AS digest FROM tried`)
      return row!.count <= mostAttempts ? (row!.digest ?? undefined) : undefined
    },
    spend: async (userId, key, transaction) =>
      (await database.run(spend, [userId, digest(userId, 'recovery', key)], transaction)).length > 0,
    spendEmail: async (userId, code, transaction) =>
      (await database.run<{ email: string }>(spendEmail, [userId, digest(userId, 'email', code)], transaction))[0]
        ?.email,
    async organizationOf(userId, key, transaction) {
      const values = [userId, digest(userId, 'activation', key)]
      const rows = transaction
        ? await database.run<{ id: number }>(spendActivation, values, transaction)
        : await database.read<{ id: number }>(organizationOf, values)
      return rows[0]?.id
    },
    async void(userId, purposes, transaction) {
      await table().destroy({ where: { userId, purpose: [...purposes] }, transaction })
    },
    async prune() {
      await database.run(prune, [])
    },
  }
}
