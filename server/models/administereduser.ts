import type { Transaction } from 'sequelize'
import { flag, integer, key, nullable, preset, type Row, selectList, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { Role } from '../roles.js'
import { readUser, type User } from './user.js'

/** What only administration reads of a user. */
const administered = {
  id: preset(key(integer)),
  createdAt: time,
  deletedAt: nullable(time),
  suspendedBeforeDeletion: flag,
}

/** A user as administrators see it, deleted or not. */
export interface AdministeredUserRow extends User, Row<typeof administered> {}

/** Days for which a deleted user may be brought back. */
export const daysUntilPurge = 30

/** Which users to list: all conditions given must hold. */
export interface UserFilter {
  readonly afterId?: number
  readonly role?: Role
  readonly state?: 'active' | 'inactive' | 'suspended' | 'deleted'
  readonly organizationId?: number
  /** Registered at this time or later, and before that one. */
  readonly createdFrom?: Date
  readonly createdTo?: Date
  /** Words, each the beginning of one of the user's. */
  readonly text?: string
  readonly limit: number
}

/** Users as administrators find and change them. Verbs that change one run in the transaction of their caller. */
export interface AdministeredUsers {
  /** The user with an id or username in comparing form. */
  find(wanted: { id: number } | { usernameKey: string }): Promise<AdministeredUserRow | undefined>
  /** The same, locked until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<AdministeredUserRow | undefined>
  /** The users who fit, by id. */
  list(filter: UserFilter): Promise<AdministeredUserRow[]>
  /**
   * Whether there is an active administrator besides a user. Nobody else asks before the transaction ends, so that of
   * the last two only one goes.
   */
  anotherAdministrator(id: number, t: Transaction): Promise<boolean>
  /** Ids of the active administrators with an e-mail address, but for one. */
  administratorsBut(id: number, t: Transaction): Promise<number[]>
  /** Ids of users, deleted or not, whose usernames look like `#id`; the first 11. */
  namedLikeIds(): Promise<number[]>
  /** Locks a user that was deleted so long ago that it is to be erased, unless somebody else does it now; its id. */
  lockForPurge(t: Transaction): Promise<number | undefined>
}

const columns = selectList(administered, 'u').replace(/^u\.id, /, '')
const read = readUser.replace(' FROM users u', `, ${columns} FROM users u`)

const byId: Statement = { name: 'administered-user-by-id', text: `${read} WHERE u.id = $1` }

const byUsername: Statement = { name: 'administered-user-by-username', text: `${read} WHERE u.username_key = $1` }

const locked: Statement = {
  name: 'administered-user-locked',
  text: `${read} WHERE u.id = $1 FOR NO KEY UPDATE OF u`,
}

const states = {
  active: 'u.active AND NOT u.suspended',
  inactive: 'NOT u.active AND NOT u.suspended',
  suspended: 'u.suspended AND u.deleted_at IS NULL',
  deleted: 'u.deleted_at IS NOT NULL',
} as const

const words = 'user_words(u.username, u.username_key, u.nickname, u.email, u.institution, u.city)'

// Of the last two administrators only one goes at a time.
const lockAdministrators: Statement = {
  name: 'administrators-lock',
  text: 'SELECT pg_advisory_xact_lock(7264005)',
}

const another: Statement = {
  name: 'administrators-another',
  text: `SELECT EXISTS (SELECT FROM users WHERE role = 'ROLE_ADMIN' AND active AND NOT suspended AND id <> $1) AS yes`,
}

const administratorsBut: Statement = {
  name: 'administrators-but',
  text: `SELECT id FROM users WHERE role = 'ROLE_ADMIN' AND active AND NOT suspended AND email IS NOT NULL AND id <> $1 ORDER BY id`,
}

const lockForPurge: Statement = {
  name: 'administered-user-lock-for-purge',
  text: `SELECT id FROM users WHERE deleted_at < now() - interval '${daysUntilPurge} days' ORDER BY deleted_at
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`,
}

const namedLikeIds: Statement = {
  name: 'administered-users-named-like-ids',
  text: `SELECT id FROM users WHERE username_key LIKE '#%' AND username_key ~ '^#[0-9]{1,9}$' ORDER BY id LIMIT 11`,
}

/** A statement for these conditions alone, so that it is planned for what it filters by. */
function listOf(filter: UserFilter): { statement: Statement; values: unknown[] } {
  const values: unknown[] = [filter.afterId ?? 0, filter.limit]
  const parts: string[] = []
  const conditions = ['u.id > $1', filter.state ? states[filter.state] : 'u.deleted_at IS NULL']
  const add = (name: string, value: unknown, condition: (placeholder: string) => string) => {
    if (value === undefined) return
    values.push(value)
    parts.push(name)
    conditions.push(condition(`$${values.length}`))
  }
  add('role', filter.role, n => `u.role = ${n}`)
  add('organization', filter.organizationId, n => `u.organization_id = ${n}`)
  add('from', filter.createdFrom, n => `u.created_at >= ${n}`)
  add('to', filter.createdTo, n => `u.created_at < ${n}`)
  if (filter.text !== undefined) {
    add('text', filter.text, n => `${words} @@ search_query(${n})`)
    return { statement: { name: '', text: searchFor(conditions.join(' AND ')) }, values }
  }
  const name = ['administered-users', filter.state ?? 'any', ...parts].join('-')
  return { statement: { name, text: `${read} WHERE ${conditions.join(' AND ')} ORDER BY u.id LIMIT $2` }, values }
}

/**
 * Finds users by words, without a name, so that it is planned for these. Nobody knows beforehand how many users have a
 * word: what many have is among the first rows, what few have the index finds. Left to itself, PostgreSQL (18) supposes
 * 2 % of all to have any beginning of a word, and would look through a million users for one.
 */
function searchFor(conditions: string): string {
  return `WITH near AS MATERIALIZED (
      SELECT u.id FROM (SELECT * FROM users WHERE id > $1 ORDER BY id LIMIT least(4 * $2::int, 400)) u
      WHERE ${conditions} ORDER BY u.id LIMIT $2
    ), far AS MATERIALIZED (
      SELECT u.id FROM users u WHERE (SELECT count(*) FROM near) < $2 AND ${conditions}
    )
    ${read} WHERE u.id IN (SELECT id FROM near UNION SELECT id FROM far ORDER BY id LIMIT $2) ORDER BY u.id`
}

/** The users in a database, as administrators see them. */
export function createAdministeredUsers(database: Database): AdministeredUsers {
  const one = async (statement: Statement, value: unknown, t?: Transaction) =>
    (await database.run<AdministeredUserRow>(statement, [value], t))[0]
  return {
    find: wanted => ('id' in wanted ? one(byId, wanted.id) : one(byUsername, wanted.usernameKey)),
    lock: (id, t) => one(locked, id, t),
    list(filter) {
      const { statement, values } = listOf(filter)
      return database.run<AdministeredUserRow>(statement, values)
    },
    async anotherAdministrator(id, t) {
      await database.run(lockAdministrators, [], t)
      return (await database.run<{ yes: boolean }>(another, [id], t))[0]!.yes
    },
    administratorsBut: async (id, t) =>
      (await database.run<{ id: number }>(administratorsBut, [id], t)).map(({ id }) => id),
    namedLikeIds: async () => (await database.run<{ id: number }>(namedLikeIds, [])).map(({ id }) => id),
    lockForPurge: async t => (await database.run<{ id: number }>(lockForPurge, [], t))[0]?.id,
  }
}
