// Finds users whose names collide here: equal in another spelling, or look-alikes. The names are compared in a temporary table,
// so that memory doesn't grow with the number of users.
import type { Database, Transaction } from '../database/database.js'
import { type Query, sql } from '../database/sql.js'
import { lookAlike, nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'
import type { Problem } from './convert.js'

/** Kinds of names. */
const fields = ['username', 'nickname'] as const
export type NameField = (typeof fields)[number]
type Names = Readonly<Record<NameField, string>>

/** The names of all users that are to be imported, and of those that are here. */
export type NameTable = Awaited<ReturnType<typeof createNameTable>>

/** Of equal names, the one with the lowest rank stays, and of these the one of the lowest id. */
export const ranks = { here: 0, active: 1, inactive: 2, troubled: 3 } as const

/** The forms in which names are compared. */
const forms = {
  username: { key: usernameKey, skeleton: usernameSkeleton },
  nickname: { key: nicknameKey, skeleton: nicknameSkeleton },
} as const

/** Creates the table for an unlimited transaction. `administratorId` is the one user here that no import made. */
export async function createNameTable(database: Database, t: Transaction, administratorId: number | undefined) {
  const run = <Row>(query: Query) => database.run<Row>(query, t)
  await run(sql`CREATE TEMP TABLE moving_names (id int, field text, rank int, key text, skeleton text) ON COMMIT DROP`)
  return {
    /** Adds users that are to be imported. */
    async add(users: readonly { readonly id: number; readonly rank: number; readonly names: Names }[]): Promise<void> {
      const rows = users.flatMap(({ names, ...user }) =>
        fields.map(field => {
          const [name, { key, skeleton }] = [names[field], forms[field]]
          return { ...user, field, key: key(name), skeleton: skeleton(name) }
        }),
      )
      const all = JSON.stringify(rows.filter(({ key }) => key !== ''))
      await run(sql`INSERT INTO moving_names SELECT * FROM jsonb_populate_recordset(NULL::moving_names, ${all})`)
    },

    /** Returns all collisions, by id. Of users with the same name one isn't among them: it keeps the name. */
    async collisions(): Promise<(Problem & { readonly id: number })[]> {
      await run(sql`INSERT INTO moving_names SELECT id, field, ${ranks.here}, key, skeleton
        FROM users u, LATERAL (VALUES ('username', username_key, username_skeleton), ('nickname', nickname_key, nickname_skeleton))
          AS n (field, key, skeleton)
        WHERE id = ${administratorId ?? 0} OR NOT EXISTS (SELECT FROM moving_names m WHERE m.id = u.id)`)
      await run(sql`ANALYZE moving_names`)
      const kept = sql`SELECT *, first_value(id) OVER (PARTITION BY field, key ORDER BY rank, id) AS keeper FROM moving_names`
      const equal = sql`SELECT id, field, 'taken' AS problem, ARRAY[keeper] AS by FROM (${kept}) n WHERE id <> keeper`
      const found = await run<Problem & { id: number }>(equal)
      const similar = sql`SELECT field, array_agg(id ORDER BY rank, id) AS ids, array_agg(key ORDER BY rank, id) AS keys
        FROM (${kept}) n WHERE id = keeper GROUP BY field, skeleton HAVING count(*) > 1`
      for (const { field, ids, keys } of await run<{ field: NameField; ids: number[]; keys: string[] }>(similar)) {
        const stay: number[] = []
        for (const [index, id] of ids.entries()) {
          const other = stay.find(at => lookAlike(keys[index]!, keys[at]!))
          if (other === undefined) stay.push(index)
          else found.push({ id, field, problem: 'look-alike', by: [ids[other]!] })
        }
      }
      return found.sort((a, b) => a.id - b.id)
    },

    /** Returns the ids of the users whose names others have, or have look-alikes of. */
    async taken(field: NameField, wanted: readonly { id: number; name: string }[]): Promise<Set<number>> {
      const { key, skeleton } = forms[field]
      const rows = JSON.stringify(wanted.map(({ id, name }) => ({ id, key: key(name), skeleton: skeleton(name) })))
      const taken = sql`WITH w AS (SELECT * FROM jsonb_populate_recordset(NULL::moving_names, ${rows})),
          m AS (SELECT * FROM moving_names WHERE field = ${field})
        SELECT w.id FROM w JOIN m ON m.key = w.key AND m.id <> w.id
        UNION SELECT w.id FROM w JOIN m ON m.skeleton = w.skeleton AND m.id <> w.id`
      return new Set((await run<{ id: number }>(taken)).map(({ id }) => id))
    },
  }
}
