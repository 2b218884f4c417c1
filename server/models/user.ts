import { DataTypes, literal, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  column,
  day,
  defineTable,
  flag,
  integer,
  type Joined,
  key,
  type NewRow,
  nullable,
  preset,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import { nicknameSkeleton, shareScript, usernameSkeleton } from '../lookalikes.js'
import type { MasterKey } from '../masterkey.js'
import { nicknameKey, usernameKey } from '../names.js'
import type { Role } from '../roles.js'
import type { MailedKeys } from './mailedkey.js'
import { newActivationKey, shownOfOrganization } from './organization.js'

/** What users tell of themselves at sign-up and find in their record. */
const profile = {
  username: text,
  nickname: text,
  /** Written as yyyy-MM-dd, read as dd/MM/yyyy. */
  dateOfBirth: nullable(day('DD/MM/YYYY')),
  gender: nullable(text),
  state: text,
  city: text,
  institutionType: nullable(text),
  institution: nullable(text),
  securityQuestion: nullable(text),
  termsOfUsage: flag,
  role: attribute<Role>(DataTypes.TEXT),
}

/** What is read of a user. */
const shown = {
  id: preset(key(integer)),
  ...profile,
  usernameKey: text,
  email: nullable(text),
  active: preset(flag),
  suspended: preset(flag),
  tokenGeneration: preset(integer),
  organizationId: preset(nullable(integer)),
}

const userAttributes = {
  ...shown,
  nicknameKey: text,
  passwordHash: text,
  createdAt: preset(time),
  /** What the names look like; null until `renewKeys` comes by. */
  usernameSkeleton: preset(nullable(text)),
  nicknameSkeleton: preset(nullable(text)),
}

/** What is read of a user's provider key; sealed. */
const shownKey = { id: preset(key(integer)), sealed: column('key_sealed', bytes) }

const keyAttributes = { ...shownKey, userId: integer, digest: column('key_digest', bytes) }

/** What users tell of themselves. An attribute more has to be asked for at sign-up and shown in the record. */
export interface Profile extends Row<typeof profile> {}

/** A user with its organization and provider key, as one statement reads it. Keys are sealed. */
export interface User
  extends Row<typeof shown>,
    Joined<'organization', typeof shownOfOrganization>,
    Joined<'providerKey', typeof shownKey> {}

/** A user to be registered: what is null has to be said, so that nothing is forgotten. */
export type NewUser = NewRow<typeof userAttributes>

/** Whatever may be null of a user, as null: for one who filled in no form. */
export const emptyUser = Object.fromEntries(
  Object.entries(userAttributes).flatMap(([name, { nullable }]) => (nullable ? [[name, null]] : [])),
) as { readonly [K in keyof NewUser as null extends NewUser[K] ? K : never]: null }

const columns = [
  selectList(shown, 'u'),
  selectList(shownOfOrganization, 'o', 'organization'),
  selectList(shownKey, 'k', 'providerKey'),
].join(', ')

const read = `SELECT ${columns} FROM users u LEFT JOIN organizations o ON o.id = u.organization_id
  LEFT JOIN provider_keys k ON k.user_id = u.id`

const byId: Statement = { name: 'user-by-id', text: `${read} WHERE u.id = $1` }

const byUsername: Statement = { name: 'user-by-username', text: `${read} WHERE u.username_key = $1` }

// A key that was retired signs nobody in, whatever a process remembers of it.
const asCaller = `${read} WHERE u.id = $1
  AND EXISTS (SELECT FROM signing_keys s WHERE s.kid = $2 AND (s.verifies_until IS NULL OR s.verifies_until > now()))`

const caller: Statement = { name: 'user-caller', text: asCaller }

const callerWith: Statement = {
  name: 'user-caller-with',
  text: `${asCaller} UNION ALL ${read} WHERE u.username_key = $3 AND u.id <> $1`,
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

/** Whoever holds these is the only one to add a user whose names look like that. */
const lockLooks: Statement = {
  name: 'user-lock-looks',
  text: 'SELECT pg_advisory_xact_lock(7264002, hashtext($1)), pg_advisory_xact_lock(7264003, hashtext($2))',
}

/** More names than this that look alike are too many for one more. */
const mostAlike = 100

const alike: Statement = {
  name: 'user-alike',
  text: `SELECT ARRAY (SELECT username_key FROM users WHERE username_skeleton = $1 LIMIT ${mostAlike}) AS usernames,
    ARRAY (SELECT nickname_key FROM users WHERE nickname_skeleton = $2 LIMIT ${mostAlike}) AS nicknames`,
}

const withoutSkeleton: Statement = {
  name: 'users-without-skeleton',
  text: `SELECT id, username, username_key AS "usernameKey", nickname FROM users WHERE username_skeleton IS NULL
    ORDER BY id LIMIT 500 FOR NO KEY UPDATE SKIP LOCKED`,
}

const setSkeletons: Statement = {
  name: 'users-set-skeletons',
  text: `UPDATE users u SET username_skeleton = given.username, nickname_skeleton = given.nickname
    FROM unnest($1::int[], $2::text[], $3::text[]) AS given (id, username, nickname) WHERE u.id = given.id`,
}

const setUsernameKey: Statement = {
  name: 'user-set-username-key',
  text: `UPDATE users SET username_key = $2 WHERE id = $1 AND NOT EXISTS (SELECT FROM users WHERE username_key = $2)`,
}

const list: Statement = {
  name: 'users-list',
  text: `${read} WHERE u.id > $1 AND ($2::text IS NULL OR u.role = $2)
    AND ($3::boolean IS NULL OR (u.active AND NOT u.suspended) = $3) AND ($4::boolean IS NULL OR u.suspended = $4)
    AND ($5::int IS NULL OR u.organization_id = $5)
    AND ($6::text IS NULL OR strpos(u.username_key, $6) > 0 OR strpos(u.nickname_key, $6) > 0
      OR strpos(lower(u.email), $6) > 0 OR (u.username_key LIKE 'tel:%' AND strpos(u.username_key, $7) > 0))
    ORDER BY u.id LIMIT $8`,
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

/** What the verbs of activation and administration decide on. */
const decisive = ['id', 'username', 'role', 'active', 'suspended', 'organizationId'] as const

/** A locked row. */
export type LockedUser = Pick<User, (typeof decisive)[number]>

/** Whom an e-mail about an account goes to. */
export type Owner = Pick<User, 'id' | 'username' | 'email'>

/** What is done with users. Verbs that change a user run in the transaction of their caller. */
export interface Users {
  byId(id: number): Promise<User | undefined>
  byUsername(usernameKey: string): Promise<User | undefined>
  /** The holder of a token that was signed with this key; undefined when the key holds no longer. */
  asCaller(id: number, kid: string): Promise<User | undefined>
  /** The same and, when it is another, the user with the username; in one statement. */
  asCallerWith(
    id: number,
    kid: string,
    usernameKey: string,
  ): Promise<{ caller: User | undefined; target: User | undefined }>
  /** Locks a user's row until the end of the transaction; whether a token of this generation is good for it. */
  holdSession(id: number, tokenGeneration: number, t: Transaction): Promise<boolean>
  /** Whether the names are taken. */
  taken(usernameKey: string, nicknameKey: string): Promise<{ username: boolean; nickname: boolean }>
  /** Which of the nicknames are taken. */
  takenNicknames(keys: readonly string[]): Promise<Set<string>>
  /**
   * Whether the names look like taken ones in other letters (see lookalikes.ts). Within a transaction, one that doesn't
   * now won't before its end: ask there once more before adding a user.
   */
  lookalikes(
    names: { readonly username: string; readonly nickname: string },
    t?: Transaction,
  ): Promise<{ username: boolean; nickname: boolean }>
  /**
   * Gives users from before the present rules their skeletons and the username's key of today; where somebody else has
   * that key already, it stays with them. Several may do it at once.
   */
  renewKeys(): Promise<void>
  /** Registers a user. Throws a unique violation of `users_username_key_key` or `users_nickname_key_key`. */
  add(row: NewUser, t: Transaction): Promise<number>
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
  /** Replaces the hash of a password by another of the same, unless it was changed meanwhile. */
  renewPassword(id: number, before: string, after: string): Promise<void>
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

/** Whether a key is written in other letters than one of those that look like it. */
function isAlike(key: string, others: readonly string[]): boolean {
  return others.length === mostAlike || others.some(other => !shareScript(key, other))
}

/** Revokes every token, as tokens name the generation that they are of. */
const nextGeneration = { tokenGeneration: literal('token_generation + 1') }

/** The users in a database. */
export function createUsers(database: Database, masterKey: MasterKey, mailedKeys: Pick<MailedKeys, 'void'>): Users {
  const users = defineTable(database, 'users', userAttributes)
  const providerKeys = defineTable(database, 'provider_keys', keyAttributes)
  return {
    byId: async id => (await database.read<User>(byId, [id]))[0],
    byUsername: async usernameKey => (await database.read<User>(byUsername, [usernameKey]))[0],
    asCaller: async (id, kid) => (await database.read<User>(caller, [id, kid]))[0],
    async holdSession(id, tokenGeneration, transaction) {
      const where = { id, tokenGeneration, suspended: false }
      const lock = transaction.LOCK.SHARE
      return (await users.findOne({ attributes: ['id'], where, transaction, lock })) !== null
    },
    async asCallerWith(id, kid, usernameKey) {
      const rows = await database.read<User>(callerWith, [id, kid, usernameKey])
      return {
        caller: rows.find(row => row.id === id),
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
    async lookalikes({ username, nickname }, transaction) {
      const skeletons = [usernameSkeleton(username), nicknameSkeleton(nickname)]
      if (transaction) await database.run(lockLooks, skeletons, transaction)
      const [row] = await database.run<{ usernames: string[]; nicknames: string[] }>(alike, skeletons, transaction)
      const { usernames, nicknames } = row!
      return {
        username: isAlike(usernameKey(username), usernames),
        nickname: isAlike(nicknameKey(nickname), nicknames),
      }
    },
    async renewKeys() {
      const renewSome = async (t: Transaction) => {
        const rows = await database.run<Row<typeof userAttributes>>(withoutSkeleton, [], t)
        const [ids, names] = [rows.map(row => row.id), rows.map(row => usernameSkeleton(row.username))]
        await database.run(setSkeletons, [ids, names, rows.map(row => nicknameSkeleton(row.nickname))], t)
        for (const { id, username, usernameKey: key } of rows)
          if (usernameKey(username) !== key) await database.run(setUsernameKey, [id, usernameKey(username)], t)
        return rows.length
      }
      while ((await database.transact(renewSome)) > 0);
    },
    async add(row, transaction) {
      const { username, nickname } = row
      const skeletons = { usernameSkeleton: usernameSkeleton(username), nicknameSkeleton: nicknameSkeleton(nickname) }
      const added = await users.create({ ...row, ...skeletons }, { transaction, returning: ['id'] })
      return added.get('id') as number
    },
    async lock(usernameKey, transaction) {
      // No stronger lock: rows that refer to a user, such as known addresses, are checked while a sign-in holds others.
      const lock = transaction.LOCK.NO_KEY_UPDATE
      return (await users.findOne({ attributes: [...decisive], where: { usernameKey }, transaction, lock }))?.get()
    },
    async activate({ id, role }, organizationId, transaction) {
      const member = organizationId === null ? {} : { organizationId }
      await users.update({ active: true, ...member }, { where: { id }, transaction })
      if (role !== 'ROLE_INSTITUTION') return
      const { digest, sealed } = newActivationKey(masterKey)
      // Whoever has one keeps it.
      await providerKeys.bulkCreate([{ userId: id, digest, sealed }], { ignoreDuplicates: true, transaction })
    },
    async changePassword(id, passwordHash, generation, transaction) {
      const where = generation === null ? { id } : { id, tokenGeneration: generation }
      const [, [owner]] = await users.update(
        { passwordHash, ...nextGeneration },
        { where, transaction, returning: ['id', 'username', 'email'] },
      )
      if (owner) await mailedKeys.void(id, 'recovery', transaction)
      return owner?.get()
    },
    async renewPassword(id, before, after) {
      await users.update({ passwordHash: after }, { where: { id, passwordHash: before } })
    },
    list: ({ afterId = 0, role, active, suspended, organizationId, search, limit }) => {
      const digits = search && /^[\d\s+().\p{Pd}]+$/u.test(search) ? search.replace(/\D/g, '') : ''
      const key = search === undefined ? null : nicknameKey(search)
      const values = [role ?? null, active ?? null, suspended ?? null, organizationId ?? null, key, digits || null]
      return database.run<User>(list, [afterId, ...values, limit])
    },
    async suspend(id, transaction) {
      await users.update({ suspended: true, ...nextGeneration }, { where: { id }, transaction })
    },
    async resume(id, transaction) {
      await users.update({ suspended: false }, { where: { id }, transaction })
    },
    async revokeTokens(id, transaction) {
      await users.update(nextGeneration, { where: { id }, transaction })
    },
    async setEmail(id, email, transaction) {
      await users.update({ email }, { where: { id }, transaction })
      await mailedKeys.void(id, 'recovery', transaction)
    },
  }
}
