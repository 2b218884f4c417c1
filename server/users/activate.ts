import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { type Admission, tooManyAttempts } from '../access/admission.js'
import { auditContext, type Caller } from '../access/caller.js'
import type { UsersRpcs } from '../access/context.js'
import { failuresThatLock } from '../access/lockout.js'
import type { Transaction } from '../database/connection.js'
import { maxEntries } from '../limits/cache-size.js'
import type { Attempts, CounterKeys } from '../models/attempt.js'
import type { Audit } from '../models/audit.js'
import type { MailedKeys } from '../models/mailed-key.js'
import type { Organizations } from '../models/organization.js'
import type { LockedUser, Users } from '../models/user.js'
import { lockout } from '../policy/limits.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { isUuid } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** Dependencies of `activate`. */
interface ActivateDeps {
  readonly users: Users
  readonly organizations: Organizations
  readonly mailedKeys: MailedKeys
  readonly attempts: Attempts
  readonly counterKeys: CounterKeys
  readonly admission: Admission
  readonly audit: Audit
  /** Multiplies the limit of wrong keys. */
  readonly factor: number
  /** The clock, in ms since 1970. */
  readonly now: () => number
}

/**
 * Activates a user with an activation key. The key is looked up without locks first, so that wrong keys lock no row.
 */
export function activate(deps: ActivateDeps): UsersRpcs['activate'] {
  const { users } = deps
  const wrongKeys = createWrongKeys(deps)
  return {
    admit: (_request, { claims, call }) => wrongKeys.check(Number(claims.sub), call),
    check({ username, activationkey }) {
      required({ username, activationkey })
    },
    async handle(request, { call, caller, target, transact }) {
      const given = request.activationkey ?? ''
      const activationkey = tooLong(given, 'key') ? '' : given.trim().toLowerCase()
      using _key = wrongKeys.begin(caller, call)
      if (!canBeActivated(target)) refuse(Reason.ACTIVATION_REFUSED)
      if (!isUuid(activationkey) || !(await findOrganization(deps, target, activationkey))) {
        await wrongKeys.add(caller, call)
        refuse(Reason.ACTIVATION_REFUSED)
      }
      return transact(async ({ t, record }) => {
        const user = await users.lock(target.usernameKey, t)
        const found = user && canBeActivated(user) && (await findOrganization(deps, user, activationkey, t))
        if (!user || !found) return refuse(Reason.ACTIVATION_REFUSED)
        await users.activate(user, found.id, t, found.providerId)
        await record({ action: 'user.activate', subject_id: user.id, object: `organization:${found.id}` })
        return { username: user.username }
      })
    },
  }
}

function canBeActivated(user: Pick<LockedUser, 'active' | 'suspended' | 'role'>): boolean {
  return !user.active && !user.suspended && user.role !== 'ROLE_ADMIN'
}

/**
 * Returns the id of the organization that a key makes the user a member of, and of the user whose provider key it is;
 * undefined when the key isn't valid for this user. In a transaction, locks the key against rotation and spends a mailed
 * key.
 */
async function findOrganization(
  { organizations, mailedKeys }: ActivateDeps,
  user: Pick<LockedUser, 'id' | 'role'>,
  key: string,
  t?: Transaction,
): Promise<{ id: number; providerId?: number } | undefined> {
  if (user.role === 'ROLE_CLIENT') return organizations.byProviderKey(key, t)
  const id = (await organizations.byActivationKey(key, t)) ?? (await mailedKeys.organizationOf(user.id, key, t))
  return id === undefined ? undefined : { id }
}

/** Counts wrong keys: at most 10 in 15 minutes for the user of the token, and as failures of the client address. */
function createWrongKeys({ attempts, counterKeys, admission, audit, factor, now }: ActivateDeps) {
  const maxFailures = failuresThatLock(factor)
  /** Cached counts of wrong keys by user id, with the end of their window in ms since 1970. */
  const counts = new LRUCache<number, { count: number; until: number }>(maxEntries(100_000))
  /** Attempts in flight by user id. */
  const inFlight = new Map<number, number>()

  function countOf(userId: number): { count: number; until: number } {
    const cached = counts.get(userId)
    return cached && cached.until > now() ? cached : { count: 0, until: 0 }
  }

  return {
    /** Refuses with TOO_MANY_ATTEMPTS, from the cache, when the user or the client address reached its limit. */
    async check(userId: number, { address }: Call): Promise<void> {
      const { count, until } = countOf(userId)
      if (count >= maxFailures) throw tooManyAttempts((until - now()) / 1000, 'activation')
      const wait = await admission.blockedFor(address)
      if (wait !== undefined) throw tooManyAttempts(wait, 'failures')
    },
    /**
     * Counts an attempt as in flight until the result is disposed of. Refuses with TOO_MANY_ATTEMPTS when failures and
     * attempts in flight reach the limit.
     */
    begin({ user }: Caller, { address }: Call): Disposable {
      const others = inFlight.get(user.id) ?? 0
      if (countOf(user.id).count + others >= maxFailures) throw tooManyAttempts(1, 'activation')
      inFlight.set(user.id, others + 1)
      const leave = admission.begin(address)
      return {
        [Symbol.dispose]() {
          leave()
          const left = inFlight.get(user.id)! - 1
          if (left > 0) inFlight.set(user.id, left)
          else inFlight.delete(user.id)
        },
      }
    },
    /** Counts a wrong key. */
    async add({ user }: Caller, call: Call): Promise<void> {
      const { count, seconds } = await attempts.count(counterKeys.activation(user.id), lockout.seconds)
      if (count > countOf(user.id).count) counts.set(user.id, { count, until: now() + seconds * 1000 })
      const ofAddress = await admission.addFailure(call.address)
      const event = { action: 'user.activate', outcome: 'refused', reason: 'TOO_MANY_ATTEMPTS' } as const
      const refused = { ...auditContext(call, user), ...event }
      if (count === maxFailures) await audit.append({ ...refused, subject_id: user.id, object: `failures:${count}` })
      if (ofAddress !== undefined) await audit.append({ ...refused, object: `failures:${ofAddress}` })
    },
  }
}
