// Which names are taken, by users or as their former usernames, and which look like taken ones.
import { advisoryKeys } from '../database/advisory-keys.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { lookAlike, nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'

/** Names of a user. */
interface Names {
  readonly username?: string | undefined
  readonly nickname?: string | undefined
}

/** Why a user can't have a name: another one has it, or has one that it looks like. */
export type NameProblem = 'taken' | 'alike'

/** Why a user can't have its names; undefined for one that it can have. */
export type NameProblems = { readonly [N in 'username' | 'nickname']: NameProblem | undefined }

/** Looks names up. */
export type UserNames = ReturnType<typeof createUserNames>

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

/**
 * Advisory locks by skeleton: only the holder gives a user names with these skeletons. Every transaction takes them in the
 * same order, so that two can't wait for each other.
 */
const lockLooks: Statement = {
  name: 'user-lock-looks',
  text: `SELECT pg_advisory_xact_lock(kind, hash) FROM (
    SELECT ${advisoryKeys.usernames} AS kind, hashtext(skeleton) AS hash FROM unnest($1::text[]) AS skeleton WHERE skeleton IS NOT NULL
    UNION SELECT ${advisoryKeys.nicknames}, hashtext(skeleton) FROM unnest($2::text[]) AS skeleton WHERE skeleton IS NOT NULL
    ORDER BY 1, 2
  ) s`,
}

/** Maximum names with the same skeleton. With so many, a new name is refused without a comparison. */
const maxAlike = 100

// One statement, and with the equal names: a name is either a user's or, from the same commit on, a former one.
const alike: Statement = {
  name: 'user-alike',
  text: `SELECT ARRAY (
      SELECT username_key FROM users
        WHERE (username_skeleton = n.username_skeleton OR username_key = n.username_key) AND id <> n.user_id
      UNION ALL SELECT username_key FROM former_usernames
        WHERE (username_skeleton = n.username_skeleton OR username_key = n.username_key) AND user_id <> n.user_id
          AND reserved_until > now()
      LIMIT ${maxAlike}) AS usernames,
    ARRAY (SELECT nickname_key FROM users
      WHERE (nickname_skeleton = n.nickname_skeleton OR nickname_key = n.nickname_key) AND id <> n.user_id
      LIMIT ${maxAlike}) AS nicknames
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::int[]) WITH ORDINALITY
      AS n (username_skeleton, nickname_skeleton, username_key, nickname_key, user_id, place)
    ORDER BY place`,
}

/** Whether a key equals one of the keys with its skeleton, or looks like one. */
function problemOf(key: string, others: readonly string[]): NameProblem | undefined {
  if (others.includes(key)) return 'taken'
  return others.length === maxAlike || others.some(other => lookAlike(key, other)) ? 'alike' : undefined
}

/** Creates the look-up of names in a database. */
export function createUserNames(database: Database) {
  return {
    /** Whether the names are taken by another user than `userId`; a former username is, while it is reserved. */
    async taken(usernameKey: string, nicknameKey: string, userId = 0) {
      const values = [usernameKey, nicknameKey, userId]
      return (await database.read<{ username: boolean; nickname: boolean }>(exists, values))[0]!
    },

    /** Returns the usernames of those of the users that exist, by id. */
    async usernames(ids: readonly number[]): Promise<Map<number, string>> {
      const rows = await database.read<{ id: number; username: string }>(usernames, [ids])
      return new Map(rows.map(({ id, username }) => [id, username]))
    },

    /** Returns the nicknames that are taken. */
    async takenNicknames(keys: readonly string[]): Promise<Set<string>> {
      return new Set((await database.read<{ key: string }>(takenNicknames, [keys])).map(row => row.key))
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
      if (t) await database.run(lockLooks, [usernames, nicknames], t)
      const usernameKeys = all.map(({ username = '' }) => usernameKey(username))
      const nicknameKeys = all.map(({ nickname = '' }) => nicknameKey(nickname))
      const values = [usernames, nicknames, usernameKeys, nicknameKeys, all.map(({ userId = 0 }) => userId)]
      const rows = await database.run<{ usernames: string[]; nicknames: string[] }>(alike, values, t)
      return rows.map(({ usernames, nicknames }, index) => ({
        username: problemOf(usernameKeys[index]!, usernames),
        nickname: problemOf(nicknameKeys[index]!, nicknames),
      }))
    },
  }
}
