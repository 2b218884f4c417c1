import type { Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import { flag, hasDefault, integer, key, nullable, type Row, selectList, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { Role } from '../rules/roles.js'
import { type CallerRow, enrolled, readUser, type User } from './user.js'

/** Attributes of a user that only administration reads. */
const administered = {
  id: hasDefault(key(integer)),
  createdAt: time,
  activatedAt: nullable(time),
  activatedBy: nullable(integer),
  deletedAt: nullable(time),
  suspendedBeforeDeletion: flag,
  unactivatedSeenAt: nullable(time),
}

/** A user as administrators see it, including deleted users. */
export interface AdministeredUserRow extends User, Row<typeof administered> {}

/** A user of a call, as its transaction sees it. */
interface LockedUser extends AdministeredUserRow, Pick<CallerRow, 'enrolled'> {}

/** Days during which a deleted user can be restored. */
export const daysUntilPurge = 30

/** A filter of users. All given conditions must hold. */
export interface UserFilter {
  readonly afterId?: number
  readonly role?: Role
  readonly state?: 'active' | 'inactive' | 'suspended' | 'deleted'
  readonly organizationId?: number
  /** Time of registration, from `createdFrom` (inclusive) to `createdTo` (exclusive). */
  readonly createdFrom?: Date
  readonly createdTo?: Date
  /** Search words. Each must be a prefix of a word of the user. */
  readonly text?: string
  /** Whether `text` may match the e-mail address; true if absent. */
  readonly byEmail?: boolean
  readonly limit: number
}

/** Finds and locks users for administration. Methods that lock run in the transaction of their caller. */
export interface AdministeredUsers {
  /** Returns the user with an id, or with the key of a username. */
  find(wanted: { id: number } | { usernameKey: string }): Promise<AdministeredUserRow | undefined>
  /**
   * Locks a caller and the user to change, as far as they are given, until the end of the transaction. Either is undefined if
   * it doesn't exist.
   */
  lockPair(
    callerId: number | undefined,
    targetId: number | undefined,
    t: Transaction,
  ): Promise<{ caller: LockedUser | undefined; target: LockedUser | undefined }>
  /** Returns a user, and locks its row until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<AdministeredUserRow | undefined>
  /** Returns the users that match the filter, by id. */
  list(filter: UserFilter): Promise<AdministeredUserRow[]>
  /**
   * Whether another active administrator exists. Parallel calls wait until the transaction ends, so that two
   * transactions can't remove the last two administrators.
   */
  anotherAdministrator(id: number, t: Transaction): Promise<boolean>
  /** Returns the ids of active administrators with an e-mail address, except the given one. */
  administratorsBut(id: number, t: Transaction): Promise<number[]>
  /** Returns the ids of the first 11 users, including deleted ones, whose usernames look like `#id`. */
  namedLikeIds(): Promise<number[]>
  /** Locks a deleted user whose retention has ended, and returns its id. Skips rows that other transactions lock. */
  lockForPurge(t: Transaction): Promise<number | undefined>
  /**
   * Locks an account that was never activated and has been unused for `seconds`, and returns its id. Skips rows that other
   * transactions lock, every ROLE_ADMIN, and suspended accounts.
   */
  lockLapsed(seconds: number, t: Transaction): Promise<number | undefined>
  /** Locks an account that was never activated. Returns false for other accounts and for suspended ones. */
  lockUnactivated(id: number, t: Transaction): Promise<boolean>
  /**
   * Finds accounts that were never activated and, according to the audit log, signed up from a network. Examines at most
   * `stretch` accounts, by id. Returns the ids of matches, and the id to continue after; undefined at the end.
   */
  signedUpFrom(network: string, filter: SignUpFilter): Promise<{ ids: number[]; next: number | undefined }>
}

/** A filter of accounts that were never activated. */
interface SignUpFilter extends Pick<UserFilter, 'afterId' | 'createdFrom' | 'createdTo' | 'limit'> {
  /** Maximum number of accounts to examine. */
  readonly stretch: number
}

const columns = selectList(administered, 'u').replace(/^u\.id, /, '')
/** Selects users for administration. Every condition must state whether it includes deleted users. */
export const readAdministered = readUser.replace(' FROM users u', `, ${columns} FROM users u`)

const byId: Statement = { name: 'administered-user-by-id', text: `${readAdministered} WHERE u.id = $1` }

const byUsername: Statement = {
  name: 'administered-user-by-username',
  text: `${readAdministered} WHERE u.username_key = $1`,
}

const locked: Statement = {
  name: 'administered-user-locked',
  text: `${readAdministered} WHERE u.id = $1 FOR NO KEY UPDATE OF u`,
}

// Shared locks permit each other: a caller may change many users at once.
const lockToCall: Statement = { name: 'user-lock-to-call', text: 'SELECT FROM users WHERE id = $1 FOR SHARE' }

// Not FOR UPDATE, which would block foreign key checks, such as those of known addresses during a sign-in.
const lockToChange: Statement = {
  name: 'user-lock-to-change',
  text: 'SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE',
}

const pair: Statement = {
  name: 'administered-user-pair',
  text: `${readAdministered.replace(' FROM users u', `, ${enrolled} FROM users u`)} WHERE u.id = ANY($1::int[])`,
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

// Serializes the transactions that can remove an administrator.
const lockAdministrators: Statement = {
  name: 'administrators-lock',
  text: `SELECT pg_advisory_xact_lock(${advisoryKeys.administrators})`,
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

// A subquery for each account uses the index by subject; a join would scan the whole log.
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

/** Returns a statement with only the conditions of the filter, so that the planner can use their indexes. */
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
  return {
    statement: { name, text: `${readAdministered} WHERE ${conditions.join(' AND ')} ORDER BY u.id LIMIT $2` },
    values,
  }
}

/**
 * Returns the SQL of a search by words. The statement is unnamed, so that PostgreSQL plans it for these values. The number of
 * matches isn't known in advance: frequent words match among the first rows, and the index finds rare words. Without this
 * split, PostgreSQL (18) estimates that 2 % of all users match any prefix, and would scan a million users for one match.
 */
function searchFor(conditions: string): string {
  return `WITH near AS MATERIALIZED (
      SELECT u.id FROM (SELECT * FROM users WHERE id > $1 ORDER BY id LIMIT least(4 * $2::int, 400)) u
      WHERE ${conditions} ORDER BY u.id LIMIT $2
    ), far AS MATERIALIZED (
      SELECT u.id FROM users u WHERE (SELECT count(*) FROM near) < $2 AND ${conditions}
    )
    ${readAdministered} WHERE u.id IN (SELECT id FROM near UNION SELECT id FROM far ORDER BY id LIMIT $2) ORDER BY u.id`
}

/** Creates the methods for the users in a database. */
export function createAdministeredUsers(database: Database): AdministeredUsers {
  const one = async (statement: Statement, value: unknown, t?: Transaction) =>
    (await database.run<AdministeredUserRow>(statement, [value], t))[0]
  return {
    find: wanted => ('id' in wanted ? one(byId, wanted.id) : one(byUsername, wanted.usernameKey)),
    lock: (id, t) => one(locked, id, t),
    async lockPair(callerId, targetId, t) {
      // By id, so that two transactions can't deadlock.
      const ids = [...new Set([callerId, targetId])].filter(id => id !== undefined).sort((a, b) => a - b)
      for (const id of ids) await database.run(id === targetId ? lockToChange : lockToCall, [id], t)
      // Only now: a statement that waits for a lock reads the other tables as they were before the wait.
      const rows = ids.length > 0 ? await database.run<LockedUser>(pair, [ids], t) : []
      const find = (id: number | undefined) => rows.find(row => row.id === id)
      return { caller: find(callerId), target: find(targetId) }
    },
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
