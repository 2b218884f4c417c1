import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { auditContext } from '../access/caller.js'
import { pass, type Standing } from '../access/gate.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Transaction } from '../database/database.js'
import type { Limits } from '../limits/index.js'
import { failuresThatLock, tooManyAttempts } from '../limits/rate-limits.js'
import type { HeldOrganization } from '../models/activation-key.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import type { Settings } from '../process/settings.js'
import { takePlace } from '../registration/membership.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { isUuid, typedUuid } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/**
 * Activates a user with an activation key. The key is looked up without locks first, so that wrong keys lock no row. At most 10
 * keys in 15 minutes may be wrong for the user of the token; they also count as failures of the client address.
 */
export function activate(
  registry: Models,
  { rateLimits, wrongActivationKeys: wrongKeys }: Limits,
  { limitFactor }: Pick<Settings, 'limitFactor'>,
): UsersRpcs['activate'] {
  const { users, audit } = registry
  const max = failuresThatLock(limitFactor)

  /** Counts a wrong key. */
  async function addFailure(call: Call, user: Pick<User, 'id'>): Promise<void> {
    const failures = await wrongKeys.add(user.id)
    const ofAddress = await rateLimits.addFailure(call.address)
    const event = { action: 'user.activate', outcome: 'refused', reason: 'TOO_MANY_ATTEMPTS' } as const
    const refused = { ...auditContext(call, user), ...event }
    if (failures === max) await audit.append({ ...refused, subject_id: user.id, object: `failures:${failures}` })
    if (ofAddress !== undefined) await audit.append({ ...refused, object: `failures:${ofAddress}` })
  }

  return {
    async admit(_request, { claims, call }) {
      await wrongKeys.check(Number(claims.sub))
      const wait = await rateLimits.blockedFor(call.address)
      if (wait !== undefined) throw tooManyAttempts(wait, 'failures')
    },
    check({ username, activationkey }) {
      required({ username, activationkey })
    },
    async handle(request, { call, caller, target, transact }) {
      const given = request.activationkey ?? ''
      const activationkey = tooLong(given, 'key') ? '' : typedUuid(given)
      using _ofUser = wrongKeys.begin(caller.user.id)
      using _ofAddress = rateLimits.begin(call.address)
      if (!canBeActivated(target)) refuse(Reason.ACTIVATION_REFUSED)
      if (!isUuid(activationkey) || !(await findOrganization(registry, target, activationkey))) {
        await addFailure(call, caller.user)
        refuse(Reason.ACTIVATION_REFUSED)
      }
      return transact(async ({ t, record, target: user }) => {
        const found = canBeActivated(user) && (await findOrganization(registry, user, activationkey, t))
        if (!found) return refuse(Reason.ACTIVATION_REFUSED)
        await users.activate(user, takePlace(found, user), t, found.providerId)
        await record({ action: 'user.activate', subject_id: user.id, object: `organization:${found.id}` })
        return { username: user.username }
      })
    },
  }
}

function canBeActivated(user: Standing & Pick<User, 'role'>): boolean {
  return pass(user, 'activate') !== undefined && !user.active && user.role !== 'ROLE_ADMIN'
}

/**
 * Returns the organization that a key makes the user a member of, and the id of the user whose provider key it is; undefined
 * when the key isn't valid for this user. In a transaction, locks the organization, and the key against rotation, and spends
 * a mailed key.
 */
async function findOrganization(
  { activationKeys, mailedKeys }: Models,
  user: Pick<User, 'id' | 'role'>,
  key: string,
  t?: Transaction,
): Promise<(HeldOrganization & { providerId?: number }) | undefined> {
  if (user.role === 'ROLE_CLIENT') return activationKeys.providerOf(key, t)
  return (await activationKeys.organizationOf(key, t)) ?? mailedKeys.organizationOf(user.id, key, t)
}
