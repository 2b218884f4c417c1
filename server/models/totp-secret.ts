import type { Transaction } from 'sequelize'
import { bigint, bytes, defineTable, hasDefault, integer, key, nullable, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from './master-key.js'

const attributes = {
  userId: key(integer),
  /** Null until a code confirms the first secret. */
  secretSealed: hasDefault(nullable(bytes)),
  pendingSealed: hasDefault(nullable(bytes)),
  lastStep: hasDefault(bigint),
  /** Wrong codes since the last correct one, within 15 minutes of the first. */
  failures: hasDefault(integer),
  windowEnds: hasDefault(time),
  /** Wrong codes within a day of the first. */
  dayFailures: hasDefault(integer),
  dayEnds: hasDefault(time),
  /** Time at which one of the two counts reached its limit; null while the secret isn't locked. */
  lockedAt: hasDefault(nullable(time)),
}

/** Limits of wrong codes, in two windows of `seconds`. After `noticeAfter` wrong codes the owner is notified. */
export const codeLimits = {
  window: { failures: 10, seconds: 15 * 60, noticeAfter: 5 },
  day: { failures: 30, seconds: 24 * 3600 },
} as const

/** The current counts of a user's wrong codes. */
export interface CodeFailures {
  readonly locked: boolean
  readonly failures: number
  /** Seconds until the window ends. */
  readonly seconds: number
  readonly dayFailures: number
  readonly daySeconds: number
}

/** The secrets of one-time codes (RFC 6238), in base 32. */
export interface TotpSecrets {
  /** Returns the active secret, and a pending one that no code has confirmed yet. */
  find(userId: number): Promise<{ secret?: string; pending?: string }>
  /** Stores a pending secret, and replaces an earlier pending one. */
  enroll(userId: number, secret: string, t: Transaction): Promise<void>
  /** Activates the pending secret for codes after time step `step`. Returns false when another secret is pending. */
  confirm(userId: number, pending: string, step: number, t: Transaction): Promise<boolean>
  /**
   * Returns the active secret, and the time step of the last accepted code. Locks both until the transaction ends, so that
   * each attempt sees all failures.
   */
  lock(userId: number, t: Transaction): Promise<{ secret: string; locked: boolean; lastStep: number } | undefined>
  /** Accepts the code of a time step, and clears `failures`. Returns false if a code of this or a later step was accepted. */
  take(userId: number, step: number, t: Transaction): Promise<boolean>
  /** Counts a wrong code, and locks the secret at a limit. Returns the count of 15 minutes. `t` must hold the row lock. */
  fail(userId: number, t: Transaction): Promise<{ failures: number; locked: boolean }>
  /** Returns the counts of wrong codes; undefined for a user without an active secret. */
  failures(userId: number, t?: Transaction): Promise<CodeFailures | undefined>
  /** Returns the ids of users whose secret is locked. */
  locked(): Promise<number[]>
  /** Clears the counts of wrong codes and ends the lock. Returns whether anything changed. */
  unlock(userId: number, t: Transaction): Promise<boolean>
  /** Deletes the secrets of a user. Returns whether any existed. */
  remove(userId: number, t: Transaction): Promise<boolean>
  /** Returns the number of active administrators, and of those without one-time codes. */
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

interface LockedSecret {
  readonly sealed: Buffer
  readonly locked: boolean
  readonly lastStep: number
}

const lock: Statement = {
  name: 'totp-lock',
  text: `SELECT secret_sealed AS sealed, locked_at IS NOT NULL AS locked, last_step::int AS "lastStep"
    FROM totp_secrets WHERE user_id = $1 AND secret_sealed IS NOT NULL FOR UPDATE`,
}

const take: Statement = {
  name: 'totp-take',
  text: `UPDATE totp_secrets SET last_step = $2, failures = 0, window_ends = clock_timestamp()
    WHERE user_id = $1 AND last_step < $2 RETURNING 1`,
}

// Windows begin with their first failure. The limit factor doesn't apply: six digits permit no more guesses.
const fail: Statement = {
  name: 'totp-fail',
  text: `WITH counted AS (
    SELECT CASE WHEN window_ends > clock_timestamp() THEN failures ELSE 0 END + 1 AS failures,
      CASE WHEN day_ends > clock_timestamp() THEN day_failures ELSE 0 END + 1 AS day_failures
    FROM totp_secrets WHERE user_id = $1
  )
  UPDATE totp_secrets t SET failures = c.failures, day_failures = c.day_failures,
    window_ends = CASE WHEN c.failures = 1 THEN clock_timestamp() + make_interval(secs => $2) ELSE t.window_ends END,
    day_ends = CASE WHEN c.day_failures = 1 THEN clock_timestamp() + make_interval(secs => $3) ELSE t.day_ends END,
    locked_at = CASE WHEN c.failures >= $4 OR c.day_failures >= $5 THEN clock_timestamp() END
  FROM counted c WHERE t.user_id = $1 RETURNING t.failures, t.locked_at IS NOT NULL AS locked`,
}

const failures: Statement = {
  name: 'totp-failures',
  text: `SELECT locked_at IS NOT NULL AS locked,
      CASE WHEN locked_at IS NOT NULL OR window_ends > clock_timestamp() THEN failures ELSE 0 END AS failures,
      greatest(0, ceil(extract(epoch FROM window_ends - clock_timestamp())))::int AS seconds,
      CASE WHEN locked_at IS NOT NULL OR day_ends > clock_timestamp() THEN day_failures ELSE 0 END AS "dayFailures",
      greatest(0, ceil(extract(epoch FROM day_ends - clock_timestamp())))::int AS "daySeconds"
    FROM totp_secrets WHERE user_id = $1 AND secret_sealed IS NOT NULL`,
}

const locked: Statement = {
  name: 'totp-locked',
  text: 'SELECT user_id AS id FROM totp_secrets WHERE locked_at IS NOT NULL',
}

const unlock: Statement = {
  name: 'totp-unlock',
  text: `UPDATE totp_secrets SET failures = 0, day_failures = 0, window_ends = clock_timestamp(), day_ends = clock_timestamp(),
      locked_at = NULL
    WHERE user_id = $1 AND (locked_at IS NOT NULL OR (failures > 0 AND window_ends > clock_timestamp())
      OR (day_failures > 0 AND day_ends > clock_timestamp())) RETURNING 1`,
}

const coverage: Statement = {
  name: 'totp-coverage',
  text: `SELECT count(*)::int AS administrators, (count(*) FILTER (WHERE secret_sealed IS NULL))::int AS "withoutCodes"
    FROM users u LEFT JOIN totp_secrets t ON t.user_id = u.id WHERE u.role = 'ROLE_ADMIN' AND u.active AND NOT u.suspended`,
}

/** Creates the secrets in a database, which stores them sealed. */
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
    async lock(userId, transaction) {
      const [row] = await database.run<LockedSecret>(lock, [userId], transaction)
      if (!row) return undefined
      const { sealed, ...state } = row
      return { secret: open(userId, sealed), ...state }
    },
    take: async (userId, step, transaction) => (await database.run(take, [userId, step], transaction)).length > 0,
    async fail(userId, transaction) {
      const { window, day } = codeLimits
      const values = [userId, window.seconds, day.seconds, window.failures, day.failures]
      return (await database.run<{ failures: number; locked: boolean }>(fail, values, transaction))[0]!
    },
    failures: async (userId, transaction) => (await database.run<CodeFailures>(failures, [userId], transaction))[0],
    locked: async () => (await database.run<{ id: number }>(locked, [])).map(({ id }) => id),
    unlock: async (userId, transaction) => (await database.run(unlock, [userId], transaction)).length > 0,
    coverage: async () => (await database.run<{ administrators: number; withoutCodes: number }>(coverage, []))[0]!,
    remove: async (userId, transaction) => (await table().destroy({ where: { userId }, transaction })) > 0,
  }
}
