import { randomUUID } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import {
  defineTable,
  flag,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'

const attributes = {
  userId: key(integer),
  /** Id of the line. */
  id: key(text),
  /** Number of the newest token. Each token of a line has a number of its own. */
  newest: integer,
  /** Number of the token that the newest was issued for. */
  former: hasDefault(nullable(integer)),
  /** When the newest token was issued. */
  issuedAt: hasDefault(nullable(time)),
  /** The service at which the user signed in; null for an app, whose tokens are of the registry. */
  serviceId: hasDefault(nullable(integer)),
  /** Whether the line was ended: a copy of a token was presented, or the token was revoked. */
  ended: hasDefault(flag),
  /** When the line ends by itself. */
  endsAt: time,
}

/** What a line knows of its tokens. */
interface Line extends Pick<Row<typeof attributes>, 'newest' | 'former' | 'ended'> {
  /** Whether the newest token was issued within the last minute. */
  readonly recent: boolean
}

/**
 * Who presents tokens of a line: an app with a refresh token of the registry, or a client of OpenID Connect with a secret
 * (confidential) or without one (public).
 */
export type Bearer = 'app' | 'confidential' | 'public'

/**
 * Decides what a token of a line gets. A line begins with token 0: the code of a client, or the access token for which an app
 * creates a refresh token. A presented token is exchanged for the next one. The same token can arrive again, because an answer
 * was lost, two tabs refresh at once, or an app stopped before it stored the answer. Any other repetition is a copy
 * (RFC 9700, 4.14.2), which ends the line.
 *
 * | token                               | app                 | confidential | public   |
 * |-------------------------------------|---------------------|--------------|----------|
 * | the newest                          | `next`              | `next`       | `next`   |
 * | the one that it was issued for      | within a minute `newest`, later `sibling` | `newest` | `copied` |
 * | the same, if it is token 0          | within a minute `newest`, later `copied`  | `copied` | `copied` |
 * | an older one, or a replaced sibling | `copied`            | `copied`     | `copied` |
 * | any of a line that was ended        | `refused`           | `refused`    | `refused` |
 * | an unknown one, as after a restore  | `refused`           | `refused`    | `refused` |
 *
 * A `sibling` replaces the newest token, so that the holder of the replaced one is noticed.
 *
 * @param line undefined if no token of it was exchanged
 */
export function refreshOf(
  line: Line | undefined,
  number: number,
  bearer: Bearer,
): 'next' | 'newest' | 'sibling' | 'copied' | 'refused' {
  if (line === undefined) return number === 0 ? 'next' : 'refused'
  const { newest, former, recent, ended } = line
  if (ended || number > newest) return 'refused'
  if (number === newest) return 'next'
  if (number !== former || bearer === 'public') return 'copied'
  if (bearer === 'app' && recent) return 'newest'
  if (number === 0) return 'copied'
  return bearer === 'app' ? 'sibling' : 'newest'
}

/** Id of the line of an app that stays signed in, and of what ends the session of a browser: one for each session. */
export const ownLine = ({ id }: { readonly id: string }) => `own:${id}`

/** Id of a line of a client, of which a session can have several. */
export const clientLine = ({ id }: { readonly id: string }) => `${id}:${randomUUID()}`

/** A line, and what its first exchange stores of it. */
type LineOf = Pick<Row<typeof attributes>, 'userId' | 'id' | 'endsAt'> & { readonly serviceId?: number | undefined }

/** How often an exchange decides again because another one changed the line meanwhile. */
const attempts = 5

/** The lines of tokens. A line of which no token was exchanged has no row. */
export type RefreshedSessions = ReturnType<typeof createRefreshedSessions>

/** Creates the lines in a database. */
export function createRefreshedSessions(database: Database) {
  const table = defineTable(database, 'refreshed_sessions', attributes)

  const find = (userId: number, id: string) =>
    first(
      database.run<Line>(sql('refreshed-session')`
        SELECT newest, former, ended, coalesce(issued_at BETWEEN now() - interval '1 minute' AND now(), false) AS recent
        FROM refreshed_sessions WHERE user_id = ${userId} AND id = ${id}`),
    )

  /** Adds the next token for the newest one. Returns whether it did: of parallel calls only one does. */
  async function advance({ userId, id, endsAt, serviceId }: LineOf, number: number): Promise<boolean> {
    const advance =
      number === 0
        ? sql('refreshed-session-begin')`
            INSERT INTO refreshed_sessions (user_id, id, newest, former, issued_at, service_id, ends_at)
            SELECT id, ${id}, 1, 0, now(), ${serviceId}::int, ${endsAt} FROM users WHERE id = ${userId} FOR KEY SHARE
            ON CONFLICT DO NOTHING RETURNING 1`
        : sql('refreshed-session-advance')`
            UPDATE refreshed_sessions SET newest = newest + 1, former = newest, issued_at = now()
            WHERE user_id = ${userId} AND id = ${id} AND newest = ${number} AND NOT ended RETURNING 1`
    return (await database.run(advance)).length > 0
  }

  /** Replaces the newest token by another one for the same former token. Returns whether it did. */
  const replace = async ({ userId, id }: LineOf, newest: number): Promise<boolean> =>
    (
      await database.run(sql('refreshed-session-replace')`
        UPDATE refreshed_sessions SET newest = newest + 1, issued_at = now()
        WHERE user_id = ${userId} AND id = ${id} AND newest = ${newest} AND NOT ended RETURNING 1`)
    ).length > 0

  return {
    /**
     * Exchanges the token with a number. Returns the number of the token that its bearer gets; `copied` for a copy, of which the
     * caller ends the line; `refused` for a token of a line that was ended or is unknown.
     */
    async exchange(line: LineOf, number: number, bearer: Bearer): Promise<number | 'copied' | 'refused'> {
      // Most tokens are the newest of their line: no statement reads the line before the one that changes it.
      for (let attempt = 1; attempt <= attempts; attempt++) {
        if (await advance(line, number)) return number + 1
        const found = await find(line.userId, line.id)
        const result = refreshOf(found, number, bearer)
        if (result === 'copied' || result === 'refused') return result
        if (result === 'newest') return found!.newest
        if (result === 'sibling' && (await replace(line, found!.newest))) return found!.newest + 1
      }
      return 'refused'
    },
    /** Returns what is known of a line; undefined if no token of it was exchanged. */
    find,
    /** Whether a session has a line at a service. */
    hasLine: async (userId: number, serviceId: number, sessionId: string): Promise<boolean> =>
      (
        await database.run(sql('refreshed-session-at-service')`
          SELECT FROM refreshed_sessions WHERE user_id = ${userId} AND service_id = ${serviceId}
            AND starts_with(id, ${sessionId}) LIMIT 1`)
      ).length > 0,
    /** Ends a line. Returns false if it was ended before. */
    async end({ userId, id, endsAt, serviceId }: LineOf, transaction?: Transaction): Promise<boolean> {
      const end = sql('refreshed-session-end')`
        INSERT INTO refreshed_sessions (user_id, id, newest, service_id, ended, ends_at)
        SELECT id, ${id}, 0, ${serviceId}::int, true, ${endsAt} FROM users WHERE id = ${userId} FOR KEY SHARE
        ON CONFLICT (user_id, id) DO UPDATE SET ended = true WHERE NOT refreshed_sessions.ended RETURNING 1`
      return (await database.run(end, transaction)).length > 0
    },
    /** Deletes lines a day after they ended, so that no clock of a process has them go on. */
    async prune() {
      await table.destroy({ where: { endsAt: { [Op.lt]: fromNow(-86_400) } } })
    },
  }
}
