import type { Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  column,
  day,
  defineTable,
  flag,
  fromNow,
  hasDefault,
  integer,
  type Joined,
  key,
  type NewRow,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import { orm } from '../database/sequelize.js'
import { nicknameSkeleton, shareScript, usernameSkeleton } from '../rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../rules/names.js'
import type { Role } from '../rules/roles.js'
import type { Emails } from './email.js'
import type { MailedKeys, Purpose } from './mailed-key.js'
import type { MasterKey } from './master-key.js'
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
  role: attribute<Role>('TEXT'),
}

/** What is read of a user. */
const shown = {
  id: hasDefault(key(integer)),
  ...profile,
  usernameKey: text,
  email: nullable(text),
  active: hasDefault(flag),
  suspended: hasDefault(flag),
  tokenGeneration: hasDefault(integer),
  organizationId: hasDefault(nullable(integer)),
  /**
   * When a session set the present password. Null when its owner proved more than a token (a session by a mailed key, the
   * sign-up) or an administrator set it with SetPassword.
   */
  passwordUpdatedAt: hasDefault(nullable(time)),
}

const userAttributes = {
  ...shown,
  nicknameKey: text,
  passwordHash: text,
  createdAt: hasDefault(time),
  /** Deleted ones are suspended, and found by administration alone. */
  deletedAt: hasDefault(nullable(time)),
  suspendedBeforeDeletion: hasDefault(flag),
  /**
   * When the last sign-in was, or the sign-up, of an account that its user signed up and that was never activated. Null for
   * all others: those activated once, and those that administrators, installations and imports made.
   */
  unactivatedSeenAt: hasDefault(nullable(time)),
  /** What the names look like. */
  usernameSkeleton: text,
  nicknameSkeleton: text,
}

/** What is read of a user's provider key; sealed. */
const shownKey = { id: hasDefault(key(integer)), sealed: column('key_sealed', bytes) }

const keyAttributes = { ...shownKey, userId: integer, digest: column('key_digest', bytes) }

/** What users tell of themselves. An attribute more has to be asked for at sign-up and shown in the record. */
export interface Profile extends Row<typeof profile> {}

/** A user with its organization and provider key, as one statement reads it. Keys are sealed. */
export interface User
  extends Row<typeof shown>,
    Joined<'organization', typeof shownOfOrganization>,
    Joined<'providerKey', typeof shownKey> {}

/** A user to be registered: what is null has to be said, so that nothing is forgotten. */
export type NewUser = Omit<NewRow<typeof userAttributes>, 'usernameSkeleton' | 'nicknameSkeleton'>

/** Whatever may be null of a user, as null: for one who filled in no form. */
export const emptyUser = Object.fromEntries(
  Object.entries(userAttributes).flatMap(([name, { nullable, hasDefault }]) =>
    nullable && !hasDefault ? [[name, null]] : [],
  ),
) as {
  readonly [K in keyof NewUser as Record<never, never> extends Pick<NewUser, K>
    ? never
    : null extends NewUser[K]
      ? K
      : never]: null
}

const columns = [
  selectList(shown, 'u'),
  selectList(shownOfOrganization, 'o', 'organization'),
  selectList(shownKey, 'k', 'providerKey'),
].join(', ')

/** Reads users; whoever says which must say what of deleted ones. */
export const readUser = `SELECT ${columns} FROM users u LEFT JOIN organizations o ON o.id = u.organization_id
  LEFT JOIN provider_keys k ON k.user_id = u.id`

const byId: Statement = { name: 'user-by-id', text: `${readUser} WHERE u.id = $1 AND u.deleted_at IS NULL` }

const byUsername: Statement = {
  name: 'user-by-username',
  text: `${readUser} WHERE u.username_key = $1 AND u.deleted_at IS NULL`,
}

const enrolled = `u.role = 'ROLE_ADMIN'
  AND coalesce((SELECT c.secret_sealed IS NOT NULL FROM totp_secrets c WHERE c.user_id = u.id), false) AS enrolled`

const readCaller = readUser.replace(' FROM users u', `, ${enrolled} FROM users u`)

// A key that was retired signs nobody in, whatever a process remembers of it.
const findTokenHolder = `${readCaller} WHERE u.id = $1
  AND EXISTS (SELECT FROM signing_keys s WHERE s.kid = $2 AND (s.verifies_until IS NULL OR s.verifies_until > now()))`

const caller: Statement = { name: 'user-caller', text: findTokenHolder }

const callerWith: Statement = {
  name: 'user-caller-with',
  text: `${findTokenHolder} UNION ALL ${readCaller} WHERE u.username_key = $3 AND u.id <> $1 AND u.deleted_at IS NULL`,
}

const findMany: Statement = {
  name: 'users-find-many',
  text: `${readUser} WHERE u.id = ANY($1::int[]) AND u.deleted_at IS NULL
    UNION ALL ${readUser} WHERE u.username_key = ANY($2::text[]) AND u.deleted_at IS NULL`,
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

const deciding = `SELECT u.id, u.username, u.email, u.role, u.active, u.suspended, u.organization_id AS "organizationId",
    u.token_generation AS "tokenGeneration", u.deleted_at IS NOT NULL AS deleted, ${enrolled} FROM users u WHERE u.id = $1`

/** By how strong a lock: whether others may hold the row as it is meanwhile. */
const lockDeciding = {
  share: { name: 'user-deciding-share', text: `${deciding} FOR SHARE OF u` },
  change: { name: 'user-deciding-change', text: `${deciding} FOR NO KEY UPDATE OF u` },
} as const satisfies Record<string, Statement>

const administratorAmong: Statement = {
  name: 'users-administrator-among',
  text: `SELECT FROM users WHERE id = ANY($1::int[]) AND role = 'ROLE_ADMIN' LIMIT 1`,
}

/** What the verbs of activation and administration decide on. */
const lockColumns = ['id', 'username', 'role', 'active', 'suspended', 'organizationId'] as const

/** A locked row. */
export type LockedUser = Pick<User, (typeof lockColumns)[number]>

/** A user who calls. */
export interface CallerRow extends User {
  /** Whether it is a ROLE_ADMIN with one-time codes. */
  readonly enrolled: boolean
}

/** What decides whether somebody may do something, as it is in a transaction. */
export type DecidingUser = LockedUser &
  Pick<CallerRow, 'email' | 'tokenGeneration' | 'enrolled'> & { readonly deleted: boolean }

/** Whom an e-mail about an account goes to. */
export type Owner = Pick<User, 'id' | 'username' | 'email'>

/**
 * What is done with users. Verbs that change a user run in the transaction of their caller. Whatever revokes tokens voids
 * mailed recovery keys and codes for another e-mail address, those that wait to be sent included; what takes away more
 * than tokens voids mailed activation keys, too.
 */
export interface Users {
  byId(id: number): Promise<User | undefined>
  byUsername(usernameKey: string): Promise<User | undefined>
  /** Those of the users who are there, in no order; who has an id and a key given is there twice. */
  findMany(ids: readonly number[], usernameKeys: readonly string[]): Promise<User[]>
  /** The holder of a token that was signed with this key; undefined when the key holds no longer. */
  findTokenHolder(id: number, kid: string): Promise<CallerRow | undefined>
  /** The same and, when it is another, the user with the username; in one statement. */
  findTokenHolderAndUser(
    id: number,
    kid: string,
    usernameKey: string,
  ): Promise<{ caller: CallerRow | undefined; target: User | undefined }>
  /**
   * Locks a caller, and the user that is to be changed, until the end of the transaction, in an order in which two never
   * wait for each other. Either is undefined when it is gone.
   */
  lockPair(
    callerId: number,
    targetId: number | undefined,
    t: Transaction,
  ): Promise<{ caller: DecidingUser | undefined; target: DecidingUser | undefined }>
  /** Whether one of the users is a ROLE_ADMIN. */
  includeAdministrator(ids: readonly number[], t: Transaction): Promise<boolean>
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
  /** Registers a user. Throws a unique violation of `users_username_key_key` or `users_nickname_key_key`. */
  add(row: NewUser, t: Transaction): Promise<number>
  /** Locks a user until the end of the transaction. */
  lock(usernameKey: string, t: Transaction): Promise<LockedUser | undefined>
  /** Makes a user active, a member of the organization, and gives a ROLE_INSTITUTION its provider key. */
  activate(user: LockedUser, organizationId: number | null, t: Transaction): Promise<void>
  /**
   * Sets the password and revokes every token. `byToken`: a session that did not begin by a mailed key sets it, which is
   * remembered as `passwordUpdatedAt`.
   */
  changePassword(id: number, passwordHash: string, by: { readonly byToken: boolean }, t: Transaction): Promise<void>
  /** Replaces the hash of a password by another of the same, unless it was changed meanwhile. */
  renewPassword(id: number, before: string, after: string): Promise<void>
  /** Shuts a user out, revokes every token and voids mailed activation keys. */
  suspend(id: number, t: Transaction): Promise<void>
  /** Ends a suspension. Tokens stay revoked. */
  resume(id: number, t: Transaction): Promise<void>
  /** Revokes every token. */
  revokeTokens(id: number, t: Transaction): Promise<void>
  /**
   * Sets the recovery address, or removes it, voids what was mailed on the way to another, and tells the former address,
   * in a language, from which client address it was changed. The caller holds the user's row.
   */
  setEmail(
    { id, email }: Pick<Owner, 'id' | 'email'>,
    to: string | null,
    change: { readonly address: string; readonly locale: string },
    t: Transaction,
  ): Promise<void>
  /** Changes what is told of a user. Throws a unique violation of `users_nickname_key_key`. */
  edit(id: number, details: UserDetails, t: Transaction): Promise<void>
  /**
   * Gives a user another role, revokes every token and voids mailed activation keys. Only a ROLE_INSTITUTION has a
   * provider key, once it is active.
   */
  setRole(user: Pick<User, 'id' | 'active'>, role: Role, t: Transaction): Promise<void>
  /** Makes a user a member of an organization, or of none, revokes every token and voids mailed activation keys. */
  setOrganization(id: number, organizationId: number | null, t: Transaction): Promise<void>
  /** Hides a user, shuts it out, revokes every token and voids mailed activation keys. */
  delete(id: number, t: Transaction): Promise<void>
  /** Brings a deleted user back as it was. Tokens stay revoked. */
  undelete(id: number, t: Transaction): Promise<void>
}

/** What can be changed of a user; a nickname with its key. */
export type UserDetails = Partial<
  Omit<Profile, 'username' | 'securityQuestion' | 'termsOfUsage' | 'role' | 'nickname'>
> & { readonly name?: { readonly nickname: string; readonly nicknameKey: string } }

/** Whether a key is written in other letters than one of those that look like it. */
function isAlike(key: string, others: readonly string[]): boolean {
  return others.length === mostAlike || others.some(other => !shareScript(key, other))
}

/** Keys that open an account, or lead to its e-mail address. */
const waysIn: readonly Purpose[] = ['recovery', 'email']

/** The same, and keys that make the account active in an organization. */
const everyKey: readonly Purpose[] = [...waysIn, 'activation']

/** The users in a database. */
export function createUsers(
  database: Database,
  masterKey: MasterKey,
  mailedKeys: Pick<MailedKeys, 'void'>,
  emails: Pick<Emails, 'add' | 'discard'>,
): Users {
  const users = defineTable(database, 'users', userAttributes)
  const providerKeys = defineTable(database, 'provider_keys', keyAttributes)

  async function voidKeys(id: number, purposes: readonly Purpose[], t: Transaction): Promise<void> {
    // Queued e-mails go first: the sender either has stored the key of one by now, or finds none to make a key for.
    await emails.discard(id, purposes, t)
    await mailedKeys.void(id, purposes, t)
  }

  /** Changes a user and revokes every token, as tokens name the generation that they are of, and keys of these purposes. */
  async function revoke(
    id: number,
    changes: Partial<Row<typeof userAttributes>>,
    purposes: readonly Purpose[],
    transaction: Transaction,
  ): Promise<void> {
    const next = orm().literal('token_generation + 1') as unknown as number
    await users().update({ ...changes, tokenGeneration: next }, { where: { id }, transaction })
    await voidKeys(id, purposes, transaction)
  }

  /** Has the time begin anew after which an account that was never activated is erased. */
  const seenAgain = () => ({
    unactivatedSeenAt: orm().literal('CASE WHEN unactivated_seen_at IS NOT NULL THEN now() END') as unknown as Date,
  })

  async function giveProviderKey(userId: number, transaction: Transaction): Promise<void> {
    const { digest, sealed } = newActivationKey(masterKey)
    // Whoever has one keeps it.
    await providerKeys().bulkCreate([{ userId, digest, sealed }], { ignoreDuplicates: true, transaction })
  }

  return {
    byId: async id => (await database.read<User>(byId, [id]))[0],
    byUsername: async usernameKey => (await database.read<User>(byUsername, [usernameKey]))[0],
    findMany: (ids, usernameKeys) => database.run<User>(findMany, [ids, usernameKeys]),
    findTokenHolder: async (id, kid) => (await database.read<CallerRow>(caller, [id, kid]))[0],
    async lockPair(callerId, targetId, t) {
      const lock = async (id: number, strength: keyof typeof lockDeciding) =>
        (await database.run<DecidingUser>(lockDeciding[strength], [id], t))[0]
      if (targetId === undefined) return { caller: await lock(callerId, 'share'), target: undefined }
      if (targetId === callerId) {
        const both = await lock(callerId, 'change')
        return { caller: both, target: both }
      }
      const before = targetId < callerId ? await lock(targetId, 'change') : undefined
      const caller = await lock(callerId, 'share')
      return { caller, target: targetId < callerId ? before : await lock(targetId, 'change') }
    },
    includeAdministrator: async (ids, t) =>
      ids.length > 0 && (await database.run(administratorAmong, [ids], t)).length > 0,
    async findTokenHolderAndUser(id, kid, usernameKey) {
      const rows = await database.read<CallerRow>(callerWith, [id, kid, usernameKey])
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
    async add(row, transaction) {
      const { username, nickname } = row
      const skeletons = { usernameSkeleton: usernameSkeleton(username), nicknameSkeleton: nicknameSkeleton(nickname) }
      const added = await users().create({ ...row, ...skeletons }, { transaction, returning: ['id'] })
      return added.get('id') as number
    },
    async lock(usernameKey, transaction) {
      // No stronger lock: rows that refer to a user, such as known addresses, are checked while a sign-in holds others.
      const lock = transaction.LOCK.NO_KEY_UPDATE
      return (
        await users().findOne({
          attributes: [...lockColumns],
          where: { usernameKey, deletedAt: null },
          transaction,
          lock,
        })
      )?.get()
    },
    async activate({ id, role }, organizationId, transaction) {
      const member = organizationId === null ? {} : { organizationId }
      await users().update({ active: true, unactivatedSeenAt: null, ...member }, { where: { id }, transaction })
      if (role === 'ROLE_INSTITUTION') await giveProviderKey(id, transaction)
    },
    changePassword: (id, passwordHash, { byToken }, t) =>
      revoke(id, { passwordHash, passwordUpdatedAt: byToken ? fromNow(0) : null }, waysIn, t),
    async renewPassword(id, before, after) {
      await users().update({ passwordHash: after }, { where: { id, passwordHash: before } })
    },
    async suspend(id, transaction) {
      await revoke(id, { suspended: true }, everyKey, transaction)
    },
    async resume(id, transaction) {
      await users().update({ suspended: false, ...seenAgain() }, { where: { id }, transaction })
    },
    async revokeTokens(id, transaction) {
      await revoke(id, {}, waysIn, transaction)
    },
    async setEmail({ id, email: former }, to, { address, locale }, transaction) {
      await users().update({ email: to }, { where: { id }, transaction })
      await voidKeys(id, waysIn, transaction)
      if (former === null) return
      const parameters = { userId: id, at: new Date().toISOString(), address, to: former }
      await emails.add({ kind: 'email-changed', parameters }, locale, transaction)
    },
    async edit(id, { name, ...details }, transaction) {
      const named = name && { ...name, nicknameSkeleton: nicknameSkeleton(name.nickname) }
      await users().update({ ...details, ...named }, { where: { id }, transaction })
    },
    async setRole({ id, active }, role, transaction) {
      await revoke(id, { role }, everyKey, transaction)
      if (role !== 'ROLE_INSTITUTION') await providerKeys().destroy({ where: { userId: id }, transaction })
      else if (active) await giveProviderKey(id, transaction)
    },
    async setOrganization(id, organizationId, transaction) {
      await revoke(id, { organizationId }, everyKey, transaction)
    },
    async delete(id, transaction) {
      const before = { suspendedBeforeDeletion: orm().col('suspended') as unknown as boolean }
      await revoke(id, { deletedAt: fromNow(0), ...before, suspended: true }, everyKey, transaction)
    },
    async undelete(id, transaction) {
      const before = orm().col('suspended_before_deletion') as unknown as boolean
      await users().update({ deletedAt: null, suspended: before, ...seenAgain() }, { where: { id }, transaction })
    },
  }
}
