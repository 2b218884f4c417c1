import { type FindOptions, Op, type Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import { defineTable, fromNow, type Row, selectList } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { nicknameKey } from '../rules/names.js'
import type { Role } from '../rules/roles.js'
import { readTelephone } from '../rules/telephone.js'
import { daysUntilErasure } from './erasure.js'
import { type CallerRow, enrolled, selectUsers, type User, userAttributes } from './user.js'
import { activeUser, administratorUser, inactiveUser, presentUser } from './user-state.js'

const { createdAt, activatedAt, activatedBy, deletedAt, suspendedBeforeDeletion, unactivatedSeenAt } = userAttributes

/** Attributes of a user that only administration reads. */
const administered = { createdAt, activatedAt, activatedBy, deletedAt, suspendedBeforeDeletion, unactivatedSeenAt }

/** A user as administrators see it, including deleted users. */
export interface AdministeredUserRow extends User, Row<typeof administered> {}

/** A user of a call, as its transaction sees it. */
interface LockedUser extends AdministeredUserRow, Pick<CallerRow, 'enrolled'> {}

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
export type AdministeredUsers = ReturnType<typeof createAdministeredUsers>

/** A filter of accounts that were never activated. */
interface SignUpFilter extends Pick<UserFilter, 'afterId' | 'createdFrom' | 'createdTo' | 'limit'> {
  /** Maximum number of accounts to examine. */
  readonly stretch: number
}

const columns = sql.text(`, ${selectList(administered, 'u')}`)
/** Selects users for administration, with more columns. Every condition must state whether it includes deleted users. */
export const selectAdministered = (more = sql``) => selectUsers(sql`${columns}${more}`)

const [users, callers] = [selectAdministered(), selectAdministered(enrolled)]

const states = {
  active: activeUser.sql,
  inactive: inactiveUser.sql,
  suspended: sql`u.suspended`,
  deleted: sql`u.deleted_at IS NOT NULL`,
} as const

const wordsWith = (email: Query) =>
  sql`user_words(u.username, u.username_key, u.nickname, ${email}, u.institution, u.city)`

/** Whether a user matches a search. */
function searched(text: string, byEmail: boolean): Query {
  // A telephone number is a username in any spelling, or one word. The words of a spelling, such as an area code, match too many.
  const telephone = readTelephone(nicknameKey(text))
  const words = sql`search_query(${telephone ? text.replace(/\D/g, '') : text})`
  const byWords = (email: Query) => sql`${wordsWith(email)} @@ ${words}`
  // The index includes the words of the e-mail address. The second condition leaves out users found only by those.
  const found = sql.all(byWords(sql`u.email`), !byEmail && byWords(sql`NULL`))
  return telephone ? sql`(u.username_key = ${telephone} OR ${found})` : found
}

/** An account that signed up and was never activated: for a model, and for a statement, of a user `u`. */
const unactivated = {
  where: { unactivatedSeenAt: { [Op.not]: null }, ...inactiveUser.where },
  sql: sql`u.unactivated_seen_at IS NOT NULL AND ${inactiveUser.sql}`,
}

// A subquery for each account uses the index by subject; a join would scan the whole log.
const originIn = (table: Query, order: Query) =>
  sql`(SELECT address FROM ${table} WHERE subject_id = e.id AND action = 'user.sign-up' ORDER BY ${order} LIMIT 1)`

/** Creates the methods for the users in a database. */
export function createAdministeredUsers(database: Database) {
  const table = defineTable(database, 'users', userAttributes)
  const idsOf = async (options: FindOptions) =>
    (await table.findAll({ attributes: ['id'], ...options })).map(row => row.get().id)
  /** Locks the first user of an order whom no other transaction locks, and returns its id. */
  const lockFirst = async (order: string, where: FindOptions['where'], t: Transaction) =>
    (await idsOf({ where, order: [order], limit: 1, transaction: t, lock: t.LOCK.NO_KEY_UPDATE, skipLocked: true }))[0]
  const one = (query: Query, t?: Transaction) => first(database.run<AdministeredUserRow>(query, t))
  return {
    /** Returns the user with an id, or with the key of a username. */
    find: (wanted: { id: number } | { usernameKey: string }) =>
      one(
        'id' in wanted
          ? sql('administered-user-by-id')`${users} WHERE u.id = ${wanted.id}`
          : sql('administered-user-by-username')`${users} WHERE u.username_key = ${wanted.usernameKey}`,
      ),
    /** Returns a user, and locks its row until the end of the transaction. */
    lock: (id: number, t: Transaction) =>
      one(sql('administered-user-locked')`${users} WHERE u.id = ${id} FOR NO KEY UPDATE OF u`, t),
    /**
     * Locks a caller and the user to change, as far as they are given, until the end of the transaction. Either is undefined if
     * it doesn't exist.
     */
    async lockPair(callerId: number | undefined, targetId: number | undefined, t: Transaction) {
      // By id, so that two transactions can't deadlock.
      const ids = [...new Set([callerId, targetId])].filter(id => id !== undefined).sort((a, b) => a - b)
      for (const id of ids) {
        // Not UPDATE, which would block foreign key checks, such as those of known addresses during a sign-in. Shared locks of
        // callers permit each other: a caller may change many users at once.
        const lock = id === targetId ? t.LOCK.NO_KEY_UPDATE : t.LOCK.SHARE
        await table.findByPk(id, { attributes: ['id'], transaction: t, lock })
      }
      // Only now: a statement that waits for a lock reads the other tables as they were before the wait.
      const pair = sql('administered-user-pair')`${callers} WHERE u.id = ANY(${ids}::int[])`
      const rows = ids.length > 0 ? await database.run<LockedUser>(pair, t) : []
      const find = (id: number | undefined) => rows.find(row => row.id === id)
      return { caller: find(callerId), target: find(targetId) }
    },
    /** Returns the users that match the filter, by id. */
    list({
      afterId = 0,
      role,
      state,
      organizationId,
      createdFrom,
      createdTo,
      text,
      byEmail = true,
      limit,
    }: UserFilter) {
      const isRole = role !== undefined && sql`u.role = ${role}`
      const isMember = organizationId !== undefined && sql`u.organization_id = ${organizationId}`
      const visible = sql.all(state && states[state], state !== 'deleted' && presentUser.sql)
      // An index has the users of an organization, or of a role, in order of id. PostgreSQL would sometimes read all users by id
      // instead until enough match, for it expects them to be spread over the table. A range of one value keeps it from that.
      const within = (column: Query, value: string | number, rest: Query) => ({
        inOrder: sql`(${column}, u.id) > (${value}, ${afterId}) AND ${column} <= ${value} AND ${rest}`,
        order: sql`ORDER BY ${column}, u.id`,
      })
      const { inOrder, order } =
        organizationId !== undefined
          ? within(sql`u.organization_id`, organizationId, sql.all(visible, isRole))
          : role !== undefined
            ? within(sql`u.role`, role, visible)
            : { inOrder: sql`u.id > ${afterId} AND ${visible}`, order: sql`ORDER BY u.id` }
      if (text === undefined && !createdFrom && !createdTo)
        return database.run<AdministeredUserRow>(sql`${users} WHERE ${inOrder} ${order} LIMIT ${limit}`)
      const sought = sql.all(
        createdFrom && sql`u.created_at >= ${createdFrom}`,
        createdTo && sql`u.created_at < ${createdTo}`,
        text !== undefined && searched(text, byEmail),
      )
      const among = (rows: Query) => sql`SELECT u.id
        FROM (SELECT * FROM users u WHERE ${inOrder} ${order} LIMIT ${rows}) u WHERE ${sought} ${order} LIMIT ${limit}`
      const most = sql`least(4 * ${limit}::int, 400)`
      // The number of matches isn't known in advance: frequent words match among the first rows, less frequent ones among more
      // rows, and the index finds rare ones, whose matches it must read all to know the first. PostgreSQL (18) can't choose: it
      // estimates that 2 % of all users match a prefix unless it has statistics, and that the users of a time are spread over the
      // table; so it would scan ten million users for one match. `+ 0` keeps it from reading `far` in order of id.
      const found = sql`
        WITH near AS MATERIALIZED (${among(most)}),
        beyond AS MATERIALIZED (SELECT FROM users u WHERE ${inOrder} ${order} OFFSET ${most} LIMIT 1),
        wide AS MATERIALIZED (${among(sql`(
          SELECT CASE WHEN count(*) > 1 AND count(*) < ${limit}::int AND EXISTS (SELECT FROM beyond)
            THEN least(100 * ${limit}::int, 20000) ELSE 0 END FROM near
        )`)}), far AS MATERIALIZED (
          SELECT u.id FROM users u
          WHERE EXISTS (SELECT FROM beyond) AND greatest((SELECT count(*) FROM near), (SELECT count(*) FROM wide)) < ${limit}::int
            AND ${sql.all(sql`u.id > ${afterId}`, visible, isRole, isMember, sought)}
          ORDER BY u.id + 0 LIMIT ${limit}
        )
        ${users} WHERE u.id IN (SELECT id FROM near UNION SELECT id FROM wide UNION SELECT id FROM far ORDER BY id LIMIT ${limit})
        ORDER BY u.id`
      return database.transact(async t => {
        // PostgreSQL would start parallel workers for `far` before it knows whether any row of it is needed.
        await database.run(sql`SELECT set_config('max_parallel_workers_per_gather', '0', true)`, t)
        return database.run<AdministeredUserRow>(found, t)
      })
    },
    /**
     * Whether another active administrator exists. Parallel calls wait until the transaction ends, so that two
     * transactions can't remove the last two administrators.
     */
    async anotherAdministrator(id: number, t: Transaction) {
      await database.run(sql`SELECT pg_advisory_xact_lock(${advisoryKeys.administrators})`, t)
      return (await table.count({ where: { ...administratorUser.where, id: { [Op.ne]: id } }, transaction: t })) > 0
    },
    /**
     * The members of an organization that are suspended together (`suspend`), or resumed: those who can be and aren't guarded.
     * Returns their number, or locks at most `limit` of them behind an id, and returns their ids.
     */
    ofOrganization(organizationId: number, suspend: boolean) {
      const state = suspend ? { suspended: false } : { suspended: true, suspendedWithOrganization: true }
      const where = { organizationId, ...presentUser.where, ...state, role: { [Op.ne]: 'ROLE_ADMIN' }, desk: false }
      return {
        count: () => table.count({ where }),
        lock: (afterId: number, limit: number, t: Transaction) =>
          idsOf({
            where: { ...where, id: { [Op.gt]: afterId } },
            ...{ order: ['id'], limit, transaction: t, lock: t.LOCK.NO_KEY_UPDATE },
          }),
      }
    },
    /** Returns the ids of active administrators with an e-mail address, except the given one. */
    administratorsBut(id: number, transaction: Transaction) {
      const where = { ...administratorUser.where, email: { [Op.not]: null }, id: { [Op.ne]: id } }
      return idsOf({ where, order: ['id'], transaction })
    },
    /**
     * Of the newest 100,000 active accounts, returns how many were examined, and how many have no way back without their password:
     * no e-mail address and, where answers count, fewer than two.
     */
    async withoutWayBack(answersCount: boolean) {
      const byAnswers = sql`(SELECT count(*) FROM answers a WHERE a.user_id = u.id
        AND (answer_hash IS NOT NULL OR next_counts_at <= now())) >= 2`
      const without = sql.all(sql`email IS NULL`, answersCount && sql`NOT ${byAnswers}`)
      const [counts] = await database.run<{ examined: number; without: number }>(sql`
        SELECT count(*)::int AS examined, (count(*) FILTER (WHERE ${without}))::int AS without FROM (
          SELECT id, email FROM users u WHERE ${activeUser.sql} ORDER BY id DESC LIMIT 100000) u`)
      return counts!
    },
    /** Returns the ids of the first 11 users, including deleted ones, whose usernames look like `#id`. */
    namedLikeIds: () =>
      idsOf({ where: { usernameKey: { [Op.like]: '#%', [Op.regexp]: '^#[0-9]{1,9}$' } }, order: ['id'], limit: 11 }),
    /**
     * Locks an account that was never activated and has been unused for `seconds`, and returns its id. Skips rows that other
     * transactions lock, every ROLE_ADMIN, and suspended accounts.
     */
    lockLapsed(seconds: number, t: Transaction) {
      const lapsed = {
        ...unactivated.where,
        unactivatedSeenAt: { [Op.lt]: fromNow(-seconds) },
        role: { [Op.ne]: 'ROLE_ADMIN' },
      }
      return lockFirst('unactivatedSeenAt', lapsed, t)
    },
    /** Locks a deleted user whose retention has ended, and returns its id. Skips rows that other transactions lock. */
    lockForPurge: (t: Transaction) =>
      lockFirst('deletedAt', { deletedAt: { [Op.lt]: fromNow(-daysUntilErasure * 86_400) } }, t),
    /** Locks an account that was never activated. Returns false for other accounts and for suspended ones. */
    async lockUnactivated(id: number, t: Transaction) {
      const options = { where: { id, ...unactivated.where }, transaction: t, lock: t.LOCK.NO_KEY_UPDATE }
      return (await idsOf(options)).length > 0
    },
    /**
     * Finds accounts that were never activated and, according to the audit log, signed up from a network. Examines at most
     * `stretch` accounts, by id. Returns the ids of matches, and the id to continue after; undefined at the end.
     */
    async signedUpFrom(network: string, { afterId = 0, createdFrom, createdTo, limit, stretch }: SignUpFilter) {
      const origin = sql`coalesce(${originIn(sql`audit_events`, sql`id`)}, ${originIn(sql`audit_staged`, sql`seq`)})`
      const matching = sql.all(
        createdFrom && sql`created_at >= ${createdFrom}`,
        createdTo && sql`created_at < ${createdTo}`,
        sql`nullif(${origin}, '')::inet <<= ${network}::inet`,
      )
      const found = await database.run<{ ids: number[]; next: number | null }>(sql`
        WITH examined AS MATERIALIZED (
          SELECT id, created_at FROM users u WHERE id > ${afterId} AND ${unactivated.sql} ORDER BY id LIMIT ${stretch}
        )
        SELECT ARRAY (SELECT id FROM examined e WHERE ${matching} ORDER BY id LIMIT ${limit}) AS ids,
          (SELECT CASE WHEN count(*) = ${stretch} THEN max(id) END FROM examined) AS next`)
      const { ids, next } = found[0]!
      return { ids, next: ids.length === limit ? ids.at(-1) : (next ?? undefined) }
    },
  }
}
