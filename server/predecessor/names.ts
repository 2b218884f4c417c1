// Finds users whose names collide here: equal in another spelling, or look-alikes. The names are compared in a temporary table,
// so that memory doesn't grow with the number of users.
import type { Database, Transaction } from '../database/connection.js'
import { type Query, sql } from '../database/sql.js'
import { lookAlike, nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'
import type { Problem } from './convert.js'

/** A user that is to be imported. */
export interface Named {
  readonly id: number
  readonly username: string
  readonly nickname: string
  /** Whether it is active: of equal names, the one of an active user stays. */
  readonly active: boolean
  /** Whether it has another problem: then the name of another user stays. */
  readonly troubled: boolean
}

/** A name that a user can't keep, because of the user `by`. */
export interface Collision extends Problem {
  readonly id: number
  readonly field: 'username' | 'nickname'
}

/** The names of all users that are to be imported, and of those that are here. */
export type NameTable = Awaited<ReturnType<typeof createNameTable>>

// Of equal names, the one with the lowest rank stays: of users that are here, then of active ones without other problems.
const ranks = { here: 0, active: 1, inactive: 2, troubled: 3 } as const

/** The columns and forms of each kind of name. */
const forms = {
  username: { key: usernameKey, skeleton: usernameSkeleton },
  nickname: { key: nicknameKey, skeleton: nicknameSkeleton },
} as const

const columns = (field: Collision['field']) => ({
  key: sql.text(`${field}_key`),
  skeleton: sql.text(`${field}_skeleton`),
})

/** Creates the table for an unlimited transaction. `administratorId` is the one user here that no import made. */
export async function createNameTable(database: Database, t: Transaction, administratorId: number | undefined) {
  await database.run(
    sql`CREATE TEMP TABLE moving_names (id int, rank int, username_key text, username_skeleton text, nickname_key text,
      nickname_skeleton text) ON COMMIT DROP`,
    t,
  )

  /** Users whose names have something in common, in the order in which they keep them. */
  const groups = (field: Collision['field'], common: Query, having: Query) =>
    database.run<{ ids: number[]; keys: string[] }>(
      sql`SELECT array_agg(id ORDER BY rank, id) AS ids, array_agg(${columns(field).key} ORDER BY rank, id) AS keys
        FROM moving_names WHERE ${columns(field).key} <> '' GROUP BY ${common} HAVING ${having}`,
      t,
    )

  /** Of users with the same name all but one, and those with look-alikes of names that stay. */
  async function collisionsOf(field: Collision['field']): Promise<Collision[]> {
    const { key, skeleton } = columns(field)
    const equal = await groups(field, key, sql`count(*) > 1`)
    const found = equal.flatMap(({ ids: [first, ...others] }): Collision[] =>
      others.map(id => ({ id, field, problem: 'taken', by: [first!] })),
    )
    const colliding = new Set(found.map(({ id }) => id))
    for (const { ids, keys } of await groups(field, skeleton, sql`count(DISTINCT ${key}) > 1`)) {
      const kept: { id: number; key: string }[] = []
      for (const [index, id] of ids.entries()) {
        if (colliding.has(id)) continue
        const other = kept.find(({ key }) => lookAlike(keys[index]!, key))
        if (other) found.push({ id, field, problem: 'look-alike', by: [other.id] })
        else kept.push({ id, key: keys[index]! })
      }
    }
    return found
  }

  return {
    async add(users: readonly Named[]): Promise<void> {
      const rows = users.map(({ id, username, nickname, active, troubled }) => ({
        id,
        rank: troubled ? ranks.troubled : active ? ranks.active : ranks.inactive,
        username_key: usernameKey(username),
        username_skeleton: usernameSkeleton(username),
        nickname_key: nicknameKey(nickname),
        nickname_skeleton: nicknameSkeleton(nickname),
      }))
      const all = JSON.stringify(rows)
      await database.run(
        sql`INSERT INTO moving_names SELECT * FROM jsonb_populate_recordset(NULL::moving_names, ${all})`,
        t,
      )
    },

    /** Returns all collisions, by id. Of users with the same name one isn't among them: it keeps the name. */
    async collisions(): Promise<Collision[]> {
      await database.run(
        sql`INSERT INTO moving_names
          SELECT id, ${ranks.here}, username_key, username_skeleton, nickname_key, nickname_skeleton FROM users u
          WHERE id = ${administratorId ?? 0} OR NOT EXISTS (SELECT FROM moving_names m WHERE m.id = u.id)`,
        t,
      )
      await database.run(sql`ANALYZE moving_names`, t)
      return [...(await collisionsOf('username')), ...(await collisionsOf('nickname'))].sort((a, b) => a.id - b.id)
    },

    /** Returns the ids of the users whose names others have, or have look-alikes of. */
    async taken(field: Collision['field'], wanted: readonly { id: number; name: string }[]): Promise<Set<number>> {
      const { key, skeleton } = columns(field)
      const keys = wanted.map(({ name }) => forms[field].key(name))
      const skeletons = wanted.map(({ name }) => forms[field].skeleton(name))
      const rows = await database.run<{ id: number }>(
        sql`WITH w AS (
            SELECT * FROM unnest(${wanted.map(({ id }) => id)}::int[], ${keys}::text[], ${skeletons}::text[])
              AS w (id, key, skeleton)
          )
          SELECT w.id FROM w JOIN moving_names m ON m.${key} = w.key AND m.id <> w.id
          UNION SELECT w.id FROM w JOIN moving_names m ON m.${skeleton} = w.skeleton AND m.id <> w.id`,
        t,
      )
      return new Set(rows.map(({ id }) => id))
    },

    /** Returns the ids of users here that get another name, while another user gets theirs. */
    async occupied(): Promise<number[]> {
      const occupied = (field: Collision['field']) => {
        const { key } = columns(field)
        return sql`SELECT u.id FROM users u JOIN moving_names own ON own.id = u.id
          JOIN moving_names other ON other.${key} = u.${key} AND other.id <> u.id
          WHERE own.rank > ${sql.text(String(ranks.here))} AND own.${key} <> u.${key}`
      }
      const rows = await database.run<{ id: number }>(sql`${occupied('username')} UNION ${occupied('nickname')}`, t)
      return rows.map(({ id }) => id)
    },
  }
}
