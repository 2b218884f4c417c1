import { randomInt } from 'node:crypto'
import { DataTypes, fn, Op, type Transaction } from 'sequelize'
import { attribute, bytes, defineTable, fromNow, integer, key, nullable, preset, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'
import type { Attempts, Subjects } from './attempt.js'

/** Attempts that a mailed key allows to each client address. */
const mostAttempts = 5

/** Validity in seconds: a recovery key is typed at once, an activation key passes through an organization. */
export const validity = { recovery: 15 * 60, activation: 72 * 3600 } as const

/** What a mailed key is for. */
export type Purpose = keyof typeof validity

/** 32 signs without look-alikes (0 and O, 1 and I): 8 of them make 40 bits. */
const alphabet = '23456789ABCDEFGHJKLMNPQRSTUVWXYZ'

/** A new recovery key, 8 signs from a cryptographic source. */
export function newRecoveryKey(): string {
  return Array.from({ length: 8 }, () => alphabet[randomInt(alphabet.length)]).join('')
}

const attributes = {
  userId: key(integer),
  purpose: key(attribute<Purpose>(DataTypes.TEXT)),
  keyDigest: bytes,
  organizationId: preset(nullable(integer)),
  expiresAt: time,
}

const current: Statement = {
  name: 'mailed-key-current',
  text: `SELECT key_digest AS digest FROM mailed_keys WHERE user_id = $1 AND purpose = $2 AND expires_at > now()`,
}

const spend: Statement = {
  name: 'mailed-key-spend',
  text: `DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = 'recovery' AND key_digest = $2 AND expires_at > now()
    RETURNING 1`,
}

const organizationOf: Statement = {
  name: 'mailed-key-organization',
  text: `SELECT o.id FROM mailed_keys m JOIN organizations o ON o.id = m.organization_id
    WHERE m.user_id = $1 AND m.purpose = 'activation' AND m.key_digest = $2 AND m.expires_at > now() AND o.active`,
}

// The organization is locked first: a key given while it is inactive is not spent.
const spendActivation: Statement = {
  name: 'mailed-key-spend-activation',
  text: `WITH organization AS (${organizationOf.text} FOR SHARE OF o)
    DELETE FROM mailed_keys m USING organization o
    WHERE m.user_id = $1 AND m.purpose = 'activation' AND m.key_digest = $2 AND m.organization_id = o.id RETURNING o.id`,
}

/** Keys sent by mail: of each purpose a user has at most the newest, and it opens once. */
export interface MailedKeys {
  /** Stores a key instead of an earlier one. */
  replace(userId: number, purpose: Purpose, key: string, organizationId?: number): Promise<void>
  /**
   * Counts an attempt from a client address, and returns the digest to compare with if a key is there and that address
   * has attempts left: nobody uses up another's. It is counted before the key is compared, and even when it is right.
   */
  attempt(userId: number, purpose: Purpose, address: string): Promise<Buffer | undefined>
  /** Spends a recovery key; of parallel calls, one gets it. */
  spend(userId: number, key: string, t: Transaction): Promise<boolean>
  /** The active organization of a mailed activation key, which a transaction spends; undefined for a wrong key. */
  organizationOf(userId: number, key: string, t?: Transaction): Promise<number | undefined>
  /** Makes a key that was mailed worthless. */
  void(userId: number, purpose: Purpose, t: Transaction): Promise<void>
  /** How keys are compared: as keyed digests bound to user and purpose. */
  digest(userId: number, purpose: Purpose, key: string): Buffer
  /** Deletes keys past their time. */
  prune(): Promise<void>
}

/** The mailed keys in a database. */
export function createMailedKeys(
  database: Database,
  masterKey: MasterKey,
  attempts: Pick<Attempts, 'count'>,
  subjects: Subjects,
): MailedKeys {
  const table = defineTable(database, 'mailed_keys', attributes)
  const digest: MailedKeys['digest'] = (userId, purpose, key) =>
    masterKey.digest(`mailed-key ${purpose} ${userId}`, key)
  return {
    digest,
    async replace(userId, purpose, key, organizationId) {
      const keyDigest = digest(userId, purpose, key)
      const member = { organizationId: organizationId ?? null }
      const expiresAt = fromNow(validity[purpose])
      await table.upsert({ userId, purpose, keyDigest, ...member, expiresAt }, { returning: false })
    },
    async attempt(userId, purpose, address) {
      const digest = (await database.read<{ digest: Buffer }>(current, [userId, purpose]))[0]?.digest
      // Where there is no key, the same is done.
      const subject = subjects.mailedKey(digest ?? Buffer.alloc(32), address)
      const { count } = await attempts.count(subject, validity[purpose])
      return count <= mostAttempts ? digest : undefined
    },
    spend: async (userId, key, transaction) =>
      (await database.run(spend, [userId, digest(userId, 'recovery', key)], transaction)).length > 0,
    async organizationOf(userId, key, transaction) {
      const values = [userId, digest(userId, 'activation', key)]
      const rows = transaction
        ? await database.run<{ id: number }>(spendActivation, values, transaction)
        : await database.read<{ id: number }>(organizationOf, values)
      return rows[0]?.id
    },
    async void(userId, purpose, transaction) {
      await table.destroy({ where: { userId, purpose }, transaction })
    },
    async prune() {
      await table.destroy({ where: { expiresAt: { [Op.lt]: fn('now') } } })
    },
  }
}
