import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { type Admission, tooManyAttempts } from '../access/admission.js'
import { auditContext, type Caller } from '../access/caller.js'
import type { UsersRpc } from '../access/context.js'
import { failuresThatLock, lockout } from '../access/lockout.js'
import type { Transaction } from '../database/connection.js'
import type { Attempts, CounterKeys } from '../models/attempt.js'
import type { Audit } from '../models/audit.js'
import type { MailedKeys } from '../models/mailed-key.js'
import type { Organizations } from '../models/organization.js'
import type { LockedUser, Users } from '../models/user.js'
import { maxEntries } from '../process/cache-size.js'
import type { Call } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { tooLong } from '../rules/sizes.js'

const uuid = /^[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}$/

export interface ActivateDeps {
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

/** Activates a user with a key. A key is looked up before anything is locked for it. */
export function activate(deps: ActivateDeps): UsersRpc<'activate'> {
  const { users } = deps
  const wrongKeys = createWrongKeys(deps)
  return {
    async admit(_request, { claims, call }) {
      const userId = Number(claims.sub)
      await wrongKeys.check(userId, call)
    },
    check({ username, activationkey }) {
      required({ username, activationkey })
    },
    async handle(request, { call, caller, target, transact }) {
      const given = request.activationkey ?? ''
      const activationkey = tooLong(given, 'key') ? '' : given.trim().toLowerCase()
      using _key = wrongKeys.begin(caller, call)
      if (!canBeActivated(target)) refuse(Reason.ACTIVATION_REFUSED)
      if (!uuid.test(activationkey) || !(await findOrganization(deps, target, activationkey))) {
        await wrongKeys.add(caller, call)
        refuse(Reason.ACTIVATION_REFUSED)
      }
      return transact(async ({ t, record }) => {
        const user = await users.lock(target.usernameKey, t)
        const organization = user && canBeActivated(user) && (await findOrganization(deps, user, activationkey, t))
        if (!user || !organization) return refuse(Reason.ACTIVATION_REFUSED)
        await users.activate(user, organization, t)
        await record({ action: 'user.activate', subject_id: user.id, object: `organization:${organization}` })
        return { username: user.username }
      })
    },
  }
}

function canBeActivated(user: Pick<LockedUser, 'active' | 'suspended' | 'role'>): boolean {
  return !user.active && !user.suspended && user.role !== 'ROLE_ADMIN'
}

/**
 * The organization that a key makes the user a member of; undefined when the key is no good for this user. In a
 * transaction the key is locked against rotation, and a mailed one is spent.
 */
async function findOrganization(
  { organizations, mailedKeys }: ActivateDeps,
  user: Pick<LockedUser, 'id' | 'role'>,
  key: string,
  t?: Transaction,
): Promise<number | undefined> {
  if (user.role === 'ROLE_CLIENT') return organizations.byProviderKey(key, t)
  return (await organizations.byActivationKey(key, t)) ?? mailedKeys.organizationOf(user.id, key, t)
}

/** Counts wrong keys: 10 in 15 minutes for a token's user, and as failures of the client address. */
function createWrongKeys({ attempts, counterKeys, admission, audit, factor, now }: ActivateDeps) {
  const most = failuresThatLock(factor)
  /** Wrong keys of users, by id, and when they are forgotten, in ms since 1970. */
  const counts = new LRUCache<number, { count: number; until: number }>(maxEntries(100_000))
  /** Keys under way. */
  const inFlight = new Map<number, number>()

  function countOf(userId: number): { count: number; until: number } {
    const known = counts.get(userId)
    return known && known.until > now() ? known : { count: 0, until: 0 }
  }

  return {
    /** Refuses with TOO_MANY_ATTEMPTS, from memory, a user who gave too many, and an address that is held up. */
    async check(userId: number, { address }: Call): Promise<void> {
      const { count, until } = countOf(userId)
      if (count >= most) throw tooManyAttempts((until - now()) / 1000, 'activation')
      const wait = await admission.blockedFor(address)
      if (wait !== undefined) throw tooManyAttempts(wait, 'failures')
    },
    /**
     * Counts one as under way until what it returns is disposed of. Refuses likewise a user who has as many under
     * way as are left.
     */
    begin({ user }: Caller, { address }: Call): Disposable {
      const others = inFlight.get(user.id) ?? 0
      if (countOf(user.id).count + others >= most) throw tooManyAttempts(1, 'activation')
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
    async add({ user }: Caller, call: Call): Promise<void> {
      const { count, seconds } = await attempts.count(counterKeys.activation(user.id), lockout.seconds)
      if (count > countOf(user.id).count) counts.set(user.id, { count, until: now() + seconds * 1000 })
      const ofAddress = await admission.addFailure(call.address)
      const event = { action: 'user.activate', outcome: 'refused', reason: 'TOO_MANY_ATTEMPTS' } as const
      const refused = { ...auditContext(call, user), ...event }
      if (count === most) await audit.append({ ...refused, subject_id: user.id, object: `failures:${most}` })
      if (ofAddress !== undefined) await audit.append({ ...refused, object: `failures:${ofAddress}` })
    },
  }
}
