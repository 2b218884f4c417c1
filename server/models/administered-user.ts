import type { Transaction } from 'sequelize'
import { flag, hasDefault, integer, key, nullable, type Row, selectList, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { Role } from '../rules/roles.js'
import { readUser, type User } from './user.js'

/** What only administration reads of a user. */
const administered = {
  id: hasDefault(key(integer)),
  createdAt: time,
  activatedAt: nullable(time),
  activatedBy: nullable(integer),
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
  /** Whether `text` may match the e-mail address; true if absent. */
  readonly byEmail?: boolean
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
   * Whether there is an active administrator besides a user. Other calls wait until the transaction ends, so that of
   * the last two only one goes.
   */
  anotherAdministrator(id: number, t: Transaction): Promise<boolean>
  /** Ids of the active administrators with an e-mail address, but for one. */
  administratorsBut(id: number, t: Transaction): Promise<number[]>
  /** Ids of users, deleted or not, whose usernames look like `#id`; the first 11. */
  namedLikeIds(): Promise<number[]>
  /** Locks a user that was deleted so long ago that it is to be erased, unless another transaction does; its id. */
  lockForPurge(t: Transaction): Promise<number | undefined>
  /**
   * Locks an account that was never activated and last seen more than so many seconds ago, unless another transaction does;
   * its id. Not a ROLE_ADMIN or a suspended one.
   */
  lockLapsed(seconds: number, t: Transaction): Promise<number | undefined>
  /** Locks a user, unless it isn't an account that was never activated, or is suspended; whether it did. */
  lockUnactivated(id: number, t: Transaction): Promise<boolean>
  /**
   * Looks at so many accounts that were never activated (`stretch`), by id, for those that were signed up from a network, as
   * far as the audit log says: the first ids, and the id to continue after, undefined at the end.
   */
  signedUpFrom(network: string, filter: SignUpFilter): Promise<{ ids: number[]; next: number | undefined }>
}

/** Which accounts that were never activated to look at. */
interface SignUpFilter extends Pick<UserFilter, 'afterId' | 'createdFrom' | 'createdTo' | 'limit'> {
  readonly stretch: number
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

const wordsWith = (email: string) =>
  `user_words(u.username, u.username_key, u.nickname, ${email}, u.institution, u.city)`
const words = wordsWith('u.email')

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

const lockLapsed: Statement = {
  name: 'administered-user-lock-lapsed',
  text: `SELECT id FROM users WHERE unactivated_seen_at < now() - make_interval(secs => $1)
      AND NOT active AND NOT suspended AND role <> 'ROLE_ADMIN'
    ORDER BY unactivated_seen_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED`,
}

const unactivated = 'unactivated_seen_at IS NOT NULL AND NOT active AND NOT suspended'

const lockUnactivated: Statement = {
  name: 'administered-user-lock-unactivated',
  text: `SELECT FROM users WHERE id = $1 AND ${unactivated} FOR NO KEY UPDATE`,
}

// One account at a time, as the index has them: to join would be to read the whole log.
const origin = (table: string, order: string) =>
  `(SELECT address FROM ${table} WHERE subject_id = e.id AND action = 'user.sign-up' ORDER BY ${order} LIMIT 1)`

const signedUpFrom: Statement = {
  name: 'administered-users-signed-up-from',
  text: `WITH examined AS MATERIALIZED (
      SELECT id, created_at FROM users WHERE id > $1 AND ${unactivated} ORDER BY id LIMIT $5
    )
    SELECT ARRAY (SELECT id FROM examined e WHERE created_at >= $3 AND created_at < $4
        AND nullif(coalesce(${origin('audit_events', 'id')}, ${origin('audit_staged', 'seq')}), '')::inet <<= $2::inet
        ORDER BY id LIMIT $6) AS ids,
      (SELECT CASE WHEN count(*) = $5 THEN max(id) END FROM examined) AS next`,
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
    // The index includes the words of the e-mail address. The second condition leaves out users found only by those.
    const searched = filter.byEmail === false ? [words, wordsWith('NULL')] : [words]
    add('text', filter.text, n => searched.map(each => `${each} @@ search_query(${n})`).join(' AND '))
    return { statement: { name: '', text: searchFor(conditions.join(' AND ')) }, values }
  }
  const name = ['administered-users', filter.state ?? 'any', ...parts].join('-')
  return { statement: { name, text: `${read} WHERE ${conditions.join(' AND ')} ORDER BY u.id LIMIT $2` }, values }
}

/**
 * Finds users by words, without a name, so that it is planned for these. It isn't known beforehand how many users have a
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
    lockLapsed: async (seconds, t) => (await database.run<{ id: number }>(lockLapsed, [seconds], t))[0]?.id,
    lockUnactivated: async (id, t) => (await database.run(lockUnactivated, [id], t)).length > 0,
    async signedUpFrom(network, { afterId = 0, createdFrom, createdTo, limit, stretch }) {
      const values = [afterId, network, createdFrom ?? '-infinity', createdTo ?? 'infinity', stretch, limit]
      const [row] = await database.run<{ ids: number[]; next: number | null }>(signedUpFrom, values)
      const { ids, next } = row!
      return { ids, next: ids.length === limit ? ids.at(-1) : (next ?? undefined) }
    },
    lockForPurge: async t => (await database.run<{ id: number }>(lockForPurge, [], t))[0]?.id,
  }
}
