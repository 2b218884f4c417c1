// Former usernames of users. For 30 days no other user can take one, or a look-alike of it: user-names.ts reads them with
// the names of users.
import type { Database, Transaction } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** Days for which a former username is reserved. */
const daysReserved = 30

/** Usernames that are reserved for a user. */
interface Reserved {
  readonly count: number
  /** When the first reservation ends; null when there is none. */
  readonly until: Date | null
}

/** Reserves former usernames. */
export type FormerUsernames = ReturnType<typeof createFormerUsernames>

/** Creates the former usernames in a database. */
export function createFormerUsernames(database: Database) {
  return {
    /** Reserves the present username of a user who gets another one. Releases that one, if it is a former one of the user. */
    async reserve(userId: number, nextKey: string, t: Transaction) {
      const reserve = sql('former-username-reserve')`
        WITH released AS (DELETE FROM former_usernames WHERE user_id = ${userId} AND username_key = ${nextKey})
        INSERT INTO former_usernames (username_key, username_skeleton, user_id, reserved_until)
        SELECT username_key, username_skeleton, id, now() + make_interval(days => ${sql.text(daysReserved)}) FROM users WHERE id = ${userId}
        ON CONFLICT (username_key) DO UPDATE SET username_skeleton = excluded.username_skeleton,
          user_id = excluded.user_id, reserved_until = excluded.reserved_until`
      await database.run(reserve, t)
    },
    /** Returns the user for whom a username is reserved. */
    holder(usernameKey: string) {
      const find = sql('former-username-holder')`
        SELECT u.id, u.username FROM former_usernames f JOIN users u ON u.id = f.user_id
        WHERE f.username_key = ${usernameKey} AND f.reserved_until > now()`
      return first(database.run<{ id: number; username: string }>(find))
    },
    /** Returns the usernames that are reserved for a user, without one. */
    async reserved(userId: number, withoutKey: string, t: Transaction) {
      const count = sql('former-usernames-reserved')`
        SELECT count(*)::int AS count, min(reserved_until) AS until FROM former_usernames
        WHERE user_id = ${userId} AND username_key <> ${withoutKey} AND reserved_until > now()`
      return (await first(database.run<Reserved>(count, t)))!
    },
    /** Deletes those that aren't reserved any more. */
    async prune() {
      await database.runUnlimited(sql('former-usernames-prune')`
        DELETE FROM former_usernames WHERE reserved_until <= now()`)
    },
  }
}
