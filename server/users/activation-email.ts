import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SendAdminKeyByEmailPartnerRequest } from '../../proto/gen/auth/v1/users_pb.js'
import { tooManyAttempts } from '../access/admission.js'
import type { UsersRpc } from '../access/context.js'
import type { Transaction } from '../database/connection.js'
import type { EmailRequests } from '../limits/email-requests.js'
import type { Emails } from '../models/email.js'
import type { Organizations } from '../models/organization.js'
import type { Quotas } from '../outbox/quotas.js'
import type { ChooseLocale } from '../outbox/texts.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { isEmailAddress, nicknameKey } from '../rules/names.js'

/**
 * Queues an e-mail with a one-time activation key to the organization of a ROLE_INSTITUTION user. Refuses with
 * TOO_MANY_ATTEMPTS beyond 10 a day for the user or 60 an hour to the organization.
 */
export function sendAdminKeyByEmailPartner(deps: {
  organizations: Organizations
  emails: Emails
  quotas: Quotas
  emailRequests: EmailRequests
  chooseLocale: ChooseLocale
}): UsersRpc<'sendAdminKeyByEmailPartner'> {
  const { organizations, emails, quotas, emailRequests, chooseLocale } = deps
  /** Users and organizations of recent requests, by caller and request. */
  const recent = new LRUCache<string, { userId: number; organizationId: number }>({ max: 1_000, ttl: 60_000 })
  const keyOf = (sub: string, { username, emailpartner }: SendAdminKeyByEmailPartnerRequest) =>
    [sub, username, emailpartner].join('\0')

  async function take(userId: number, organizationId: number, t?: Transaction): Promise<void> {
    const own = await quotas.partner(userId, t)
    const wait = own || (await quotas.organization(organizationId, t))
    if (wait > 0) throw tooManyAttempts(wait, own > 0 ? 'partner' : 'organization')
  }

  return {
    async admit(request, { claims }) {
      const earlier = recent.get(keyOf(claims.sub, request))
      // Without a transaction: a request with a cached refusal costs no query.
      if (earlier) await take(earlier.userId, earlier.organizationId)
    },
    check({ emailpartner, username }) {
      required({ emailpartner, username })
    },
    async handle(request, { call, caller, target, transact }) {
      if (target.role !== 'ROLE_INSTITUTION') refuse(Reason.USER_NOT_FOUND)
      const member = { organizationId: target.organizationId, institutionKey: nicknameKey(target.institution ?? '') }
      const email = (request.emailpartner ?? '').trim()
      const organizationId = isEmailAddress(email) ? await organizations.byEmail(email, member) : undefined
      if (organizationId === undefined) refuse(Reason.ORGANIZATION_EMAIL_NOT_FOUND)

      recent.set(keyOf(String(caller.user.id), request), { userId: target.id, organizationId })
      // The token of an active account counts like a known network.
      using _turn = await emailRequests.begin(call, caller.user.active)
      // Again, as other requests may have reached the quota during the wait.
      await take(target.id, organizationId)
      await transact(async ({ t, record }) => {
        await take(target.id, organizationId, t)
        const locale = chooseLocale(call.acceptLanguage)
        await emails.add({ kind: 'activation-key', parameters: { userId: target.id, organizationId } }, locale, t)
        const object = `organization:${organizationId}`
        await record({ action: 'user.send-activation-key', subject_id: target.id, object })
      })
      return {}
    },
  }
}
