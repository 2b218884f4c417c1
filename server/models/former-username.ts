// Former usernames of users. For 30 days no other user can take one, or a look-alike of it: name-conflicts.ts reads them with
// the names of users.
import { Op } from 'sequelize'
import { defineTable, fromNow, integer, key, text, time } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** Days for which a former username is reserved. */
const daysReserved = 30

const attributes = { usernameKey: key(text), usernameSkeleton: text, userId: integer, reservedUntil: time }

/** Reserves former usernames. */
export type FormerUsernames = ReturnType<typeof createFormerUsernames>

/** Creates the former usernames in a database. */
export function createFormerUsernames(database: Database) {
  const table = defineTable(database, 'former_usernames', attributes)
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
    /** Returns until when usernames are reserved for a user, without one, the earliest first. */
    async reserved(userId: number, withoutKey: string, transaction: Transaction) {
      const where = { userId, usernameKey: { [Op.ne]: withoutKey }, reservedUntil: { [Op.gt]: fromNow(0) } }
      const rows = await table.findAll({ where, order: ['reservedUntil'], transaction })
      return rows.map(row => row.get().reservedUntil)
    },
    /** Deletes those that aren't reserved any more. */
    async prune() {
      await table.destroy({ where: { reservedUntil: { [Op.lte]: fromNow(0) } } })
    },
  }
}
