// This folder owns how much each client may use. Of the main thread and the database: every request passes the scheduler
// (scheduler.ts) once, and the policy of its RPC sets its cost. Of attempts and other limited actions:
// rate-limits.ts has the buckets of client addresses, wrong-activation-keys.ts the failures of users in a window, which models/
// stores. passwords/ runs the hash threads behind the same fair queue.
import type { Models } from '../models/index.js'
import { lockout } from '../policy/limits.js'
import { createEmailRequests } from './email-requests.js'
import { createKnownAccounts } from './known-accounts.js'
import { createRateLimits, failuresThatLock } from './rate-limits.js'
import { createWrongActivationKeys } from './wrong-activation-keys.js'

/** The limits of a process. */
export type Limits = ReturnType<typeof createLimits>

/** Creates the limits of a process; `factor` multiplies them, `now` is a clock in ms. */
export function createLimits({ attempts, buckets, counterKeys }: Models, factor: number, now: () => number) {
  return {
    rateLimits: createRateLimits({ buckets, counterKeys, factor, now }),
    knownAccounts: createKnownAccounts(attempts),
    emailRequests: createEmailRequests(factor),
    wrongActivationKeys: createWrongActivationKeys({
      max: failuresThatLock(factor),
      count: userId => attempts.count(counterKeys.activation(userId), lockout.seconds),
      read: async userId => (await attempts.readAll(counterKeys.activation(userId)))[0]?.count ?? 0,
      now,
    }),
  }
}
