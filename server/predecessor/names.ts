// Finds users whose names collide here: equal in another spelling, or look-alikes. The names are compared in a temporary table,
// so that memory doesn't grow with the number of users.
import type { Database, Statement, Transaction } from '../database/connection.js'
import { copyLine } from '../database/copy.js'
import { lookAlike, nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'
import type { Names, Problem } from './convert.js'

/** The names of a user that is to be imported. */
export interface Named {
  readonly id: number
  readonly names: Names
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
export interface NameTable {
  add(users: readonly Named[]): Promise<void>
  /** Returns all collisions, by id. Of users with the same name one isn't among them: it keeps the name. */
  collisions(): Promise<Collision[]>
  /** Returns the ids of the users whose names others have, or have look-alikes of. */
  taken(field: Collision['field'], wanted: readonly { id: number; name: string }[]): Promise<Set<number>>
  /** Returns the ids of users here that get another name, while another user gets theirs. */
  occupied(): Promise<number[]>
}

const create: Statement = {
  name: '',
  text: `CREATE TEMP TABLE moving_names (id int, rank int, username_key text, username_skeleton text, nickname_key text,
    nickname_skeleton text) ON COMMIT DROP`,
}

// Of equal names, the one with the lowest rank stays: of users that are here, then of active ones without other problems.
const ranks = { here: 0, active: 1, inactive: 2, troubled: 3 } as const

const addHere: Statement = {
  name: '',
  text: `INSERT INTO moving_names
    SELECT id, ${ranks.here}, username_key, username_skeleton, nickname_key, nickname_skeleton FROM users u
    WHERE id = $1 OR NOT EXISTS (SELECT FROM moving_names m WHERE m.id = u.id)`,
}

const equal = (field: string): Statement => ({
  name: '',
  text: `SELECT array_agg(id ORDER BY rank, id) AS ids FROM moving_names
    WHERE ${field}_key <> '' GROUP BY ${field}_key HAVING count(*) > 1`,
})

const alike = (field: string): Statement => ({
  name: '',
  text: `SELECT array_agg(id ORDER BY rank, id) AS ids, array_agg(${field}_key ORDER BY rank, id) AS keys FROM moving_names
    WHERE ${field}_key <> '' GROUP BY ${field}_skeleton HAVING count(DISTINCT ${field}_key) > 1`,
})

const taken = (field: string): Statement => ({
  name: '',
  text: `SELECT w.id FROM unnest($1::int[], $2::text[]) AS w (id, key)
      JOIN moving_names m ON m.${field}_key = w.key AND m.id <> w.id
    UNION SELECT w.id FROM unnest($1::int[], $3::text[]) AS w (id, skeleton)
      JOIN moving_names m ON m.${field}_skeleton = w.skeleton AND m.id <> w.id`,
})

const occupied = (field: string) => `SELECT u.id FROM users u JOIN moving_names own ON own.id = u.id
  JOIN moving_names other ON other.${field}_key = u.${field}_key AND other.id <> u.id
  WHERE own.rank > ${ranks.here} AND own.${field}_key <> u.${field}_key`

const anyOccupied: Statement = { name: '', text: `${occupied('username')} UNION ${occupied('nickname')}` }

const forms = {
  username: { key: usernameKey, skeleton: usernameSkeleton },
  nickname: { key: nicknameKey, skeleton: nicknameSkeleton },
} as const

/** Creates the table for an unlimited transaction. `administratorId` is the one user here that no import made. */
export async function createNameTable(
  database: Database,
  t: Transaction,
  administratorId: number | undefined,
): Promise<NameTable> {
  await database.run(create, [], t)
  const collisionsOf = async (field: Collision['field']): Promise<Collision[]> => {
    const found: Collision[] = []
    for (const { ids } of await database.run<{ ids: number[] }>(equal(field), [], t)) {
      const [first, ...others] = ids
      for (const id of others) found.push({ id, field, problem: 'taken', by: [first!] })
    }
    const colliding = new Set(found.map(({ id }) => id))
    for (const { ids, keys } of await database.run<{ ids: number[]; keys: string[] }>(alike(field), [], t)) {
      const kept: { id: number; key: string }[] = []
      for (const [index, id] of ids.entries()) {
        if (colliding.has(id)) continue
        const key = keys[index]!
        const other = kept.find(each => lookAlike(key, each.key))
        if (other) found.push({ id, field, problem: 'look-alike', by: [other.id] })
        else kept.push({ id, key })
      }
    }
    return found
  }
  return {
    async add(users) {
      const lines = users.map(({ id, names, active, troubled }) => {
        const rank = troubled ? ranks.troubled : active ? ranks.active : ranks.inactive
        const { usernameKey, usernameSkeleton, nicknameKey, nicknameSkeleton } = names
        return copyLine([id, rank, usernameKey, usernameSkeleton, nicknameKey, nicknameSkeleton])
      })
      await database.copyIn('COPY moving_names FROM STDIN', onlyChunk(lines.join('')), t)
    },
    async collisions() {
      await database.run(addHere, [administratorId ?? 0], t)
      await database.run({ name: '', text: 'ANALYZE moving_names' }, [], t)
      return [...(await collisionsOf('username')), ...(await collisionsOf('nickname'))].sort((a, b) => a.id - b.id)
    },
    async taken(field, wanted) {
      const { key, skeleton } = forms[field]
      const names = wanted.map(({ name }) => name)
      const values = [wanted.map(({ id }) => id), names.map(key), names.map(skeleton)]
      return new Set((await database.run<{ id: number }>(taken(field), values, t)).map(({ id }) => id))
    },
    occupied: async () => (await database.run<{ id: number }>(anyOccupied, [], t)).map(({ id }) => id),
  }
}

async function* onlyChunk(text: string): AsyncGenerator<Buffer> {
  yield Buffer.from(text)
}
