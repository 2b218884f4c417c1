// Former usernames of users. For 30 days no other user can take one, or a look-alike of it: user-names.ts reads them with
// the names of users.
import { defineTable, integer, key, text, time } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'

/** Days for which a former username is reserved. */
const daysReserved = 30

/** Usernames that are reserved for a user. */
interface Reserved {
  readonly count: number
  /** When the first reservation ends; null when there is none. */
  readonly until: Date | null
}

/** Reserves former usernames. */
export interface FormerUsernames {
  /** Reserves the present username of a user who gets another one. Releases that one, if it is a former one of the user. */
  reserve(userId: number, nextKey: string, t: Transaction): Promise<void>
  /** Returns the usernames that are reserved for a user, without one. */
  reserved(userId: number, withoutKey: string, t: Transaction): Promise<Reserved>
  /** Deletes those that aren't reserved any more. */
  prune(): Promise<void>
}

const attributes = { usernameKey: key(text), usernameSkeleton: text, userId: integer, reservedUntil: time }

// A conflicting row has expired: otherwise the user couldn't have taken the name.
const reserve: Statement = {
  name: 'former-username-reserve',
  text: `WITH released AS (DELETE FROM former_usernames WHERE user_id = $1 AND username_key = $2)
    INSERT INTO former_usernames (username_key, username_skeleton, user_id, reserved_until)
    SELECT username_key, username_skeleton, id, now() + make_interval(days => ${daysReserved}) FROM users WHERE id = $1
    ON CONFLICT (username_key) DO UPDATE SET username_skeleton = excluded.username_skeleton,
      user_id = excluded.user_id, reserved_until = excluded.reserved_until`,
}

const reserved: Statement = {
  name: 'former-usernames-reserved',
  text: `SELECT count(*)::int AS count, min(reserved_until) AS until FROM former_usernames
    WHERE user_id = $1 AND username_key <> $2 AND reserved_until > now()`,
}

const prune: Statement = {
  name: 'former-usernames-prune',
  slow: true,
  text: 'DELETE FROM former_usernames WHERE reserved_until <= now()',
}

/** Creates the former usernames in a database. */
export function createFormerUsernames(database: Database): FormerUsernames {
  defineTable(database, 'former_usernames', attributes)
  return {
    async reserve(userId, nextKey, t) {
      await database.run(reserve, [userId, nextKey], t)
    },
    reserved: async (userId, withoutKey, t) => (await database.run<Reserved>(reserved, [userId, withoutKey], t))[0]!,
    async prune() {
      await database.run(prune, [])
    },
  }
}
