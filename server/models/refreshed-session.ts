import { Op, type Transaction } from 'sequelize'
import { defineTable, flag, fromNow, hasDefault, integer, key, type Row, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { sql } from '../database/sql.js'

const attributes = {
  userId: key(integer),
  /** Id of the session. */
  id: key(text),
  /** Number of the newest token. */
  newest: integer,
  /** Whether a copy of an old token was presented: the session isn't refreshed any more. */
  ended: hasDefault(flag),
  /** When the session ends by itself. */
  endsAt: time,
}

/** What a session knows of its tokens. */
type Line = Pick<Row<typeof attributes>, 'newest' | 'ended'>

/**
 * Decides what a token that is presented for a refresh gets. The tokens of a session are one line: its first token has the number
 * 0, and each refresh of the newest one adds the next. A client whose answer was lost, or that never stores a new token, presents
 * the one before the newest. A token before that is a copy (RFC 9700, 4.14.2), but only where it has expired: a tab may hold a
 * token for as long as it is valid.
 *
 * | token                         | result     |
 * |-------------------------------|------------|
 * | of a session that was ended   | `refused`  |
 * | the newest                    | `next`     |
 * | the one before it             | `newest`: the newest again |
 * | an older one                  | `refused`; if it has expired, `copied`: the session ends |
 * | unknown, as after a restore   | `refused`  |
 *
 * The first two results also require that the token hasn't expired, unless an expired one `wakes` its session.
 *
 * @param line undefined if no token of the session was refreshed
 */
export function refreshOf(
  line: Line | undefined,
  { number, expired, wakes }: { readonly number: number; readonly expired: boolean; readonly wakes: boolean },
): 'next' | 'newest' | 'copied' | 'refused' {
  const { newest, ended } = line ?? { newest: 0, ended: false }
  if (ended || number > newest) return 'refused'
  if (number < newest - 1) return expired ? 'copied' : 'refused'
  if (expired && !wakes) return 'refused'
  return number === newest ? 'next' : 'newest'
}

/** The sessions whose token was refreshed. A session that wasn't has no row. */
export type RefreshedSessions = ReturnType<typeof createRefreshedSessions>

/** Creates the refreshed sessions in a database. */
export function createRefreshedSessions(database: Database) {
  const table = defineTable(database, 'refreshed_sessions', attributes)
  return {
    /**
     * Adds the next token to a session whose newest token has this number. Returns whether it did: of parallel calls only one
     * does, and none for a session that was ended or whose user is gone.
     */
    async advance({ userId, id, endsAt }: Pick<Row<typeof attributes>, 'userId' | 'id' | 'endsAt'>, number: number) {
      const next = { newest: number + 1 }
      if (number > 0) return (await table.update(next, { where: { userId, id, newest: number, ended: false } }))[0] > 0
      const begin = sql('refreshed-session-begin')`
        INSERT INTO refreshed_sessions (user_id, id, newest, ends_at)
        SELECT id, ${id}, ${next.newest}, ${endsAt} FROM users WHERE id = ${userId} FOR KEY SHARE
        ON CONFLICT DO NOTHING RETURNING 1`
      return (await database.run(begin)).length > 0
    },
    /** Returns what a session knows of its tokens; undefined if none was refreshed. */
    find: async (userId: number, id: string) => (await table.findOne({ where: { userId, id } }))?.get(),
    /** Ends the refreshing of a session. Returns false if it was ended before. */
    async end(userId: number, id: string, transaction: Transaction) {
      const [ended] = await table.update({ ended: true }, { where: { userId, id, ended: false }, transaction })
      return ended > 0
    },
    /** Deletes sessions a day after they ended, so that no clock of a process has them go on. */
    async prune() {
      await table.destroy({ where: { endsAt: { [Op.lt]: fromNow(-86_400) } } })
    },
  }
}
