import { randomInt } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import { keyAttempts } from '../policy/limits.js'
import { type ActivationKeys, type HeldOrganization, held, holdForMember } from './activation-key.js'
import { type CounterKeys, countTry } from './attempt.js'
import { relaxed } from './bucket.js'
import type { DataKeys } from './data-key.js'

/** Validity in seconds. Activation keys are valid for longer, because an organization passes them on. */
export const validity = { recovery: 15 * 60, activation: 72 * 3600, email: 15 * 60 } as const

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

/** Keys sent by e-mail. Of each purpose, only the newest key of a user is valid, and only once. */
export type MailedKeys = ReturnType<typeof createMailedKeys>

/** Creates the mailed keys in a database. */
export function createMailedKeys(
  database: Database,
  dataKeys: DataKeys,
  counterKeys: CounterKeys,
  { keysWork }: Pick<ActivationKeys, 'keysWork'>,
) {
  const table = defineTable(database, 'mailed_keys', attributes)

  /** Returns the keyed digest of a key, bound to user and purpose. */
  const digest = (userId: number, purpose: Purpose, key: string) =>
    dataKeys.digest(`mailed-key ${purpose} ${userId}`, key)

  /** Whether a row has this key, and it is valid. */
  const valid = (userId: number, purpose: Purpose, key: string) => sql`m.user_id = ${userId}
    AND m.purpose = ${purpose} AND m.key_digest = ${digest(userId, purpose, key)} AND m.expires_at > now()`

  async function replace(
    userId: number,
    purpose: Purpose,
    key: string,
    organizationId: number | null,
    email: string | null,
    transaction?: Transaction,
  ): Promise<void> {
    const keyDigest = digest(userId, purpose, key)
    const expiresAt = fromNow(validity[purpose])
    await table.upsert({ userId, purpose, keyDigest, organizationId, email, expiresAt }, { transaction })
  }
  return {
    digest,
    /** Stores a key, and replaces an earlier one. */
    replace: (
      userId: number,
      purpose: Exclude<Purpose, 'email'>,
      key: string,
      organizationId?: number,
      t?: Transaction,
    ) => replace(userId, purpose, key, organizationId ?? null, null, t),
    /** Stores a code that confirms an e-mail address, and replaces an earlier one. */
    replaceEmail: (userId: number, code: string, email: string, t: Transaction) =>
      replace(userId, 'email', code, null, email, t),
    /**
     * Counts an attempt from a client address, and returns the digest to compare with; undefined when no valid key exists, or
     * the address has no attempts left. Counts every attempt, including successful ones, before the comparison.
     */
    async attempt(userId: number, purpose: Purpose, address: string) {
      // Without a key, the same work is done, so that the response time doesn't reveal it.
      const [row] = await database.run<{ digest: Buffer | null; count: number }>(sql(
        'mailed-key-attempt',
      )`WITH ${relaxed},
        current AS MATERIALIZED (
          SELECT key_digest FROM mailed_keys
          WHERE user_id = ${userId} AND purpose = ${purpose} AND expires_at > now()
        ), tried AS (${countTry('current', counterKeys.mailedKeys(address), validity[purpose])})
        SELECT count, (SELECT key_digest FROM current) AS digest FROM tried`)
      return row!.count <= keyAttempts ? (row!.digest ?? undefined) : undefined
    },
    /** The keys of a user whose attempts count: the purpose of each, and the digest by which they do. */
    async current(userId: number, transaction?: Transaction) {
      const where = { userId, purpose: ['recovery', 'email'] as Purpose[], expiresAt: { [Op.gt]: fromNow(0) } }
      const rows = await table.findAll({ attributes: ['purpose', 'keyDigest'], where, transaction })
      return rows.map(row => row.get())
    },
    /** Spends a recovery key. Of parallel calls, only one returns true. */
    async spend(userId: number, key: string, t: Transaction) {
      const spend = sql('mailed-key-spend')`
        DELETE FROM mailed_keys m WHERE ${valid(userId, 'recovery', key)} RETURNING 1`
      return (await database.run(spend, t)).length > 0
    },
    /** Spends a code, and returns the e-mail address that it confirms; undefined for a wrong code. */
    async spendEmail(userId: number, code: string, t: Transaction) {
      const spend = sql('mailed-key-spend-email')`
        DELETE FROM mailed_keys m WHERE ${valid(userId, 'email', code)} RETURNING email`
      return (await first(database.run<{ email: string }>(spend, t)))?.email
    },
    /** Returns the organization of an activation key that works. With a transaction, locks it, and spends the key. */
    organizationOf(userId: number, key: string, t?: Transaction) {
      const found = sql`SELECT ${held}, m.key_digest FROM mailed_keys m JOIN organizations o ON o.id = m.organization_id
        WHERE ${valid(userId, 'activation', key)} AND ${keysWork}`
      // Locks the organization first: an attempt while the organization is inactive doesn't spend the key.
      const spend = sql('mailed-key-spend-activation')`
        WITH organization AS (${found} ${holdForMember})
        DELETE FROM mailed_keys m USING organization o
        WHERE m.user_id = ${userId} AND m.purpose = 'activation' AND m.key_digest = o.key_digest AND m.organization_id = o.id
        RETURNING ${held}`
      const look = sql('mailed-key-organization')`${found}`
      return first(t ? database.run<HeldOrganization>(spend, t) : database.read<HeldOrganization>(look))
    },
    /** Voids mailed keys. */
    async void(userId: number, purposes: readonly Purpose[], transaction: Transaction) {
      await table.destroy({ where: { userId, purpose: [...purposes] }, transaction })
    },
    /** Deletes expired keys. */
    async prune() {
      await table.destroy({ where: { expiresAt: { [Op.lt]: fromNow(0) } } })
    },
  }
}
