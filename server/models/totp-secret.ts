import { Op, type Transaction } from 'sequelize'
import {
  bigint,
  bytes,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import { codeLimits } from '../policy/limits.js'
import type { DataKeys } from './data-key.js'
import { administratorUser } from './user-state.js'

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
export type TotpSecrets = ReturnType<typeof createTotpSecrets>

/** Creates the secrets in a database, which stores them sealed. */
export function createTotpSecrets(database: Database, dataKeys: Pick<DataKeys, 'seal' | 'open'>) {
  const table = defineTable(database, 'totp_secrets', attributes)
  const use = (userId: number) => `totp ${userId}`
  const open = (userId: number, sealed: Buffer) => dataKeys.open(use(userId), sealed)
  return {
    /** Returns the active secret, and a pending one that no code has confirmed yet. */
    async find(userId: number) {
      const row = (await table.findByPk(userId))?.get()
      const opened = (sealed: Buffer | null | undefined) => (sealed ? open(userId, sealed) : undefined)
      return { secret: opened(row?.secretSealed), pending: opened(row?.pendingSealed) }
    },
    /** Stores a pending secret, and replaces an earlier pending one. */
    async enroll(userId: number, secret: string, transaction: Transaction) {
      await table.upsert({ userId, pendingSealed: dataKeys.seal(use(userId), secret) }, { transaction })
    },
    /** Activates the pending secret for codes after time step `step`. Returns false when another secret is pending. */
    async confirm(userId: number, pending: string, step: number, transaction: Transaction) {
      const row = (await table.findByPk(userId, { transaction, lock: transaction.LOCK.UPDATE }))?.get()
      if (!row?.pendingSealed || open(userId, row.pendingSealed) !== pending) return false
      const confirmed = { secretSealed: row.pendingSealed, pendingSealed: null, lastStep: String(step) }
      await table.update(confirmed, { where: { userId }, transaction })
      return true
    },
    /**
     * Returns the active secret, and the time step of the last accepted code. Locks both until the transaction ends, so that
     * each attempt sees all failures.
     */
    async lock(userId: number, transaction: Transaction) {
      const row = (await table.findByPk(userId, { transaction, lock: transaction.LOCK.UPDATE }))?.get()
      if (!row?.secretSealed) return undefined
      const secret = open(userId, row.secretSealed)
      return { secret, locked: row.lockedAt !== null, lastStep: Number(row.lastStep) }
    },
    /** Accepts the code of a time step, and clears `failures`. Returns false if a code of this or a later step was accepted. */
    async take(userId: number, step: number, transaction: Transaction) {
      const taken = { lastStep: String(step), failures: 0, windowEnds: fromNow(0) }
      const where = { userId, lastStep: { [Op.lt]: String(step) } }
      return (await table.update(taken, { where, transaction }))[0] > 0
    },
    /** Counts a wrong code, and locks the secret at a limit. Returns the count of 15 minutes. `t` must hold the row lock. */
    async fail(userId: number, t: Transaction) {
      const { window, day } = codeLimits
      // Windows begin with their first failure. The limit factor doesn't apply: six digits permit no more guesses.
      const count = sql('totp-fail')`
        WITH counted AS (
          SELECT CASE WHEN window_ends > clock_timestamp() THEN failures ELSE 0 END + 1 AS failures,
            CASE WHEN day_ends > clock_timestamp() THEN day_failures ELSE 0 END + 1 AS day_failures
          FROM totp_secrets WHERE user_id = ${userId}
        )
        UPDATE totp_secrets t SET failures = c.failures, day_failures = c.day_failures,
          window_ends = CASE WHEN c.failures = 1 THEN clock_timestamp() + make_interval(secs => ${window.seconds}) ELSE t.window_ends END,
          day_ends = CASE WHEN c.day_failures = 1 THEN clock_timestamp() + make_interval(secs => ${day.seconds}) ELSE t.day_ends END,
          locked_at = CASE WHEN c.failures >= ${window.failures} OR c.day_failures >= ${day.failures} THEN clock_timestamp() END
        FROM counted c WHERE t.user_id = ${userId} RETURNING t.failures, t.locked_at IS NOT NULL AS locked`
      return (await first(database.run<{ failures: number; locked: boolean }>(count, t)))!
    },
    /** Returns the counts of wrong codes; undefined for a user without an active secret. */
    failures(userId: number) {
      const read = sql('totp-failures')`
        SELECT locked_at IS NOT NULL AS locked,
          CASE WHEN locked_at IS NOT NULL OR window_ends > clock_timestamp() THEN failures ELSE 0 END AS failures,
          greatest(0, ceil(extract(epoch FROM window_ends - clock_timestamp())))::int AS seconds,
          CASE WHEN locked_at IS NOT NULL OR day_ends > clock_timestamp() THEN day_failures ELSE 0 END AS "dayFailures",
          greatest(0, ceil(extract(epoch FROM day_ends - clock_timestamp())))::int AS "daySeconds"
        FROM totp_secrets WHERE user_id = ${userId} AND secret_sealed IS NOT NULL`
      return first(database.run<CodeFailures>(read))
    },
    /** Returns the ids of users whose secret is locked. */
    async locked() {
      const rows = await table.findAll({ attributes: ['userId'], where: { lockedAt: { [Op.ne]: null } } })
      return rows.map(row => row.get().userId)
    },
    /** Clears the counts of wrong codes and ends the lock. Returns whether anything changed. */
    async unlock(userId: number, transaction: Transaction) {
      const [none, some, now] = [0, { [Op.gt]: 0 }, fromNow(0)]
      const later = { [Op.gt]: now }
      const running = [
        { failures: some, windowEnds: later },
        { dayFailures: some, dayEnds: later },
      ]
      const where = { userId, [Op.or]: [{ lockedAt: { [Op.not]: null } }, ...running] }
      const ended = { failures: none, dayFailures: none, windowEnds: now, dayEnds: now, lockedAt: null }
      return (await table.update(ended, { where, transaction }))[0] > 0
    },
    /** Returns the number of active administrators, and of those without one-time codes. */
    async coverage() {
      const count = sql('totp-coverage')`
        SELECT count(*)::int AS administrators, (count(*) FILTER (WHERE secret_sealed IS NULL))::int AS "withoutCodes"
        FROM users u LEFT JOIN totp_secrets t ON t.user_id = u.id WHERE ${administratorUser.sql}`
      return (await first(database.run<{ administrators: number; withoutCodes: number }>(count)))!
    },
    /** Deletes the secrets of a user. Returns whether any existed. */
    remove: async (userId: number, transaction: Transaction) =>
      (await table.destroy({ where: { userId }, transaction })) > 0,
  }
}
