import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import { tooManyAttempts } from '../access/admission.js'
import { type Callers, traces } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { Turns } from '../access/turns.js'
import type { Unary } from '../call.js'
import type { Database, Transaction } from '../database/connection.js'
import type { Audit } from '../models/audit.js'
import type { Emails } from '../models/email.js'
import type { Organizations } from '../models/organization.js'
import { isEmailAddress, nicknameKey, usernameKey } from '../names.js'
import type { Quotas } from '../outbox/quotas.js'
import type { ChooseLocale } from '../outbox/texts.js'
import { refuse } from '../refusal.js'
import { isBlank, required } from '../required.js'

/**
 * Mails a one-time activation key to the organization of a ROLE_INSTITUTION user. Refuses with TOO_MANY_ATTEMPTS after
 * 10 in a day for the user, or 60 in an hour to the organization.
 */
export function sendAdminKeyByEmailPartner(deps: {
  database: Database
  organizations: Organizations
  emails: Emails
  quotas: Quotas
  audit: Audit
  callers: Callers
  emailTurns: Turns
  chooseLocale: ChooseLocale
}): Unary<typeof UsersService.method.sendAdminKeyByEmailPartner> {
  const { database, organizations, emails, quotas, audit, callers, emailTurns, chooseLocale } = deps
  /** Whom those meant who asked a moment ago. */
  const meant = new LRUCache<string, { userId: number; organizationId: number }>({ max: 1_000, ttl: 60_000 })

  async function take(userId: number, organizationId: number, t?: Transaction): Promise<void> {
    const own = await quotas.partner(userId, t)
    const wait = own || (await quotas.organization(organizationId, t))
    if (wait > 0) throw tooManyAttempts(wait, own > 0 ? 'partner' : 'organization')
  }

  return async (request, call) => {
    const { sub } = await callers.claimsOf(call)
    const asked = [sub, request.username, request.emailpartner].join('\0')
    const before = meant.get(asked)
    // Who was refused a moment ago costs no query.
    if (before) await take(before.userId, before.organizationId)
    const key = usernameKey(request.username ?? '')
    const { caller, target } = await callers.identifyWith(call, key)
    permit('sendAdminKeyByEmailPartner', caller, isBlank(request.username) ? caller.user : target)
    const { emailpartner } = required({ emailpartner: request.emailpartner, username: request.username })
    if (target?.role !== 'ROLE_INSTITUTION') refuse(Reason.USER_NOT_FOUND)
    const member = { organizationId: target.organizationId, institutionKey: nicknameKey(target.institution ?? '') }
    const email = emailpartner.trim()
    const organizationId = isEmailAddress(email) ? await organizations.byEmail(email, member) : undefined
    if (organizationId === undefined) refuse(Reason.ORGANIZATION_EMAIL_NOT_FOUND)

    meant.set(asked, { userId: target.id, organizationId })
    using _turn = await emailTurns.begin(call)
    // Others may have been refused meanwhile.
    await take(target.id, organizationId)
    await database.transact(async t => {
      await take(target.id, organizationId, t)
      const locale = chooseLocale(call.acceptLanguage)
      await emails.add({ kind: 'activation-key', parameters: { userId: target.id, organizationId } }, locale, t)
      const object = `organization:${organizationId}`
      const event = { action: 'user.send-activation-key', outcome: 'ok', subject_id: target.id, object } as const
      await audit.append({ ...traces(call, caller.user), ...event }, t)
    })
    return {}
  }
}
