import type { Administrator } from '../access/administrator.js'
import type { CallersDeps } from '../calls/steps.js'
import type { Transaction } from '../database/database.js'
import type { Administered, NotifiedChange } from '../models/email.js'
import type { Models } from '../models/index.js'
import { guardedUser } from '../models/user-state.js'
import type { Settings } from '../process/settings.js'

/** What was done to a user. */
interface Deed {
  readonly action: Administered
  readonly subjectId: number
  /** The role that was given. */
  readonly role?: string
}

export type NotifyAdministrators = ReturnType<typeof createNotifyAdministrators>

/**
 * Notifies all active administrators, except the one concerned, by e-mail of a change of a guarded user or of a credential
 * on the database itself, which needs no sign-in. Refuses with JUSTIFICATION_NEEDED without a reason.
 */
export function createNotifyAdministrators(
  { administeredUsers, emails }: Models,
  settings: Pick<Settings, 'mailLocale'>,
) {
  return async (administrator: Administrator, deed: Deed, t: Transaction): Promise<void> => {
    administrator.justify()
    if (administrator.user) return
    const about = aboutOf(administrator, deed)
    for (const userId of await administeredUsers.administratorsBut(deed.subjectId, t)) {
      await emails.add(
        { kind: 'administration', stage: 'ready', parameters: { userId, ...about } },
        settings.mailLocale,
        t,
      )
    }
  }
}

/**
 * Notifies a user who is, or was `before`, guarded by e-mail of a change of its account, at its former address. A change
 * of the address has its own notice, and an erased user gets none, because its address is erased, too.
 */
export function createNotifyConcerned(
  { emails }: Models,
  settings: Pick<Settings, 'mailLocale'>,
): CallersDeps['notifyConcerned'] {
  return async (administrator, { action, subjectId }, { before, after }, t) => {
    if (!after || ![before ?? after, after].some(guardedUser.of)) return
    const to = before?.email ?? after.email
    if (to === null || to !== after.email) return
    const deed = { action, subjectId, role: action === 'user.set-role' ? after.role : undefined }
    const parameters = { userId: subjectId, to, ...aboutOf(administrator, deed) }
    await emails.add({ kind: 'administered', stage: 'ready', parameters }, settings.mailLocale, t)
  }
}

/** What notices to owners say about a change by an administrator: from where, in the language of the service. */
export function changeBy({ auditContext }: Administrator, settings: Pick<Settings, 'mailLocale'>): NotifiedChange {
  return { address: auditContext.address ?? 'auth-admin', locale: settings.mailLocale }
}

/** What e-mails say about a change: what, who, when, why. */
function aboutOf({ auditContext, reason }: Administrator, deed: Deed) {
  const { actor, actor_id: actorId } = auditContext
  const at = new Date().toISOString()
  return { ...deed, actor, actorId, at, reason }
}
