/**
 * The registrar. This folder owns how users and organizations are added and changed, one or many: their forms (form.ts), their
 * names (names.ts), their accounts (here and in organizations.ts), and who becomes a member (membership.ts). Sign-up, own
 * changes, administration, imports, the older database and the installation use it. They know who may change what, and record
 * the events; the models store.
 */
import type { Transaction } from '../database/connection.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { Emails, NotifiedChange } from '../models/email.js'
import type { Place } from '../models/organization.js'
import type { User, Users } from '../models/user.js'
import type { Registration, UserBatches } from '../models/user-batch.js'
import type { FieldViolation } from '../requests/refusal.js'
import { formatDateOfBirth } from '../rules/dates.js'
import { attributesOf, type ProfileField, type ProfileValues, profile } from '../rules/profile.js'
import type { FormTexts } from './form.js'
import { nameViolations, Taken } from './names.js'

/** A change of a user, whose row is locked. What is undefined stays. */
export interface UserChange {
  readonly user: AdministeredUserRow
  readonly username?: string | undefined
  readonly details?: Partial<ProfileValues>
  readonly email?: string | null | undefined
  /** The new organization; null for none. */
  readonly place?: Place | null | undefined
  readonly activate?: boolean
  readonly passwordHash?: string | undefined
}

/** Who changes users: what notices to their owners say, and the id of the user who does it. */
export interface By {
  readonly notice: NotifiedChange
  readonly id?: number | undefined
}

/** Returns those of the fields whose values differ from the user's. */
export function changedFields(user: User, fields: readonly ProfileField[], texts: FormTexts): ProfileField[] {
  const shown = { ...texts, dateofborn: texts.dateofborn && formatDateOfBirth(texts.dateofborn) }
  return fields.filter(field => (shown[field] ?? null) !== user[profile[field].attribute])
}

/** The registrar of users. */
export type Registrar = ReturnType<typeof createRegistrar>

/** Creates the registrar of the users of a database. */
export function createRegistrar({
  users,
  userBatches,
  emails,
}: {
  readonly users: Users
  readonly userBatches: UserBatches
  readonly emails: Pick<Emails, 'notify'>
}) {
  async function applyTo({ user, ...change }: UserChange, { notice, id: byId }: By, t: Transaction): Promise<void> {
    const { id, role } = user
    const { username, email, place, activate = false, passwordHash } = change
    // All notices go to the address of before.
    const by = email !== undefined && user.email !== null ? { ...notice, to: user.email } : notice
    // The address comes first: the sender holds an e-mail, which this discards, while it waits for a user with another name.
    if (email !== undefined) await users.setEmail(user, email, by, t)
    if (username !== undefined) await users.rename(id, username, by, t)
    // Access through the former organization ends; a user without one joins it when it is activated.
    if (place !== undefined && (user.active || user.organizationId !== null || !activate))
      await users.setOrganization(user, place, by, t)
    if (activate) await users.activate(user, place ?? null, t, byId)
    if (passwordHash !== undefined) await users.changePassword(id, passwordHash, { byToken: false }, t)
    // administration/security-notices.ts notifies an administrator.
    if (role === 'ROLE_ADMIN') return
    if (activate && !user.active) await emails.notify('account-activated', user, by, t)
    if (passwordHash !== undefined) await emails.notify('password-changed', user, by, t)
  }

  /**
   * Registers and changes users, in order, and returns their ids, or which of their names others have: of such a user nothing is
   * stored.
   */
  async function apply(
    entries: readonly (Registration | UserChange)[],
    by: By | undefined,
    t: Transaction,
  ): Promise<(number | readonly FieldViolation[])[]> {
    const problems = await namesOf(entries, t)
    const free = entries.filter((_, index) => problems[index]!.length === 0)
    const added = free.filter((entry): entry is Registration => !('user' in entry))
    const ids = added.length > 0 ? await userBatches.add(added, t) : []
    const changes = free.filter(entry => 'user' in entry)
    const edits = changes.flatMap(({ user, details = {} }) =>
      Object.keys(details).length > 0 ? [{ id: user.id, details }] : [],
    )
    if (edits.length > 0) await userBatches.edit(edits, t)
    for (const change of changes) await applyTo(change, by!, t)
    return entries.map((entry, index) => {
      if (problems[index]!.length > 0) return problems[index]!
      // The locks of names admit no other writer; this is for one that doesn't take them.
      return 'user' in entry
        ? entry.user.id
        : (ids.shift() ?? nameViolations({ username: 'taken', nickname: undefined }))
    })
  }

  /** Which of the new names others have. The other names stay free until the transaction ends. */
  async function namesOf(entries: readonly (Registration | UserChange)[], t: Transaction): Promise<FieldViolation[][]> {
    const names = entries.map(entry =>
      'user' in entry
        ? { username: entry.username, nickname: entry.details?.nickname, userId: entry.user.id }
        : { username: entry.username, nickname: entry.nickname },
    )
    if (names.every(({ username, nickname }) => !username && !nickname)) return names.map(() => [])
    const problems = await users.nameProblems(names, t)
    return problems.map((of, index) => nameViolations(of).filter(({ field }) => names[index]![field as 'username']))
  }

  return {
    apply,

    /** Registers a user, and returns its id. Throws `Taken` if others have one of its names. */
    add: async (user: Registration, t: Transaction): Promise<number> => one(await apply([user], undefined, t)),

    /**
     * Adds and replaces users of another system, whose names have been settled against each other and all users here. It notifies
     * no one. Throws `Taken` if others have one of the names after all.
     */
    async adopt(
      { added, replaced }: Readonly<Record<'added' | 'replaced', readonly (Registration & { readonly id: number })[]>>,
      t: Transaction,
    ): Promise<void> {
      const ids = added.length > 0 ? await userBatches.add(added, t) : []
      if (ids.includes(undefined)) throw new Taken('Names collide with those of users here: run the command again.')
      if (replaced.length > 0) await userBatches.replace(replaced, t)
    },

    /** Changes a user. Throws `Taken` if others have one of its new names. */
    async change(change: UserChange, by: By, t: Transaction): Promise<void> {
      one(await apply([change], by, t))
    },
  }
}

function one([outcome]: readonly (number | readonly FieldViolation[])[]): number {
  if (typeof outcome !== 'number') throw new Taken()
  return outcome
}

/** The change of the fields of a profile that differ from the user's. */
export function profileChange(user: User, fields: readonly ProfileField[], texts: FormTexts) {
  const changed = changedFields(user, fields, texts)
  return { changed, details: attributesOf(changed, texts) }
}

/** What events say of a move to another organization, or out of any. */
export function moveObject({ organizationId }: Pick<User, 'organizationId'>, to: number | null): string {
  return `organization:${organizationId ?? 'none'}->${to ?? 'none'}`
}
