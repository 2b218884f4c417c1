// Users in batches: found, registered and changed, many in one statement. A single one is a batch, too.
import { snakeCase } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { profile, profileFields } from '../rules/profile.js'
import { type AdministeredUserRow, readAdministered } from './administered-user.js'
import type { MasterKey } from './master-key.js'
import { activationKeyUse, newActivationKey, type Place } from './organization.js'
import { type NewUser, userAttributes, withNicknameKeys } from './user.js'

/** A user that exists, perhaps deleted. */
export interface BatchedUser extends AdministeredUserRow {
  readonly passwordHash: string
}

/** A user to register, with what belongs to it. */
export interface Registration extends NewUser {
  readonly organizationId?: Place | null
  /** Its provider keys in another system, the first of which its record shows; by default a ROLE_INSTITUTION gets one when active. */
  readonly providerKeys?: readonly { readonly id: number; readonly key: string }[]
  readonly answers?: readonly { readonly questionId: number; readonly answerHash: string }[]
  /** Its answer to a question that isn't in the registry. */
  readonly unmatched?: { readonly question: string; readonly questionKey: string; readonly answerHash: string }
}

/** Attributes of a new user that its columns set. */
const unset = ['id', 'createdAt', 'deletedAt', 'suspended', 'suspendedBeforeDeletion', 'tokenGeneration']
const added = Object.keys(userAttributes).filter(name => !unset.includes(name))
const edited = [...profileFields.map(field => profile[field].attribute), 'nicknameKey', 'nicknameSkeleton']

const anyOf = '(u.id = ANY($1::int[]) OR u.username_key = ANY($2::text[]))'

// Separate, because a statement that waits for a lock returns other columns as they were before. In the order of ids, so that
// two transactions can't deadlock; administrators lock one another as callers.
const lock: Statement = {
  name: 'user-batch-lock',
  text: `SELECT FROM users u WHERE ${anyOf} AND role <> 'ROLE_ADMIN' ORDER BY id FOR NO KEY UPDATE`,
}

const find: Statement = {
  name: 'user-batch-find',
  text: `${readAdministered.replace(' FROM users u', ', u.password_hash AS "passwordHash" FROM users u')}
    WHERE ${anyOf} ORDER BY u.id`,
}

// Without a target, the conflict of each unique name counts.
const addTo = (attributes: readonly string[]) => {
  const columns = attributes.map(snakeCase).join(', ')
  return `INSERT INTO users (${columns}) SELECT ${columns} FROM jsonb_populate_recordset(NULL::users, $1::jsonb)
    ON CONFLICT DO NOTHING RETURNING id, username_key AS "usernameKey"`
}

const add: Statement = { name: 'user-batch-add', text: addTo(added) }

const addWithIds: Statement = { name: 'user-batch-add-with-ids', text: addTo(['id', ...added]) }

// What a change leaves out stays as it is.
const editTo = (attributes: readonly string[]) => `UPDATE users u
  SET ${attributes.map(name => `${snakeCase(name)} = n.${snakeCase(name)}`).join(', ')}
  FROM jsonb_to_recordset($1::jsonb) AS r (id integer, details jsonb) JOIN users b ON b.id = r.id,
    LATERAL jsonb_populate_record(b, r.details) n WHERE n.id = u.id`

const edit: Statement = { name: 'user-batch-edit', text: editTo(edited) }

const replace: Statement = { name: 'user-batch-replace', text: editTo(added) }

const addKeys: Statement = {
  name: 'user-batch-add-keys',
  text: `INSERT INTO provider_keys (id, user_id, key_digest, key_sealed, additional)
    SELECT coalesce(id, nextval(pg_get_serial_sequence('provider_keys', 'id'))), user_id, key_digest, key_sealed, additional
    FROM unnest($1::int[], $2::int[], $3::bytea[], $4::bytea[], $5::boolean[])
      AS k (id, user_id, key_digest, key_sealed, additional)
    ON CONFLICT (user_id) WHERE NOT additional DO NOTHING`,
}

const addAnswers: Statement = {
  name: 'user-batch-add-answers',
  text: `INSERT INTO answers (user_id, question_id, answer_hash) SELECT * FROM unnest($1::int[], $2::int[], $3::text[])`,
}

const addUnmatched: Statement = {
  name: 'user-batch-add-unmatched',
  text: `INSERT INTO unmatched_answers (user_id, question, question_key, answer_hash)
    SELECT * FROM unnest($1::int[], $2::text[], $3::text[], $4::text[])`,
}

const removeAnswers: Statement = {
  name: 'user-batch-remove-answers',
  text: `WITH unmatched AS (DELETE FROM unmatched_answers WHERE user_id = ANY($1::int[]))
    DELETE FROM answers WHERE user_id = ANY($1::int[])`,
}

const removeKeys: Statement = {
  name: 'user-batch-remove-keys',
  text: 'DELETE FROM provider_keys WHERE user_id = ANY($1::int[])',
}

const secrets: Statement = {
  name: 'user-batch-secrets',
  text: `SELECT u.id, u.password_hash AS "passwordHash", k.key_sealed AS sealed
    FROM users u LEFT JOIN provider_keys k ON k.user_id = u.id AND NOT k.additional WHERE u.id = ANY($1::int[]) ORDER BY u.id`,
}

/** The users of a database, in batches. */
export type UserBatches = ReturnType<typeof createUserBatches>

/** Creates the batches of users in a database. */
export function createUserBatches(database: Database, masterKey: MasterKey) {
  /** A user as its columns; one that becomes active does so now, unless its time says otherwise. */
  const toColumns = ({ providerKeys: _, answers: __, unmatched: ___, ...row }: Registration) =>
    columnsOf({
      active: false,
      activatedAt: row.active ? now : null,
      ...row,
      usernameSkeleton: usernameSkeleton(row.username),
      nicknameSkeleton: nicknameSkeleton(row.nickname),
    })

  /** Adds what belongs to users. */
  async function addParts(users: readonly (Registration & { readonly id: number })[], t: Transaction): Promise<void> {
    const keys = users.flatMap(({ id: userId, role, active, providerKeys = [] }) => {
      const own: readonly { id?: number; key?: string }[] = role === 'ROLE_INSTITUTION' && active ? [{}] : []
      const given = providerKeys.length > 0 ? providerKeys : own
      return given.map(({ id = null, key }, index) => ({ id, key, userId, additional: index > 0 }))
    })
    if (keys.length > 0) {
      const stored = keys.map(({ key }) => newActivationKey(masterKey, key))
      const [digests, sealed] = [stored.map(({ digest }) => digest), stored.map(({ sealed }) => sealed)]
      const [ids, owners] = [keys.map(({ id }) => id), keys.map(({ userId }) => userId)]
      await database.run(addKeys, [ids, owners, digests, sealed, keys.map(({ additional }) => additional)], t)
    }
    const answers = users.flatMap(({ id, answers = [] }) => answers.map(each => [id, each.questionId, each.answerHash]))
    if (answers.length > 0) await database.run(addAnswers, transpose(answers), t)
    const unmatched = users.flatMap(({ id, unmatched: of }) =>
      of ? [[id, of.question, of.questionKey, of.answerHash]] : [],
    )
    if (unmatched.length > 0) await database.run(addUnmatched, transpose(unmatched), t)
  }

  return {
    /** Returns the users with these ids or keys of usernames. */
    find: (ids: readonly number[], usernameKeys: readonly string[]) =>
      database.run<BatchedUser>(find, [ids, usernameKeys]),

    /** The same; locks the rows of those who aren't administrators until the end of the transaction. */
    async lock(ids: readonly number[], usernameKeys: readonly string[], t: Transaction): Promise<BatchedUser[]> {
      await database.run(lock, [ids, usernameKeys], t)
      return database.run<BatchedUser>(find, [ids, usernameKeys], t)
    },

    /**
     * Registers users, all or none with reserved ids, and returns their ids, in order: undefined where another user has the username
     * or the nickname.
     */
    async add(rows: readonly Registration[], t: Transaction): Promise<(number | undefined)[]> {
      const statement = rows.some(({ id }) => id !== undefined) ? addWithIds : add
      const stored = await database.run<{ id: number; usernameKey: string }>(
        statement,
        [JSON.stringify(rows.map(toColumns))],
        t,
      )
      const ids = new Map(stored.map(({ id, usernameKey }) => [usernameKey, id]))
      await addParts(
        rows.flatMap(row => (ids.has(row.usernameKey) ? { ...row, id: ids.get(row.usernameKey)! } : [])),
        t,
      )
      return rows.map(({ usernameKey }) => ids.get(usernameKey))
    },

    /**
     * Replaces users as a whole, but for their states. Provider keys stay where none are given, and end with their role. The rows
     * are locked.
     */
    async replace(rows: readonly (Registration & { readonly id: number })[], t: Transaction): Promise<void> {
      const changes = rows.map(row => ({ id: row.id, details: toColumns(row) }))
      await database.run(replace, [JSON.stringify(changes)], t)
      await database.run(removeAnswers, [rows.map(({ id }) => id)], t)
      const withoutKeys = rows.filter(
        ({ role, providerKeys = [] }) => providerKeys.length > 0 || role !== 'ROLE_INSTITUTION',
      )
      await database.run(removeKeys, [withoutKeys.map(({ id }) => id)], t)
      await addParts(rows, t)
    },

    /** Changes profiles. Rows are locked, and nicknames free. Throws a unique violation of `users_nickname_key_key`. */
    async edit(
      changes: readonly { readonly id: number; readonly details: Parameters<typeof withNicknameKeys>[0] }[],
      t: Transaction,
    ): Promise<void> {
      const all = changes.map(({ id, details }) => ({ id, details: columnsOf(withNicknameKeys(details)) }))
      await database.run(edit, [JSON.stringify(all)], t)
    },

    /** Returns the password hashes and provider keys of users, by id. */
    async secrets(ids: readonly number[]) {
      const rows = await database.run<{ id: number; passwordHash: string; sealed: Buffer | null }>(secrets, [ids])
      return rows.map(({ id, passwordHash, sealed }) => ({
        id,
        passwordHash,
        providerKey: sealed === null ? undefined : masterKey.open(activationKeyUse, sealed),
      }))
    },
  }
}

/** The time of the transaction, as PostgreSQL reads a time. */
export const now = 'now' as unknown as Date

function columnsOf(values: object): Record<string, unknown> {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [snakeCase(name), value]))
}

/** Rows as a list for each column. */
function transpose(rows: readonly (readonly unknown[])[]): unknown[][] {
  return rows[0]!.map((_, index) => rows.map(row => row[index]))
}
