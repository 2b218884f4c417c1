import { randomInt } from 'node:crypto'
import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'

/** Tries that a mailed key allows. */
const tries = 5

/** Validity in seconds: a recovery key is typed at once, an activation key passes through an organization. */
export const validity = { recovery: 15 * 60, activation: 72 * 3600 } as const

/** 32 signs without look-alikes (0 and O, 1 and I): 8 of them make 40 bits. */
const alphabet = '23456789ABCDEFGHJKLMNPQRSTUVWXYZ'

/** A new recovery key, 8 signs from a cryptographic source. */
export function newRecoveryKey(): string {
  return Array.from({ length: 8 }, () => alphabet[randomInt(alphabet.length)]).join('')
}

const replace: Statement = {
  name: 'mailed-key-replace',
  text: `INSERT INTO mailed_keys (user_id, purpose, key_digest, organization_id, expires_at)
    VALUES ($1, $2, $3, $4, now() + make_interval(secs => $5))
    ON CONFLICT (user_id, purpose) DO UPDATE SET key_digest = excluded.key_digest, tries = 0,
      organization_id = excluded.organization_id, expires_at = excluded.expires_at`,
}

// A try is counted before the key is compared, and even when it is right.
const attempt: Statement = {
  name: 'mailed-key-attempt',
  text: `UPDATE mailed_keys SET tries = tries + 1
    WHERE user_id = $1 AND purpose = $2 AND tries < ${tries} AND expires_at > now() RETURNING key_digest AS digest`,
}

const spend: Statement = {
  name: 'mailed-key-spend',
  text: `DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = $2 AND key_digest = $3 AND expires_at > now()
    RETURNING organization_id AS "organizationId"`,
}

/** Keys sent by mail: of each purpose a user has at most the newest, and it opens once. */
export interface MailedKeys {
  /** Stores a key in place of an earlier one. */
  replace(userId: number, purpose: keyof typeof validity, key: string, organizationId?: number): Promise<void>
  /** Counts a try and returns the digest to compare with, if a key is there and tries are left. */
  attempt(userId: number, purpose: keyof typeof validity): Promise<Buffer | undefined>
  /** Spends the key; of parallel calls, one gets it. */
  spend(
    userId: number,
    purpose: keyof typeof validity,
    key: string,
    t: Transaction,
  ): Promise<{ organizationId: number | null } | undefined>
  /** How keys are compared: as keyed digests bound to user and purpose. */
  digest(userId: number, purpose: keyof typeof validity, key: string): Buffer
}

/** The mailed keys in a database. */
export function createMailedKeys(database: Database, masterKey: MasterKey): MailedKeys {
  const digest: MailedKeys['digest'] = (userId, purpose, key) =>
    masterKey.digest(`mailed-key ${purpose} ${userId}`, key)
  return {
    digest,
    async replace(userId, purpose, key, organizationId) {
      const values = [userId, purpose, digest(userId, purpose, key), organizationId ?? null, validity[purpose]]
      await database.run(replace, values)
    },
    attempt: async (userId, purpose) => (await database.run<{ digest: Buffer }>(attempt, [userId, purpose]))[0]?.digest,
    spend: async (userId, purpose, key, transaction) =>
      (
        await database.run<{ organizationId: number | null }>(
          spend,
          [userId, purpose, digest(userId, purpose, key)],
          transaction,
        )
      )[0],
  }
}
