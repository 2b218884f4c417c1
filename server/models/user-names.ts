// Which names are taken, by users or as their former usernames, and which look like taken ones.
import type { Database, Statement, Transaction } from '../database/connection.js'
import { nicknameSkeleton, shareScript, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

/** Looks names up. */
export interface UserNames {
  /** Whether the names are taken by another user than `userId`; a former username is, while it is reserved. */
  taken(usernameKey: string, nicknameKey: string, userId?: number): Promise<{ username: boolean; nickname: boolean }>
  /** Returns the usernames of those of the users that exist, by id. */
  usernames(ids: readonly number[]): Promise<Map<number, string>>
  /** Returns the nicknames that are taken. */
  takenNicknames(keys: readonly string[]): Promise<Set<string>>
  /**
   * Whether the names are taken by another user than `userId`, or look like such names in other letters (see
   * look-alikes.ts). In a transaction, the result holds until the transaction ends: check again there before `add`, `edit`
   * and `rename`.
   */
  lookalikes(
    names: { readonly username?: string | undefined; readonly nickname?: string | undefined },
    by?: { readonly t?: Transaction; readonly userId?: number },
  ): Promise<{ username: boolean; nickname: boolean }>
}

const exists: Statement = {
  name: 'user-exists',
  text: `SELECT EXISTS (SELECT FROM users WHERE username_key = $1 AND id <> $3)
      OR EXISTS (SELECT FROM former_usernames WHERE username_key = $1 AND user_id <> $3 AND reserved_until > now()) AS username,
    EXISTS (SELECT FROM users WHERE nickname_key = $2 AND id <> $3) AS nickname`,
}

const usernames: Statement = {
  name: 'user-usernames',
  text: 'SELECT id, username FROM users WHERE id = ANY($1)',
}

const takenNicknames: Statement = {
  name: 'user-taken-nicknames',
  text: 'SELECT nickname_key AS key FROM users WHERE nickname_key = ANY($1)',
}

/** Advisory locks by skeleton: only the holder gives a user names with these skeletons. A NULL locks nothing. */
const lockLooks: Statement = {
  name: 'user-lock-looks',
  text: 'SELECT pg_advisory_xact_lock(7264002, hashtext($1)), pg_advisory_xact_lock(7264003, hashtext($2))',
}

/** Maximum names with the same skeleton. With so many, a new name is refused without a comparison. */
const maxAlike = 100

// One statement, and with the equal names: a name is either a user's or, from the same commit on, a former one.
const alike: Statement = {
  name: 'user-alike',
  text: `SELECT ARRAY (
      SELECT username_key FROM users WHERE (username_skeleton = $1 OR username_key = $3) AND id <> $5
      UNION ALL SELECT username_key FROM former_usernames
        WHERE (username_skeleton = $1 OR username_key = $3) AND user_id <> $5 AND reserved_until > now()
      LIMIT ${maxAlike}) AS usernames,
    ARRAY (SELECT nickname_key FROM users WHERE (nickname_skeleton = $2 OR nickname_key = $4) AND id <> $5
      LIMIT ${maxAlike}) AS nicknames`,
}

/** Whether a key equals one of the keys that look like it, or uses other letters. */
function isAlike(key: string, others: readonly string[]): boolean {
  return others.length === maxAlike || others.some(other => other === key || !shareScript(key, other))
}

/** Creates the look-up of names in a database. */
export function createUserNames(database: Database): UserNames {
  return {
    async taken(usernameKey, nicknameKey, userId = 0) {
      const values = [usernameKey, nicknameKey, userId]
      return (await database.read<{ username: boolean; nickname: boolean }>(exists, values))[0]!
    },
    async usernames(ids) {
      const rows = await database.read<{ id: number; username: string }>(usernames, [ids])
      return new Map(rows.map(({ id, username }) => [id, username]))
    },
    async takenNicknames(keys) {
      return new Set((await database.read<{ key: string }>(takenNicknames, [keys])).map(row => row.key))
    },
    async lookalikes({ username, nickname }, { t, userId = 0 } = {}) {
      const skeletons = [username ? usernameSkeleton(username) : null, nickname ? nicknameSkeleton(nickname) : null]
      const keys = [usernameKey(username ?? ''), nicknameKey(nickname ?? '')] as const
      if (t) await database.run(lockLooks, skeletons, t)
      const values = [...skeletons, ...keys, userId]
      const [row] = await database.run<{ usernames: string[]; nicknames: string[] }>(alike, values, t)
      const { usernames, nicknames } = row!
      return { username: isAlike(keys[0], usernames), nickname: isAlike(keys[1], nicknames) }
    },
  }
}
