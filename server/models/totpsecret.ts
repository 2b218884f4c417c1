import type { Transaction } from 'sequelize'
import { bigint, bytes, defineTable, integer, key, nullable, preset } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'

const attributes = {
  userId: key(integer),
  /** Null until a code of the first one was seen. */
  secretSealed: preset(nullable(bytes)),
  pendingSealed: preset(nullable(bytes)),
  lastStep: preset(bigint),
}

/** The secrets of one-time codes (RFC 6238), in base 32. */
export interface TotpSecrets {
  /** The secret whose codes count, and one that waits for its first code. */
  find(userId: number): Promise<{ secret?: string; pending?: string }>
  /** Keeps a secret until a code of it was seen; one before it that waits is forgotten. */
  enroll(userId: number, secret: string, t: Transaction): Promise<void>
  /** The secret that waits counts from now on, from behind this time step. False when it is another one by now. */
  confirm(userId: number, pending: string, step: number, t: Transaction): Promise<boolean>
  /** Takes the code of a time step. False when that one, or a later one, was taken before. */
  take(userId: number, step: number): Promise<boolean>
  /** Forgets the secrets of a user. Whether there were any. */
  remove(userId: number, t: Transaction): Promise<boolean>
  /** How many active administrators there are, and how many of them need no code. */
  coverage(): Promise<{ administrators: number; withoutCodes: number }>
}

const enroll: Statement = {
  name: 'totp-enroll',
  text: `INSERT INTO totp_secrets (user_id, pending_sealed) VALUES ($1, $2)
    ON CONFLICT (user_id) DO UPDATE SET pending_sealed = excluded.pending_sealed`,
}

const confirm: Statement = {
  name: 'totp-confirm',
  text: `UPDATE totp_secrets SET secret_sealed = pending_sealed, pending_sealed = NULL, last_step = $3
    WHERE user_id = $1 AND pending_sealed = $2 RETURNING 1`,
}

const take: Statement = {
  name: 'totp-take',
  text: 'UPDATE totp_secrets SET last_step = $2 WHERE user_id = $1 AND last_step < $2 RETURNING 1',
}

const coverage: Statement = {
  name: 'totp-coverage',
  text: `SELECT count(*)::int AS administrators, (count(*) FILTER (WHERE secret_sealed IS NULL))::int AS "withoutCodes"
    FROM users u LEFT JOIN totp_secrets t ON t.user_id = u.id WHERE u.role = 'ROLE_ADMIN' AND u.active AND NOT u.suspended`,
}

/** The secrets in a database, sealed. */
export function createTotpSecrets(database: Database, masterKey: Pick<MasterKey, 'seal' | 'open'>): TotpSecrets {
  const table = defineTable(database, 'totp_secrets', attributes)
  const use = (userId: number) => `totp ${userId}`
  const open = (userId: number, sealed: Buffer) => masterKey.open(use(userId), sealed)
  return {
    async find(userId) {
      const row = (await table().findByPk(userId))?.get()
      return {
        ...(row?.secretSealed && { secret: open(userId, row.secretSealed) }),
        ...(row?.pendingSealed && { pending: open(userId, row.pendingSealed) }),
      }
    },
    async enroll(userId, secret, transaction) {
      await database.run(enroll, [userId, masterKey.seal(use(userId), secret)], transaction)
    },
    async confirm(userId, pending, step, transaction) {
      const row = (await table().findByPk(userId, { transaction, lock: transaction.LOCK.UPDATE }))?.get()
      if (!row?.pendingSealed || open(userId, row.pendingSealed) !== pending) return false
      return (await database.run(confirm, [userId, row.pendingSealed, step], transaction)).length > 0
    },
    take: async (userId, step) => (await database.run(take, [userId, step])).length > 0,
    coverage: async () => (await database.run<{ administrators: number; withoutCodes: number }>(coverage, []))[0]!,
    remove: async (userId, transaction) => (await table().destroy({ where: { userId }, transaction })) > 0,
  }
}
