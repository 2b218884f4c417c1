// Adds and changes users, one or many.
import type { Transaction } from '../database/database.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { NotifiedChange } from '../models/email.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import type { Registration } from '../models/user-batch.js'
import { guardedUser } from '../models/user-state.js'
import { accepted, Refusal } from '../requests/refusal.js'
import { formatDay } from '../rules/dates.js'
import { attributesOf, type ProfileField, type ProfileValues, profile } from '../rules/profile.js'
import type { FormTexts } from './form.js'
import { openPlaces, type Placed } from './membership.js'
import { nameViolations, Taken } from './name-refusals.js'

/** A change of a user, whose row is locked. What is undefined stays. */
export interface UserChange {
  readonly user: AdministeredUserRow
  readonly username?: string | undefined
  readonly details?: Partial<ProfileValues>
  readonly email?: string | null | undefined
  /** The id of its organization; null for none. */
  readonly organizationId?: number | null | undefined
  readonly activate?: boolean
  readonly passwordHash?: string | undefined
}

/** A user to register or to change. */
type Registered = Registration<number> | UserChange

/** Who changes users: what notices to their owners say, and the id of the user who does it. */
interface By {
  readonly notice: NotifiedChange
  readonly id?: number | undefined
  /** Whether memberships began in another system, as of `openPlaces`. */
  readonly continued?: boolean
}

/** Returns those of the fields whose values differ from the user's. */
function changedFields(user: User, fields: readonly ProfileField[], texts: FormTexts): ProfileField[] {
  return fields.filter(field => {
    const { attribute, kind } = profile[field]
    const text = texts[field] ?? null
    return (kind === 'day' && text ? formatDay(text) : text) !== user[attribute]
  })
}

/** Creates the registrar of the users of a database. */
export function createRegistrar({ users, userBatches, organizations, emails }: Models) {
  async function applyTo(change: UserChange & Placed, { notice, id: byId }: By, t: Transaction): Promise<void> {
    const { user, username, email, organizationId, activate = false, passwordHash } = change
    const { id } = user
    // All notices go to the address of before.
    const by = email !== undefined && user.email !== null ? { ...notice, to: user.email } : notice
    // The address comes first: the sender holds an e-mail, which this discards, while it waits for a user with another name.
    if (email !== undefined) await users.setEmail(user, email, by, t)
    // Before the name: its failures are counted by the name.
    if (passwordHash !== undefined) await users.changePassword(user, passwordHash, { byToken: false }, t)
    if (username !== undefined) await users.rename(id, username, by, t)
    if (moves(change)) await users.setOrganization(user, organizationId!, by, t)
    if (activate) await users.activate(user, organizationId ?? null, t, byId)
    // administration/security-notices.ts notifies a guarded user.
    if (guardedUser.of(user)) return
    if (activate && !user.active) await emails.notify('account-activated', user, by, t)
    if (passwordHash !== undefined) await emails.notify('password-changed', user, by, t)
  }

  /**
   * Registers and changes users, in order, and returns their ids, or why one is refused: others have its names, or its
   * organization takes no member. Of such a user nothing is stored.
   */
  async function apply(
    entries: readonly Registered[],
    by: By | undefined,
    t: Transaction,
  ): Promise<(number | Refusal)[]> {
    const take = await openPlaces(organizations, entries, t, by)
    const taken = await namesOf(entries, t)
    const settled = entries.map((entry, index) => taken[index] ?? take(entry))
    const free = settled.filter(each => !(each instanceof Refusal))
    const added = free.filter((entry): entry is Registration => !('user' in entry))
    const ids = added.length > 0 ? await userBatches.add(added, t) : []
    const changes = free.filter(entry => 'user' in entry)
    const edits = changes.flatMap(({ user, details = {} }) =>
      Object.keys(details).length > 0 ? [{ id: user.id, details }] : [],
    )
    if (edits.length > 0) await userBatches.edit(edits, t)
    for (const change of changes) await applyTo(change, by!, t)
    return settled.map(entry => {
      if (entry instanceof Refusal) return entry
      return 'user' in entry ? entry.user.id : ids.shift()!
    })
  }

  /** Which of the new names others have. The other names stay free until the transaction ends. */
  async function namesOf(entries: readonly Registered[], t: Transaction): Promise<(Taken | undefined)[]> {
    const names = entries.map(entry =>
      'user' in entry
        ? { username: entry.username, nickname: entry.details?.nickname, userId: entry.user.id }
        : { username: entry.username, nickname: entry.nickname },
    )
    if (names.every(({ username, nickname }) => !username && !nickname)) return []
    const problems = await users.nameProblems(names, t)
    return problems.map((of, index) => {
      const fields = nameViolations(of).filter(({ field }) => names[index]![field as 'username'])
      return fields.length > 0 ? new Taken(fields) : undefined
    })
  }

  return {
    apply,

    /** Registers a user, and returns its id. Throws `Taken` if others have one of its names. */
    add: async (user: Registration<number>, t: Transaction): Promise<number> =>
      accepted((await apply([user], undefined, t))[0]!),

    /** Changes a user. Throws `Taken` if others have one of its new names. */
    async change(change: UserChange, by: By, t: Transaction): Promise<void> {
      accepted((await apply([change], by, t))[0]!)
    },
  }
}

/** Whether a change ends access through the former organization. A user without one joins it when it is activated. */
export function moves({ user, organizationId, activate }: UserChange): boolean {
  if (organizationId === undefined || organizationId === user.organizationId) return false
  return user.active || user.organizationId !== null || !activate
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
