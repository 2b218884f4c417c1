import DataLoader from 'dataloader'
import type { Transaction } from 'sequelize'
import {
  type Attribute,
  attribute,
  bytes,
  column,
  day,
  defineTable,
  expression,
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
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import { nicknameSkeleton, usernameSkeleton } from '../rules/look-alikes.js'
import { emailKey, nicknameKey, usernameKey } from '../rules/names.js'
import { profile as fields, type ProfileValues } from '../rules/profile.js'
import type { Role } from '../rules/roles.js'
import { newActivationKey } from './activation-key.js'
import type { Answers } from './answer.js'
import type { Attempts, CounterKeys } from './attempt.js'
import type { DataKeys } from './data-key.js'
import type { Emails, NotifiedChange } from './email.js'
import type { FormerUsernames } from './former-username.js'
import type { MailedKeys, Purpose } from './mailed-key.js'
import { createNameConflicts } from './name-conflicts.js'
import { type Place, shownOfOrganization } from './organization.js'
import { verifies } from './signing-key.js'
import { guardedUser, presentUser } from './user-state.js'

/** Attributes of a profile. A day is written as yyyy-MM-dd, and read as dd/MM/yyyy. */
const profile = Object.fromEntries(
  Object.values(fields).map(({ attribute, required, kind }) => {
    const type = kind === 'day' ? day('DD/MM/YYYY') : text
    return [attribute, required ? type : nullable(type)]
  }),
) as { readonly [A in keyof ProfileValues]: Attribute<ProfileValues[A], false> }

/** Attributes of a user that queries read. */
const shown = {
  id: hasDefault(key(integer)),
  username: text,
  usernameKey: text,
  ...profile,
  securityQuestion: nullable(text),
  termsOfUsage: flag,
  role: attribute<Role>('TEXT'),
  email: nullable(text),
  /** Whether a code or a key that was mailed to the address came back. */
  emailProved: hasDefault(flag),
  active: hasDefault(flag),
  suspended: hasDefault(flag),
  /** Whether Administration opens to the user what it opens to holders of desk. */
  desk: hasDefault(flag),
  tokenGeneration: hasDefault(integer),
  organizationId: hasDefault(nullable(integer)),
  /**
   * When a session set the current password. Null when the owner set it with more than a token (at sign-up, or by a session
   * that a mailed key had just begun) or an administrator set it with SetPassword.
   */
  passwordUpdatedAt: hasDefault(nullable(time)),
  /** Sessions by answers or mailed key that began before have ended, but for that with the id `recoveryKept`. Whole seconds. */
  recoveryFrom: hasDefault(nullable(time)),
  recoveryKept: hasDefault(nullable(text)),
}

/** All attributes of a user. */
export const userAttributes = {
  ...shown,
  nicknameKey: text,
  /** Empty while the user has no password: it compares with none. */
  passwordHash: text,
  createdAt: hasDefault(time),
  /** When the user was activated; null while it is inactive. */
  activatedAt: hasDefault(nullable(time)),
  /**
   * The user whose provider key activated it, or the administrator who did. Null for a key of the organization, and on the
   * database itself.
   */
  activatedBy: hasDefault(nullable(integer)),
  /** When the user was deleted. A deleted user is suspended, and visible to administration only. */
  deletedAt: hasDefault(nullable(time)),
  suspendedBeforeDeletion: hasDefault(flag),
  /** Whether it was suspended together with the other members of its organization. */
  suspendedWithOrganization: hasDefault(flag),
  /**
   * Time of the last sign-in, or else of the sign-up, of an account that signed up and was never activated. Null for all
   * other accounts: those that were activated, and those that administrators, installations and imports created.
   */
  unactivatedSeenAt: hasDefault(nullable(time)),
  /** Skeletons of the names: names that look alike have the same skeleton. */
  usernameSkeleton: text,
  nicknameSkeleton: text,
}

/** Attributes of a user's provider key that queries read. The key is sealed. */
const shownKey = { id: hasDefault(key(integer)), sealed: column('key_sealed', bytes) }

const keyAttributes = {
  ...shownKey,
  userId: integer,
  digest: column('key_digest', bytes),
}

/** A user with its organization and provider key, read by one statement. Keys are sealed. */
export interface User
  extends Row<typeof shown>,
    Joined<'organization', typeof shownOfOrganization>,
    Joined<'providerKey', typeof shownKey> {}

/** A user to register. Nullable attributes are required, so that a caller can't omit one by mistake. */
export type NewUser = Omit<NewRow<typeof userAttributes>, 'usernameSkeleton' | 'nicknameSkeleton'>

const columns = sql.text(
  [
    selectList(shown, 'u'),
    selectList(shownOfOrganization, 'o', 'organization'),
    selectList(shownKey, 'k', 'providerKey'),
  ].join(', '),
)

/** Selects users, with more columns. Every condition must state whether it includes deleted users. */
export const selectUsers = (more = sql``) => sql`SELECT ${columns}${more} FROM users u
  LEFT JOIN organizations o ON o.id = u.organization_id
  LEFT JOIN provider_keys k ON k.user_id = u.id`

/** Another column: whether a guarded user has one-time codes. */
export const enrolled = sql`, ${guardedUser.sql}
  AND coalesce((SELECT c.secret_sealed IS NOT NULL FROM totp_secrets c WHERE c.user_id = u.id), false) AS enrolled`

const [users, callers] = [selectUsers(), selectUsers(enrolled)]

/** The user of a call. */
export interface CallerRow extends User {
  /** Whether the user is guarded, and has one-time codes. */
  readonly enrolled: boolean
}

/** What identifies the user of a token: its id, and the id of the key that signed the token. */
interface Token {
  readonly id: number
  readonly kid: string
}

/** Whether no process of 1.0.0 runs any more, which can't read sealed hashes. */
const sealsHashes = sql`EXISTS (SELECT FROM migrations WHERE name = '0009-moved-in-hashes.sql')`

/** The recipient of e-mails about an account. */
type Owner = Pick<User, 'id' | 'username' | 'email'>

/**
 * Reads and changes users. Methods that change a user run in the transaction of their caller. A method that revokes tokens
 * also voids mailed recovery keys and codes for a new e-mail address, including those in queued e-mails. A method that
 * changes permissions also voids mailed activation keys.
 */
export type Users = ReturnType<typeof createUsers>

/** Changes of a profile with the keys of a new nickname. */
export function withNicknameKeys(details: Partial<ProfileValues>) {
  const { nickname } = details
  if (nickname === undefined) return details
  return { ...details, nicknameKey: nicknameKey(nickname), nicknameSkeleton: nicknameSkeleton(nickname) }
}

/** Purposes of mailed keys that sign in to an account or change its e-mail address. */
const accessPurposes: readonly Purpose[] = ['recovery', 'issued', 'email']

/** All purposes: the above, and keys that activate the account in an organization. */
const allPurposes: readonly Purpose[] = [...accessPurposes, 'activation']

/** Creates the users in a database. */
export function createUsers(
  database: Database,
  dataKeys: DataKeys,
  mailedKeys: Pick<MailedKeys, 'void'>,
  emails: Pick<Emails, 'notify' | 'discard'>,
  attempts: Pick<Attempts, 'rename' | 'clear' | 'forgetNetworks'>,
  counterKeys: Pick<CounterKeys, 'account'>,
  formerUsernames: Pick<FormerUsernames, 'reserve'>,
  answers: Pick<Answers, 'clear'>,
) {
  const table = defineTable(database, 'users', userAttributes)
  const providerKeys = defineTable(database, 'provider_keys', keyAttributes)

  /** Reads the users of all tokens that arrive in the same turn of the event loop by one statement. */
  const tokenHolders = new DataLoader<Token, CallerRow | undefined>(
    async tokens => {
      const [ids, kids] = [tokens.map(({ id }) => id), tokens.map(({ kid }) => kid)]
      const rows = await database.read<CallerRow & Token>(sql('user-callers')`
        ${selectUsers(sql`${enrolled}, t.kid`)}
        JOIN unnest(${ids}::int[], ${kids}::text[]) AS t (id, kid) ON t.id = u.id
        JOIN signing_keys s ON s.kid = t.kid AND ${verifies}`)
      return tokens.map(({ id, kid }) => rows.find(row => row.id === id && row.kid === kid))
    },
    { cache: false, batchScheduleFn: setImmediate },
  )

  async function voidKeys(id: number, purposes: readonly Purpose[], t: Transaction): Promise<void> {
    // Discards queued e-mails first: the sender has either stored the key of an e-mail already, or doesn't find the e-mail.
    await emails.discard(id, purposes, t)
    await mailedKeys.void(id, purposes, t)
  }

  /** Changes a user, revokes every token by a new token generation, and voids keys of these purposes. */
  async function revoke(
    id: number,
    changes: Partial<Row<typeof userAttributes>>,
    purposes: readonly Purpose[],
    transaction: Transaction,
  ): Promise<void> {
    const next = expression<number>('token_generation + 1')
    await table.update({ ...changes, tokenGeneration: next }, { where: { id }, transaction })
    await voidKeys(id, purposes, transaction)
  }

  /** Restarts the expiry of an account that was never activated. */
  const restartExpiry = () => ({
    unactivatedSeenAt: expression<Date>('CASE WHEN unactivated_seen_at IS NOT NULL THEN now() END'),
  })

  async function addProviderKey(userId: number, transaction: Transaction): Promise<void> {
    const { digest, sealed } = newActivationKey(dataKeys)
    // An existing provider key doesn't change.
    await providerKeys.bulkCreate([{ userId, digest, sealed }], { ignoreDuplicates: true, transaction })
  }

  return {
    ...createNameConflicts(database),
    byId: (id: number) =>
      first(database.read<User>(sql('user-by-id')`${users} WHERE u.id = ${id} AND ${presentUser.sql}`)),
    byUsername: (usernameKey: string) =>
      first(
        database.read<User>(sql('user-by-username')`
          ${users} WHERE u.username_key = ${usernameKey} AND ${presentUser.sql}`),
      ),
    /** Returns the users that a proved address belongs to, by id, at most 20. */
    async byProvedAddress(email: string) {
      const found = await database.run<User>(sql('users-by-proved-address')`
        ${users} WHERE lower(u.email) IN (lower(${email}), ${emailKey(email)}) AND u.email_proved AND ${presentUser.sql}
        ORDER BY u.id LIMIT 20`)
      return found.filter(user => emailKey(user.email!) === emailKey(email))
    },
    /** Returns the users that exist, in no order. A user whose id and key are both given is returned twice. */
    findMany: (ids: readonly number[], usernameKeys: readonly string[]) =>
      database.run<User>(sql('users-find-many')`
        ${users} WHERE u.id = ANY(${ids}::int[]) AND ${presentUser.sql}
        UNION ALL ${users} WHERE u.username_key = ANY(${usernameKeys}::text[]) AND ${presentUser.sql}`),
    /** Returns the usernames of those of the users that exist, by id. */
    async usernames(ids: readonly number[]): Promise<Map<number, string>> {
      const rows = await table.findAll({ attributes: ['id', 'username'], where: { id: [...ids] } })
      return new Map(rows.map(row => [row.get().id, row.get().username]))
    },
    /** Returns the number of users of an organization, including deleted users. */
    members: (organizationId: number, transaction?: Transaction) =>
      table.count({ where: { organizationId }, transaction }),
    /** Returns the numbers of users of organizations, including deleted users, by id, in one statement. */
    async membersOfEach(organizationIds: readonly number[]): Promise<Map<number, number>> {
      const rows = await database.run<{ id: number; members: number }>(
        sql('users-members-of-each')`SELECT organization_id AS id, count(*)::int AS members FROM users
          WHERE organization_id = ANY(${organizationIds}::int[]) GROUP BY organization_id`,
      )
      return new Map(rows.map(({ id, members }) => [id, members]))
    },
    /** Returns the user of a token signed with this key; undefined when the key is retired or the user doesn't exist. */
    findTokenHolder: (id: number, kid: string) => tokenHolders.load({ id, kid }),
    /** Returns the user of a token that this key sealed; undefined when the key is retired or the user doesn't exist. */
    findSessionHolder: (id: number, keyId: string) =>
      first(
        database.read<CallerRow & Pick<Row<typeof userAttributes>, 'deletedAt'>>(sql('user-session-holder')`
          ${selectUsers(sql`${enrolled}, u.deleted_at AS "deletedAt"`)}
          WHERE u.id = ${id} AND EXISTS (SELECT FROM sealing_keys s WHERE s.id = ${keyId})`),
      ),
    /** Returns the user of a token as above and, in the same statement, the user with the username. */
    async findTokenHolderAndUser(id: number, kid: string, usernameKey: string) {
      const rows = await database.read<CallerRow>(sql('user-caller-with')`
        ${callers} WHERE u.id = ${id} AND EXISTS (SELECT FROM signing_keys s WHERE s.kid = ${kid} AND ${verifies})
        UNION ALL ${callers} WHERE u.username_key = ${usernameKey} AND u.id <> ${id} AND ${presentUser.sql}`)
      return {
        caller: rows.find(row => row.id === id),
        target: rows.find(row => row.usernameKey === usernameKey),
      }
    },
    /**
     * Activates a user, adds it to the organization, and creates the provider key of a ROLE_INSTITUTION. `by` is the user whose
     * provider key it used, or the administrator.
     */
    async activate(
      { id, role }: Pick<User, 'id' | 'role'>,
      organizationId: Place | null,
      transaction: Transaction,
      activatedBy: number | null = null,
    ) {
      const member = organizationId === null ? {} : { organizationId }
      const activated = { active: true, unactivatedSeenAt: null, activatedAt: fromNow(0), activatedBy }
      await table.update({ ...activated, ...member }, { where: { id }, transaction })
      if (role === 'ROLE_INSTITUTION') await addProviderKey(id, transaction)
    },
    /**
     * Makes a user inactive and a member of no organization, ends its provider key, revokes every token and voids mailed
     * activation keys.
     */
    async deactivate(id: number, transaction: Transaction) {
      const inactive = { active: false, organizationId: null, activatedAt: null, activatedBy: null }
      await revoke(id, inactive, allPurposes, transaction)
    },
    /**
     * Replaces the provider key of a user, and notifies its owner of the client address of the change, in the language `locale`.
     * The former key doesn't work any more. False if the user has none. The caller must lock the user's row.
     */
    async rotateProviderKey(user: Pick<Owner, 'id' | 'email'>, change: NotifiedChange, transaction: Transaction) {
      const { digest, sealed } = newActivationKey(dataKeys)
      const [rotated] = await providerKeys.update({ digest, sealed }, { where: { userId: user.id }, transaction })
      if (rotated === 0) return false
      await emails.notify('provider-key-rotated', user, change, transaction)
      return true
    },
    /**
     * Sets the password, clears the failures of the former one, and revokes every token. `byToken` means that no more than a
     * session sets it, which sets `passwordUpdatedAt`. The waiting answers that `session` saved stay.
     */
    async changePassword(
      { id, usernameKey }: Pick<User, 'id' | 'usernameKey'>,
      passwordHash: string,
      { byToken, session }: { readonly byToken: boolean; readonly session?: string },
      t: Transaction,
    ) {
      await attempts.clear(
        (['password', 'administration'] as const).map(proof => counterKeys.account(proof, usernameKey)),
        t,
      )
      // The session whose waiting answers stay, for the trigger of `answers`.
      if (session !== undefined)
        await database.run(sql`SELECT set_config('auth.keeps_answers_of', ${session}, true)`, t)
      await revoke(id, { passwordHash, passwordUpdatedAt: byToken ? fromNow(0) : null }, accessPurposes, t)
    },
    /** Replaces the hash of a password with a new hash of the same password, unless the password has changed. */
    async renewPassword(id: number, before: string, after: string) {
      await table.update({ passwordHash: after }, { where: { id, passwordHash: before } })
    },
    /**
     * Returns whether hashes of other systems are to be sealed: not before `migrate up --contract`.
     */
    async sealsHashes(t: Transaction) {
      const read = sql`SELECT ${sealsHashes} AS seals`
      const [row] = await database.run<{ seals: boolean }>(read, t)
      return row!.seals
    },
    /** Returns at most `limit` hashes of other systems that aren't sealed, though they are to be. */
    bareHashes: (limit: number) =>
      database.run<{ id: number; hash: string }>(sql`SELECT id, password_hash AS hash FROM users
        WHERE password_hash LIKE '$2%' AND ${sealsHashes} LIMIT ${limit}`),
    /**
     * Blocks the sign-in of a user, alone or with the other members of its organization, revokes every token and voids mailed
     * activation keys.
     */
    async suspend(id: number, transaction: Transaction, suspendedWithOrganization = false) {
      await revoke(id, { suspended: true, suspendedWithOrganization }, allPurposes, transaction)
    },
    /** Ends a suspension. Tokens stay revoked. */
    async resume(id: number, transaction: Transaction) {
      await table.update({ suspended: false, ...restartExpiry() }, { where: { id }, transaction })
    },
    /** Gives a user desk, or takes it. Its issued key ends: holders get none. */
    async setDesk(id: number, desk: boolean, transaction: Transaction) {
      await table.update({ desk }, { where: { id }, transaction })
      await mailedKeys.void(id, ['issued'], transaction)
    },
    /** Revokes every token. */
    async revokeTokens(id: number, transaction: Transaction) {
      await revoke(id, {}, accessPurposes, transaction)
    },
    /**
     * Sets or removes the recovery address and voids mailed recovery keys and codes for a new address. Ends recovery sessions,
     * but for `session`, which confirmed it. Notifies the former address of the client address of the change, in its language.
     * The caller must lock the user's row.
     */
    async setEmail(
      { id, email: former }: Pick<Owner, 'id' | 'email'>,
      to: string | null,
      { session, ...change }: NotifiedChange & { readonly session?: string },
      transaction: Transaction,
    ) {
      // The session that goes on, for the trigger of `users`.
      if (session !== undefined)
        await database.run(sql`SELECT set_config('auth.keeps_recovery', ${session}, true)`, transaction)
      await table.update({ email: to, ...(to !== former && { emailProved: false }) }, { where: { id }, transaction })
      await voidKeys(id, accessPurposes, transaction)
      if (former === null) return
      await emails.notify('email-changed', { id, email: former }, { ...change, to: former }, transaction)
    },
    /**
     * Records that the e-mail address is the user's, by a key that was mailed there, for the first time. Someone else may have
     * signed up in the owner's name, so whatever was set before ends: the password, all answers, the known networks, mailed keys
     * and codes, and every token, and with them the devices. Returns the new token generation. The caller must lock the
     * user's row.
     */
    async proveByKey({ id, tokenGeneration }: Pick<User, 'id' | 'tokenGeneration'>, transaction: Transaction) {
      // First the rows that others may hold while they wait for the user's.
      await voidKeys(id, accessPurposes, transaction)
      await answers.clear(id, transaction)
      // Not NO KEY UPDATE: a sign-in that has compared the former password or answers waits, and then finds the generation changed.
      await table.findByPk(id, { attributes: ['id'], transaction, lock: transaction.LOCK.UPDATE })
      await attempts.forgetNetworks(id, transaction)
      const next = {
        emailProved: true,
        passwordHash: '',
        passwordUpdatedAt: null,
        tokenGeneration: tokenGeneration + 1,
      }
      await table.update(next, { where: { id }, transaction })
      return next.tokenGeneration
    },
    /** Records that the e-mail address is the user's: a code that was mailed there came back. The caller must lock the user's row. */
    async proveEmail(id: number, transaction: Transaction) {
      await table.update({ emailProved: true }, { where: { id, emailProved: false }, transaction })
    },
    /**
     * Changes the username, reserves the former one for the user for 30 days, and notifies the user as `setEmail` does. Counts of failed
     * sign-ins remain. Throws a unique violation of `users_username_key_key`.
     */
    async rename(id: number, username: string, change: NotifiedChange, transaction: Transaction) {
      const attributes = ['username', 'usernameKey', 'email']
      const before = (await table.findByPk(id, { attributes, transaction }))!.get()
      if (before.username === username) return
      const next = { username, usernameKey: usernameKey(username), usernameSkeleton: usernameSkeleton(username) }
      if (next.usernameKey !== before.usernameKey) {
        await attempts.rename(id, before.usernameKey, next.usernameKey, transaction)
        await formerUsernames.reserve(id, next.usernameKey, transaction)
      }
      await table.update(next, { where: { id }, transaction })
      await emails.notify('username-changed', { id, email: before.email }, change, transaction)
    },
    /**
     * Changes the role of a user, ends its provider key, revokes every token and voids mailed activation keys. Only an active
     * ROLE_INSTITUTION has a provider key.
     */
    async setRole({ id, active }: Pick<User, 'id' | 'active'>, role: Role, transaction: Transaction) {
      await revoke(id, { role }, allPurposes, transaction)
      if (role === 'ROLE_INSTITUTION' && active) await addProviderKey(id, transaction)
    },
    /**
     * Sets or removes the organization of a user, revokes every token and voids mailed activation keys. An active
     * ROLE_INSTITUTION gets another provider key. Notifies the user as `setEmail` does.
     */
    async setOrganization(
      user: Pick<User, 'id' | 'active' | 'role' | 'email'>,
      organizationId: Place | null,
      change: NotifiedChange,
      transaction: Transaction,
    ) {
      const { id, active, role } = user
      await revoke(id, { organizationId }, allPurposes, transaction)
      const hasKey = active && role === 'ROLE_INSTITUTION'
      if (hasKey) await addProviderKey(id, transaction)
      await emails.notify(hasKey ? 'provider-key-rotated' : 'organization-changed', user, change, transaction)
    },
    /** Hides a user, blocks its sign-in, revokes every token and voids mailed activation keys. */
    async delete(id: number, transaction: Transaction) {
      const before = { suspendedBeforeDeletion: expression<boolean>('suspended') }
      await revoke(id, { deletedAt: fromNow(0), ...before, suspended: true }, allPurposes, transaction)
    },
    /** Restores a deleted user as it was. Tokens stay revoked. */
    async undelete(id: number, transaction: Transaction) {
      const before = expression<boolean>('suspended_before_deletion')
      await table.update({ deletedAt: null, suspended: before, ...restartExpiry() }, { where: { id }, transaction })
    },
  }
}
