// Which names are taken, by users or as their former usernames, and which look like taken ones.
import { advisoryKeys } from '../database/advisory-keys.js'
import type { Database, Transaction } from '../database/database.js'
import { sql } from '../database/sql.js'
import { lookAlike, nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

/** Names of a user. */
interface Names {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
}

/** Why a user can't have a name: another one has it, or has one that it looks like. */
type NameProblem = 'taken' | 'alike'

/** Why a user can't have its names; undefined for one that it can have. */
export type NameProblems = { readonly [N in 'username' | 'nickname']: NameProblem | undefined }

/** Maximum names with the same skeleton. With so many, a new name is refused without a comparison. */
const maxAlike = 100

/** Whether a key equals one of the keys with its skeleton, or looks like one. */
function problemOf(key: string, others: readonly string[]): NameProblem | undefined {
  if (others.includes(key)) return 'taken'
  return others.length === maxAlike || others.some(other => lookAlike(key, other)) ? 'alike' : undefined
}

/** Creates the look-up of names in a database. */
export function createNameConflicts(database: Database) {
  return {
    /** Whether the names are taken by another user than `userId`; a former username is, while it is reserved. */
    async taken(usernameKey: string, nicknameKey: string, userId = 0) {
      const [taken] = await database.read<{ username: boolean; nickname: boolean }>(
        sql('user-exists')`SELECT EXISTS (SELECT FROM users WHERE username_key = ${usernameKey} AND id <> ${userId})
            OR EXISTS (SELECT FROM former_usernames
              WHERE username_key = ${usernameKey} AND user_id <> ${userId} AND reserved_until > now()) AS username,
          EXISTS (SELECT FROM users WHERE nickname_key = ${nicknameKey} AND id <> ${userId}) AS nickname`,
      )
      return taken!
    },

    /**
     * Returns, in order, which of their names users can't have: other users than `userId` have them, or look-alikes of them in
     * other letters (see look-alikes.ts). In a transaction, the result holds until the transaction ends: check there before users are
     * added, edited and renamed.
     */
    async nameProblems(
      all: readonly (Names & { readonly userId?: number | undefined })[],
      t?: Transaction,
    ): Promise<NameProblems[]> {
      const usernames = all.map(({ username }) => (username ? usernameSkeleton(username) : null))
      const nicknames = all.map(({ nickname }) => (nickname ? nicknameSkeleton(nickname) : null))
      if (t) await lockLooks(usernames, nicknames, t)
      const usernameKeys = all.map(({ username = '' }) => usernameKey(username))
      const nicknameKeys = all.map(({ nickname = '' }) => nicknameKey(nickname))
      const ids = all.map(({ userId = 0 }) => userId)
      const most = sql.text(String(maxAlike))
      // One statement, and with the equal names: a name is either a user's or, from the same commit on, a former one.
      const query = sql('user-alike')`SELECT ARRAY (
          SELECT username_key FROM users
            WHERE (username_skeleton = n.username_skeleton OR username_key = n.username_key) AND id <> n.user_id
          UNION ALL SELECT username_key FROM former_usernames
            WHERE (username_skeleton = n.username_skeleton OR username_key = n.username_key) AND user_id <> n.user_id
              AND reserved_until > now()
          LIMIT ${most}) AS usernames,
        ARRAY (SELECT nickname_key FROM users
          WHERE (nickname_skeleton = n.nickname_skeleton OR nickname_key = n.nickname_key) AND id <> n.user_id
          LIMIT ${most}) AS nicknames
        FROM unnest(${usernames}::text[], ${nicknames}::text[], ${usernameKeys}::text[], ${nicknameKeys}::text[], ${ids}::int[])
          WITH ORDINALITY AS n (username_skeleton, nickname_skeleton, username_key, nickname_key, user_id, place)
        ORDER BY place`
      const rows = await database.run<{ usernames: string[]; nicknames: string[] }>(query, t)
      return rows.map(({ usernames, nicknames }, index) => ({
        username: problemOf(usernameKeys[index]!, usernames),
        nickname: problemOf(nicknameKeys[index]!, nicknames),
      }))
    },
  }

  /**
   * Takes advisory locks by skeleton: only the holder gives a user names with these skeletons. Every transaction takes them in
   * the same order, so that two can't wait for each other.
   */
  async function lockLooks(usernames: (string | null)[], nicknames: (string | null)[], t: Transaction): Promise<void> {
    const [ofUsernames, ofNicknames] = [advisoryKeys.usernames, advisoryKeys.nicknames].map(key =>
      sql.text(String(key)),
    )
    const query = sql('user-lock-looks')`SELECT pg_advisory_xact_lock(kind, hash) FROM (
        SELECT ${ofUsernames!} AS kind, hashtext(skeleton) AS hash FROM unnest(${usernames}::text[]) AS skeleton
          WHERE skeleton IS NOT NULL
        UNION SELECT ${ofNicknames!}, hashtext(skeleton) FROM unnest(${nicknames}::text[]) AS skeleton
          WHERE skeleton IS NOT NULL
        ORDER BY 1, 2
      ) s`
    await database.run(query, t)
  }
}
