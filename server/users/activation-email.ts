import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { SendAdminKeyByEmailPartnerRequest } from '../../proto/gen/auth/v1/users_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Transaction } from '../database/database.js'
import type { Limits } from '../limits/index.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { isEmailAddress, nicknameKey } from '../rules/names.js'

/** Thrown to take back the count of an address that an organization has. */
class Found extends Error {
  constructor(readonly organizationId: number) {
    super('found')
  }
}

/**
 * Queues an e-mail with a one-time activation key to the organization of a ROLE_INSTITUTION user. Refuses with
 * TOO_MANY_ATTEMPTS beyond 10 a day for the user, 60 an hour to the organization, or 10 wrong addresses an hour of the caller.
 */
export function sendAdminKeyByEmailPartner(
  { organizations, emails }: Models,
  { emailRequests }: Limits,
  { quotas, chooseLocale }: Outbox,
): UsersRpcs['sendAdminKeyByEmailPartner'] {
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
      const wrong = await quotas.partnerAddress(Number(claims.sub))
      if (wrong > 0) throw tooManyAttempts(wrong, 'partnerAddresses')
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
      // Counted as wrong before the look-up: parallel guesses wait for each other’s count.
      const guess = async ({ t }: { t: Transaction }) => {
        const wait = await quotas.partnerAddress(caller.user.id, t)
        if (wait > 0) throw tooManyAttempts(wait, 'partnerAddresses')
        const found = isEmailAddress(email) ? await organizations.byEmail(email, member, t) : undefined
        if (found !== undefined) throw new Found(found)
      }
      const organizationId = await transact(guess).catch(error => {
        if (error instanceof Found) return error.organizationId
        throw error
      })
      if (organizationId === undefined) refuse(Reason.ORGANIZATION_EMAIL_NOT_FOUND)

      recent.set(keyOf(String(caller.user.id), request), { userId: target.id, organizationId })
      // The token of an active account counts like a known network.
      using _turn = await emailRequests.begin(call, caller.user.active)
      // Again, as other requests may have reached the quota during the wait.
      await take(target.id, organizationId)
      await transact(async ({ t, record }) => {
        await take(target.id, organizationId, t)
        const locale = chooseLocale(call.acceptLanguage)
        const parameters = { userId: target.id, organizationId }
        await emails.add({ kind: 'activation-key', stage: 'ready', parameters }, locale, t)
        const object = `organization:${organizationId}`
        await record({ action: 'user.send-activation-key', subject_id: target.id, object })
      })
      return {}
    },
  }
}
