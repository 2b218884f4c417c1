// Users as imports find and add them: many in one statement.
import { snakeCase } from '../database/attributes.js'
import type { Database, Statement, Transaction } from '../database/connection.js'
import { nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { type ProfileValues, profile, profileFields } from '../rules/profile.js'
import { type AdministeredUserRow, readAdministered } from './administered-user.js'
import type { MasterKey } from './master-key.js'
import { activationKeyUse, newActivationKey } from './organization.js'
import { type NewUser, userAttributes, withNicknameKeys } from './user.js'

/** A user that exists, perhaps deleted. */
export interface ImportedUserRow extends AdministeredUserRow {
  readonly passwordHash: string
}

/** The secrets of a user. */
export interface UserSecrets {
  readonly id: number
  readonly passwordHash: string
  readonly providerKey: string | undefined
}

/** Finds and adds many users. */
export interface ImportedUsers {
  /** Returns the users with these ids or keys of usernames. */
  find(ids: readonly number[], usernameKeys: readonly string[]): Promise<ImportedUserRow[]>
  /** The same; locks the rows of those who aren't administrators until the end of the transaction. */
  lock(ids: readonly number[], usernameKeys: readonly string[], t: Transaction): Promise<ImportedUserRow[]>
  /**
   * Registers users, all or none with reserved ids, and returns their ids, in order: undefined where another user has the username
   * or the nickname. An active ROLE_INSTITUTION gets a provider key.
   */
  add(rows: readonly NewUser[], t: Transaction): Promise<(number | undefined)[]>
  /** Changes profiles. Rows are locked, and nicknames free. */
  edit(
    changes: readonly { readonly id: number; readonly details: Partial<ProfileValues> }[],
    t: Transaction,
  ): Promise<void>
  /** Returns the password hashes and provider keys of users, by id. */
  secrets(ids: readonly number[]): Promise<UserSecrets[]>
}

const anyOf = '(u.id = ANY($1::int[]) OR u.username_key = ANY($2::text[]))'

// Separate, because a statement that waits for a lock returns other columns as they were before. In the order of ids, so that
// two transactions can't deadlock; administrators lock one another as callers.
const lock: Statement = {
  name: 'imported-users-lock',
  text: `SELECT FROM users u WHERE ${anyOf} AND role <> 'ROLE_ADMIN' ORDER BY id FOR NO KEY UPDATE`,
}

const find: Statement = {
  name: 'imported-users-find',
  text: `${readAdministered.replace(' FROM users u', ', u.password_hash AS "passwordHash" FROM users u')}
    WHERE ${anyOf} ORDER BY u.id`,
}

/** Attributes of new users that have no default. */
const unset = ['id', 'createdAt', 'deletedAt', 'suspended', 'suspendedBeforeDeletion', 'tokenGeneration']
const attributes = Object.entries(userAttributes).filter(([name]) => !unset.includes(name))
const types: Readonly<Record<string, string>> = { DATE: 'timestamptz', DATEONLY: 'date' }

// Without a target, the conflict of each unique name counts.
const addTo = (
  columns: typeof attributes,
) => `INSERT INTO users (${columns.map(([name]) => snakeCase(name)).join(', ')})
    SELECT ${columns.map(([name]) => (name === 'activatedAt' ? 'CASE WHEN active THEN now() END' : `"${name}"`)).join(', ')}
    FROM jsonb_to_recordset($1::jsonb) AS r (${columns.map(([name, { type }]) => `"${name}" ${types[type] ?? type}`).join(', ')})
    ON CONFLICT DO NOTHING RETURNING id, username_key AS "usernameKey"`

const add: Statement = { name: 'imported-users-add', text: addTo(attributes) }

const addWithIds: Statement = {
  name: 'imported-users-add-with-ids',
  text: addTo([['id', userAttributes.id], ...attributes]),
}

const addKeys: Statement = {
  name: 'imported-users-add-keys',
  text: 'INSERT INTO provider_keys (user_id, key_digest, key_sealed) SELECT * FROM unnest($1::int[], $2::bytea[], $3::bytea[])',
}

/** Attributes that changes of profiles set. */
const edited = [
  ...profileFields.map(field => profile[field].attribute),
  ...(['nicknameKey', 'nicknameSkeleton'] as const),
]

const edit: Statement = {
  name: 'imported-users-edit',
  text: `UPDATE users u SET ${edited
    .map(name => {
      const { type } = userAttributes[name]
      const [column, value] = [snakeCase(name), `(r.details ->> '${name}')::${types[type] ?? type}`]
      return `${column} = CASE WHEN r.details ? '${name}' THEN ${value} ELSE u.${column} END`
    })
    .join(', ')}
    FROM jsonb_to_recordset($1::jsonb) AS r (id integer, details jsonb) WHERE u.id = r.id`,
}

const secrets: Statement = {
  name: 'imported-users-secrets',
  text: `SELECT u.id, u.password_hash AS "passwordHash", k.key_sealed AS sealed
    FROM users u LEFT JOIN provider_keys k ON k.user_id = u.id WHERE u.id = ANY($1::int[]) ORDER BY u.id`,
}

/** Creates the methods for the users in a database. */
export function createImportedUsers(database: Database, masterKey: MasterKey): ImportedUsers {
  return {
    find: (ids, usernameKeys) => database.run<ImportedUserRow>(find, [ids, usernameKeys]),
    async lock(ids, usernameKeys, t) {
      await database.run(lock, [ids, usernameKeys], t)
      return database.run<ImportedUserRow>(find, [ids, usernameKeys], t)
    },
    async add(rows, t) {
      const all = rows.map(row => ({
        ...row,
        active: row.active ?? false,
        usernameSkeleton: usernameSkeleton(row.username),
        nicknameSkeleton: nicknameSkeleton(row.nickname),
      }))
      const statement = rows.some(({ id }) => id !== undefined) ? addWithIds : add
      const added = await database.run<{ id: number; usernameKey: string }>(statement, [JSON.stringify(all)], t)
      const ids = new Map(added.map(({ id, usernameKey }) => [usernameKey, id]))
      const providers = rows.flatMap(({ role, active, usernameKey }) =>
        role === 'ROLE_INSTITUTION' && active ? (ids.get(usernameKey) ?? []) : [],
      )
      if (providers.length > 0) {
        const keys = providers.map(() => newActivationKey(masterKey))
        await database.run(addKeys, [providers, keys.map(({ digest }) => digest), keys.map(({ sealed }) => sealed)], t)
      }
      return rows.map(({ usernameKey }) => ids.get(usernameKey))
    },
    async edit(changes, t) {
      const all = changes.map(({ id, details }) => ({ id, details: withNicknameKeys(details) }))
      await database.run(edit, [JSON.stringify(all)], t)
    },
    async secrets(ids) {
      const rows = await database.run<{ id: number; passwordHash: string; sealed: Buffer | null }>(secrets, [ids])
      return rows.map(({ id, passwordHash, sealed }) => ({
        id,
        passwordHash,
        providerKey: sealed === null ? undefined : masterKey.open(activationKeyUse, sealed),
      }))
    },
  }
}
