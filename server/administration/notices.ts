import type { Administrator } from '../access/administrator.js'
import type { Transaction } from '../database/connection.js'
import type { AdministeredUsers } from '../models/administereduser.js'
import type { Administered, Emails } from '../models/email.js'
import type { Locale } from '../outbox/texts.js'

/** What was done to a user. */
interface Deed {
  readonly action: Administered
  readonly subjectId: number
  /** The role that was given. */
  readonly role?: string
}

/**
 * Tells by e-mail all other active administrators, but for the one it was done to, what somebody on the database itself
 * does to an administrator or a password: nobody signed in for it. Refuses with JUSTIFICATION_NEEDED without a reason.
 */
export type TellAdministrators = (administrator: Administrator, deed: Deed, t: Transaction) => Promise<void>

export function createTellAdministrators(deps: {
  administeredUsers: AdministeredUsers
  emails: Emails
  settings: { readonly mailLocale: Locale }
}): TellAdministrators {
  const { administeredUsers, emails, settings } = deps
  return async (administrator, { subjectId, ...deed }, t) => {
    administrator.justify()
    const { user, reason = '', traces } = administrator
    if (user) return
    const about = { subjectId, ...deed, actor: traces.actor, at: new Date().toISOString(), reason }
    for (const userId of await administeredUsers.administratorsBut(subjectId, t)) {
      await emails.add({ kind: 'administration', parameters: { userId, ...about } }, settings.mailLocale, t)
    }
  }
}
