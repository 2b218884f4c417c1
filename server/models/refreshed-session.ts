// Lines of tokens, which the successors of a session's first token form. The first token has the number 0; each exchange of the
// newest one adds the next, and a copy of an old one ends the line. Servers of 1.0.0, which may run beside, write a line for the
// access tokens that they refresh; `Refresh` of this version needs none.

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
  /** Whether a copy of an old token was presented: no token of the line gets a successor any more. */
  ended: hasDefault(flag),
  /** When the session ends by itself. */
  endsAt: time,
}

/** What a session knows of its tokens. */
type Line = Pick<Row<typeof attributes>, 'newest' | 'ended'>

/**
 * Decides what the token with a number gets that is presented for its successor. A client whose answer was lost presents the one
 * before the newest. A token before that is a copy (RFC 9700, 4.14.2).
 *
 * | token                         | result     |
 * |-------------------------------|------------|
 * | of a session that was ended   | `refused`  |
 * | the newest                    | `next`     |
 * | the one before it             | `newest`: the newest again |
 * | an older one                  | `copied`: the session ends |
 * | unknown, as after a restore   | `refused`  |
 *
 * @param line undefined if no token of the session has a successor
 */
export function refreshOf(line: Line | undefined, number: number): 'next' | 'newest' | 'copied' | 'refused' {
  const { newest, ended } = line ?? { newest: 0, ended: false }
  if (ended || number > newest) return 'refused'
  if (number === newest) return 'next'
  return number === newest - 1 ? 'newest' : 'copied'
}

/** The sessions with a line of tokens. A session whose first token has no successor has no row. */
export type RefreshedSessions = ReturnType<typeof createRefreshedSessions>

/** Creates the lines in a database. */
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
    /** Returns what a session knows of its tokens; undefined if none has a successor. */
    find: async (userId: number, id: string) => (await table.findOne({ where: { userId, id } }))?.get(),
    /** Ends the line of a session. Returns false if it was ended before. */
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
