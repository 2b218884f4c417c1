import { DataTypes, type Model, type Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'
import { nicknameKey } from '../names.js'
import { newActivationKey } from './organization.js'

/** The three kinds of users. */
export type Role = 'ROLE_ADMIN' | 'ROLE_INSTITUTION' | 'ROLE_CLIENT'

/** A user with its organization and provider key, as one statement reads it. Keys are sealed. */
export interface User {
  readonly id: number
  readonly username: string
  readonly usernameKey: string
  readonly nickname: string
  readonly email: string | null
  /** dd/MM/yyyy */
  readonly dateOfBirth: string | null
  readonly gender: string | null
  readonly state: string
  readonly city: string
  readonly institutionType: string | null
  readonly institution: string | null
  readonly securityQuestion: string | null
  readonly termsOfUsage: boolean
  readonly role: Role
  readonly active: boolean
  readonly suspended: boolean
  readonly tokenGeneration: number
  readonly organizationId: number | null
  readonly organizationActive: boolean | null
  readonly organizationAddress: string | null
  /** yyyy-MM-dd */
  readonly organizationCreationDate: string | null
  readonly organizationInepCode: string | null
  readonly organizationLogin: string | null
  readonly organizationName: string | null
  readonly organizationPhone: string | null
  readonly organizationResponsible: string | null
  readonly organizationType: string | null
  readonly organizationWebsite: string | null
  readonly organizationEmail: string | null
  readonly organizationKeySealed: Buffer | null
  readonly providerKeyId: number | null
  readonly providerKeySealed: Buffer | null
}

/** A user as it is stored. */
export interface UserRow {
  id: number
  username: string
  usernameKey: string
  nickname: string
  nicknameKey: string
  passwordHash: string
  email: string | null
  /** yyyy-MM-dd */
  dateOfBirth: string | null
  gender: string | null
  state: string
  city: string
  institutionType: string | null
  institution: string | null
  securityQuestion: string | null
  termsOfUsage: boolean
  role: Role
  active: boolean
  suspended: boolean
  organizationId: number | null
  tokenGeneration: number
  createdAt: Date
}

function defineUsers({ sequelize }: Database) {
  const text = DataTypes.TEXT
  const flag = DataTypes.BOOLEAN
  return sequelize.define<Model<UserRow, Partial<UserRow>> & UserRow>('users', {
    id: { type: DataTypes.INTEGER, primaryKey: true, autoIncrement: true },
    username: text,
    usernameKey: text,
    nickname: text,
    nicknameKey: text,
    passwordHash: text,
    email: text,
    dateOfBirth: DataTypes.DATEONLY,
    gender: text,
    state: text,
    city: text,
    institutionType: text,
    institution: text,
    securityQuestion: text,
    termsOfUsage: flag,
    role: text,
    active: flag,
    suspended: flag,
    organizationId: DataTypes.INTEGER,
    tokenGeneration: DataTypes.INTEGER,
    createdAt: DataTypes.DATE,
  })
}

const columns = `u.id, u.username, u.username_key AS "usernameKey", u.nickname, u.email,
  to_char(u.date_of_birth, 'DD/MM/YYYY') AS "dateOfBirth", u.gender, u.state, u.city,
  u.institution_type AS "institutionType", u.institution, u.security_question AS "securityQuestion",
  u.terms_of_usage AS "termsOfUsage", u.role, u.active, u.suspended, u.token_generation AS "tokenGeneration",
  o.id AS "organizationId", o.active AS "organizationActive", o.address AS "organizationAddress",
  to_char(o.creation_date, 'YYYY-MM-DD') AS "organizationCreationDate", o.inep_code AS "organizationInepCode",
  o.login AS "organizationLogin", o.name AS "organizationName", o.phone AS "organizationPhone",
  o.responsible AS "organizationResponsible", o.type AS "organizationType", o.website AS "organizationWebsite",
  o.email AS "organizationEmail", o.activation_key_sealed AS "organizationKeySealed",
  k.id AS "providerKeyId", k.key_sealed AS "providerKeySealed"
  FROM users u LEFT JOIN organizations o ON o.id = u.organization_id LEFT JOIN provider_keys k ON k.user_id = u.id`

const byId: Statement = { name: 'user-by-id', text: `SELECT ${columns} WHERE u.id = $1` }

const byUsername: Statement = { name: 'user-by-username', text: `SELECT ${columns} WHERE u.username_key = $1` }

const both: Statement = {
  name: 'user-both',
  text: `SELECT ${columns} WHERE u.id = $1 UNION ALL SELECT ${columns} WHERE u.username_key = $2 AND u.id <> $1`,
}

const exists: Statement = {
  name: 'user-exists',
  text: `SELECT EXISTS (SELECT FROM users WHERE username_key = $1) AS username,
    EXISTS (SELECT FROM users WHERE nickname_key = $2) AS nickname`,
}

const takenNicknames: Statement = {
  name: 'user-taken-nicknames',
  text: 'SELECT nickname_key AS key FROM users WHERE nickname_key = ANY($1)',
}

const lock: Statement = {
  name: 'user-lock',
  text: `SELECT id, username, role, active, suspended, organization_id AS "organizationId"
    FROM users WHERE username_key = $1 FOR UPDATE`,
}

const activate: Statement = {
  name: 'user-activate',
  text: `UPDATE users SET active = true, organization_id = coalesce($2, organization_id) WHERE id = $1`,
}

const provide: Statement = {
  name: 'provider-key-add',
  text: `INSERT INTO provider_keys (user_id, key_digest, key_sealed) VALUES ($1, $2, $3)
    ON CONFLICT (user_id) DO NOTHING`,
}

const changePassword: Statement = {
  name: 'user-change-password',
  text: `WITH void AS (DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = 'recovery')
    UPDATE users SET password_hash = $2, token_generation = token_generation + 1
    WHERE id = $1 AND ($3::int IS NULL OR token_generation = $3) RETURNING id, username, email`,
}

const list: Statement = {
  name: 'users-list',
  text: `SELECT ${columns} WHERE u.id > $1 AND ($2::text IS NULL OR u.role = $2)
    AND ($3::boolean IS NULL OR (u.active AND NOT u.suspended) = $3) AND ($4::boolean IS NULL OR u.suspended = $4)
    AND ($5::int IS NULL OR u.organization_id = $5)
    AND ($6::text IS NULL OR strpos(u.username_key, $6) > 0 OR strpos(u.nickname_key, $6) > 0
      OR strpos(lower(u.email), $6) > 0 OR (u.username_key LIKE 'tel:%' AND strpos(u.username_key, $7) > 0))
    ORDER BY u.id LIMIT $8`,
}

const suspend: Statement = {
  name: 'user-suspend',
  text: 'UPDATE users SET suspended = true, token_generation = token_generation + 1 WHERE id = $1',
}

const resume: Statement = { name: 'user-resume', text: 'UPDATE users SET suspended = false WHERE id = $1' }

const revokeTokens: Statement = {
  name: 'user-revoke-tokens',
  text: 'UPDATE users SET token_generation = token_generation + 1 WHERE id = $1',
}

const setEmail: Statement = {
  name: 'user-set-email',
  text: `WITH void AS (DELETE FROM mailed_keys WHERE user_id = $1 AND purpose = 'recovery')
    UPDATE users SET email = $2 WHERE id = $1`,
}

/** Which users to list: all conditions given must hold. */
export interface UserFilter {
  readonly afterId?: number
  readonly role?: Role
  /** Active and not suspended; or one of these not. */
  readonly active?: boolean
  readonly suspended?: boolean
  readonly organizationId?: number
  /** Part of username, nickname or e-mail address in comparing form, or of a telephone number in any spelling. */
  readonly search?: string
  readonly limit: number
}

/** A locked row, with what the verbs of activation and administration decide on. */
export type LockedUser = Pick<UserRow, 'id' | 'username' | 'role' | 'active' | 'suspended' | 'organizationId'>

/** What is done with users. Verbs that change a user run in the transaction of their caller. */
export interface Users {
  readonly table: ReturnType<typeof defineUsers>
  byId(id: number): Promise<User | undefined>
  byUsername(usernameKey: string): Promise<User | undefined>
  /** The caller and, when it is another, the user with the username; in one statement. */
  both(callerId: number, usernameKey: string): Promise<{ caller: User | undefined; target: User | undefined }>
  /** Whether the names are taken. */
  taken(usernameKey: string, nicknameKey: string): Promise<{ username: boolean; nickname: boolean }>
  /** Which of the nicknames are taken. */
  takenNicknames(keys: readonly string[]): Promise<Set<string>>
  /** Registers a user. Throws a unique violation of `users_username_key_key` or `users_nickname_key_key`. */
  add(row: Partial<UserRow>, t: Transaction): Promise<number>
  /** Locks a user until the end of the transaction. */
  lock(usernameKey: string, t: Transaction): Promise<LockedUser | undefined>
  /** Makes a user active, a member of the organization, and gives a ROLE_INSTITUTION its provider key. */
  activate(user: LockedUser, organizationId: number | null, t: Transaction): Promise<void>
  /**
   * Sets the password, revokes every token and voids a mailed recovery key. With `generation`, only while the token
   * generation is still that one. Returns whom it concerned, if anyone.
   */
  changePassword(
    id: number,
    passwordHash: string,
    generation: number | null,
    t: Transaction,
  ): Promise<Owner | undefined>
  /** The users who fit, by id. */
  list(filter: UserFilter): Promise<User[]>
  /** Shuts a user out and revokes every token. */
  suspend(id: number, t: Transaction): Promise<void>
  /** Ends a suspension. Tokens stay revoked. */
  resume(id: number, t: Transaction): Promise<void>
  /** Revokes every token. */
  revokeTokens(id: number, t: Transaction): Promise<void>
  /** Sets the recovery address, or removes it, and voids a recovery key mailed to the one before. */
  setEmail(id: number, email: string | null, t: Transaction): Promise<void>
}

/** Whom an e-mail about an account goes to. */
export interface Owner {
  readonly id: number
  readonly username: string
  readonly email: string | null
}

/** The users in a database. */
export function createUsers(database: Database, masterKey: MasterKey): Users {
  const table = defineUsers(database)
  return {
    table,
    byId: async id => (await database.read<User>(byId, [id]))[0],
    byUsername: async usernameKey => (await database.read<User>(byUsername, [usernameKey]))[0],
    async both(callerId, usernameKey) {
      const rows = await database.read<User>(both, [callerId, usernameKey])
      return {
        caller: rows.find(row => row.id === callerId),
        target: rows.find(row => row.usernameKey === usernameKey),
      }
    },
    async taken(usernameKey, nicknameKey) {
      const [row] = await database.read<{ username: boolean; nickname: boolean }>(exists, [usernameKey, nicknameKey])
      return row!
    },
    async takenNicknames(keys) {
      return new Set((await database.read<{ key: string }>(takenNicknames, [keys])).map(row => row.key))
    },
    async add(row, transaction) {
      return (await table.create(row, { transaction, returning: ['id'] })).id
    },
    lock: async (usernameKey, transaction) => (await database.run<LockedUser>(lock, [usernameKey], transaction))[0],
    async activate(user, organizationId, transaction) {
      await database.run(activate, [user.id, organizationId], transaction)
      if (user.role !== 'ROLE_INSTITUTION') return
      const { digest, sealed } = newActivationKey(masterKey)
      await database.run(provide, [user.id, digest, sealed], transaction)
    },
    changePassword: async (id, passwordHash, generation, transaction) =>
      (await database.run<Owner>(changePassword, [id, passwordHash, generation], transaction))[0],
    list: ({ afterId = 0, role, active, suspended, organizationId, search, limit }) => {
      const digits = search && /^[\d\s+().\p{Pd}]+$/u.test(search) ? search.replace(/\D/g, '') : ''
      const key = search === undefined ? null : nicknameKey(search)
      const values = [role ?? null, active ?? null, suspended ?? null, organizationId ?? null, key, digits || null]
      return database.run<User>(list, [afterId, ...values, limit])
    },
    async suspend(id, transaction) {
      await database.run(suspend, [id], transaction)
    },
    async resume(id, transaction) {
      await database.run(resume, [id], transaction)
    },
    async revokeTokens(id, transaction) {
      await database.run(revokeTokens, [id], transaction)
    },
    async setEmail(id, email, transaction) {
      await database.run(setEmail, [id, email], transaction)
    },
  }
}
