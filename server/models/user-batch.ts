// Users in batches: found, registered and changed, many in one statement. A single one is a batch, too: it takes the same statements.
import { snakeCase } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { sql } from '../database/sql.js'
import { nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { profile, profileFields } from '../rules/profile.js'
import { activationKeyUse, newActivationKey } from './activation-key.js'
import { type AdministeredUserRow, selectAdministered } from './administered-user.js'
import type { DataKeys } from './data-key.js'
import type { Place } from './organization.js'
import { type NewUser, userAttributes, withNicknameKeys } from './user.js'
import { guardedUser } from './user-state.js'

/** A user that exists, perhaps deleted. */
export interface BatchedUser extends AdministeredUserRow {
  readonly passwordHash: string
}

/** A user to register, with what belongs to it. */
export interface Registration<Organization = Place> extends Omit<NewUser, 'organizationId'> {
  readonly organizationId?: Organization | null
  /** The provider key of an active ROLE_INSTITUTION, by default a new one. */
  readonly providerKey?: string | undefined
  readonly answers?: readonly { readonly questionId: number; readonly answerHash: string }[]
  /** Its answer to a question that isn't in the registry. */
  readonly unmatched?:
    | { readonly question: string; readonly questionKey: string; readonly answerHash: string }
    | undefined
}

/** Attributes of a new user that its columns set. */
const unset = [
  'id',
  'emailProved',
  'createdAt',
  'deletedAt',
  'suspended',
  'suspendedBeforeDeletion',
  'tokenGeneration',
  'suspendedWithOrganization',
  'desk',
]
const added = Object.keys(userAttributes).filter(name => !unset.includes(name))
const edited = [...profileFields.map(field => profile[field].attribute), 'nicknameKey', 'nicknameSkeleton']

/** What adds users from JSON. */
const addTo = (attributes: readonly string[]) => {
  const columns = sql.text(attributes.map(snakeCase).join(', '))
  const values = sql.text(
    attributes
      .map(snakeCase)
      .map(column => (column.endsWith('_at') ? `CASE ${column} WHEN 'infinity' THEN now() ELSE ${column} END` : column))
      .join(', '),
  )
  return (name: string, rows: readonly object[]) => sql(name)`
    INSERT INTO users (${columns}) SELECT ${values} FROM jsonb_populate_recordset(NULL::users, ${JSON.stringify(rows)}::jsonb)
    RETURNING id, username_key AS "usernameKey"`
}

/** What changes users from JSON: what a change leaves out stays as it is. */
const editTo = (attributes: readonly string[]) => {
  const set = sql.text(attributes.map(name => `${snakeCase(name)} = n.${snakeCase(name)}`).join(', '))
  return (name: string, changes: readonly { readonly id: number; readonly details: object }[]) => sql(name)`
    UPDATE users u SET ${set}
    FROM jsonb_to_recordset(${JSON.stringify(changes)}::jsonb) AS r (id integer, details jsonb) JOIN users b ON b.id = r.id,
      LATERAL jsonb_populate_record(b, r.details) n WHERE n.id = u.id`
}

const [add, addWithIds, edit] = [addTo(added), addTo(['id', ...added]), editTo(edited)]

/** The users of a database, in batches. */
export type UserBatches = ReturnType<typeof createUserBatches>

/** Creates the batches of users in a database. */
export function createUserBatches(database: Database, dataKeys: DataKeys) {
  /** A user as its columns; one that becomes active does so now, unless its time says otherwise. */
  const toColumns = ({ providerKey: _, answers: __, unmatched: ___, ...row }: Registration) =>
    columnsOf({
      active: false,
      activatedAt: row.active ? now : null,
      ...row,
      usernameSkeleton: usernameSkeleton(row.username),
      nicknameSkeleton: nicknameSkeleton(row.nickname),
    })

  type Registered = Registration & { readonly id: number }

  /** Adds the provider keys of users. */
  async function addKeys(users: readonly Registered[], t: Transaction): Promise<void> {
    const owners = users.filter(({ role, active }) => role === 'ROLE_INSTITUTION' && active)
    if (owners.length === 0) return
    const keys = owners.map(({ providerKey }) => newActivationKey(dataKeys, providerKey))
    const ids = owners.map(({ id }) => id)
    const [digests, sealed] = [keys.map(({ digest }) => digest), keys.map(({ sealed }) => sealed)]
    const add = sql('user-batch-add-keys')`INSERT INTO provider_keys (user_id, key_digest, key_sealed)
      SELECT * FROM unnest(${ids}::int[], ${digests}::bytea[], ${sealed}::bytea[])`
    await database.run(add, t)
  }

  /** Adds the answers of users, and those to questions that aren't in the registry. */
  async function addAnswers(users: readonly Registered[], t: Transaction): Promise<void> {
    const answers = users.flatMap(({ id, answers = [] }) => answers.map(each => ({ user_id: id, ...columnsOf(each) })))
    const add = sql('user-batch-add-answers')`INSERT INTO answers (user_id, question_id, answer_hash)
      SELECT user_id, question_id, answer_hash FROM jsonb_populate_recordset(NULL::answers, ${JSON.stringify(answers)}::jsonb)`
    if (answers.length > 0) await database.run(add, t)
    const unmatched = users.flatMap(({ id, unmatched: of }) => (of ? [{ user_id: id, ...columnsOf(of) }] : []))
    const addUnmatched = sql('user-batch-add-unmatched')`INSERT INTO unmatched_answers
      SELECT * FROM jsonb_populate_recordset(NULL::unmatched_answers, ${JSON.stringify(unmatched)}::jsonb)`
    if (unmatched.length > 0) await database.run(addUnmatched, t)
  }

  /** Selects users by ids or keys of usernames. */
  const anyOf = (ids: readonly number[], usernameKeys: readonly string[]) =>
    sql`(u.id = ANY(${ids}::int[]) OR u.username_key = ANY(${usernameKeys}::text[]))`

  const find = (ids: readonly number[], usernameKeys: readonly string[], t?: Transaction) => {
    const read = selectAdministered(sql`, u.password_hash AS "passwordHash"`)
    const query = sql('user-batch-find')`${read} WHERE ${anyOf(ids, usernameKeys)} ORDER BY u.id`
    return database.run<BatchedUser>(query, t)
  }

  return {
    /** Returns the users with these ids or keys of usernames. */
    find: (ids: readonly number[], usernameKeys: readonly string[]) => find(ids, usernameKeys),

    /** The same; locks the rows of those who aren't guarded until the end of the transaction. */
    async lock(ids: readonly number[], usernameKeys: readonly string[], t: Transaction): Promise<BatchedUser[]> {
      // Separate, because a statement that waits for a lock returns other columns as they were before. In the order of ids, so that
      // two transactions can't deadlock; administrators lock one another as callers.
      const query = sql(
        'user-batch-lock',
      )`SELECT FROM users u WHERE ${anyOf(ids, usernameKeys)} AND NOT ${guardedUser.sql}
          ORDER BY id FOR NO KEY UPDATE`
      await database.run(query, t)
      return find(ids, usernameKeys, t)
    },

    /**
     * Registers users, all or none with reserved ids, and returns their ids, in order. Names are free: throws a violation of a
     * constraint of `users` otherwise.
     */
    async add(rows: readonly Registration[], t: Transaction): Promise<number[]> {
      const columns = rows.map(toColumns)
      const hasIds = rows.some(({ id }) => id !== undefined)
      const query = hasIds ? addWithIds('user-batch-add-with-ids', columns) : add('user-batch-add', columns)
      const stored = await database.run<{ id: number; usernameKey: string }>(query, t)
      const ids = new Map(stored.map(({ id, usernameKey }) => [usernameKey, id]))
      const registered = rows.map(row => ({ ...row, id: ids.get(row.usernameKey)! }))
      await addKeys(registered, t)
      await addAnswers(registered, t)
      return registered.map(({ id }) => id)
    },

    /** Changes profiles. Rows are locked, and nicknames free. Throws a unique violation of `users_nickname_key_key`. */
    async edit(
      changes: readonly { readonly id: number; readonly details: Parameters<typeof withNicknameKeys>[0] }[],
      t: Transaction,
    ): Promise<void> {
      const all = changes.map(({ id, details }) => ({ id, details: columnsOf(withNicknameKeys(details)) }))
      await database.run(edit('user-batch-edit', all), t)
    },

    /** Returns the password hashes and provider keys of users, by id. */
    async secrets(ids: readonly number[]) {
      const query = sql('user-batch-secrets')`SELECT u.id, u.password_hash AS "passwordHash", k.key_sealed AS sealed
        FROM users u LEFT JOIN provider_keys k ON k.user_id = u.id
        WHERE u.id = ANY(${ids}::int[]) ORDER BY u.id`
      const rows = await database.run<{ id: number; passwordHash: string; sealed: Buffer | null }>(query)
      return rows.map(({ id, passwordHash, sealed }) => ({
        id,
        passwordHash,
        providerKey: sealed === null ? undefined : dataKeys.open(activationKeyUse, sealed),
      }))
    },
  }
}

/** Stands for the time of the transaction in a new user. */
export const now = 'infinity' as unknown as Date

function columnsOf(values: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [snakeCase(name), value]))
}
