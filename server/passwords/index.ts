// This folder owns the password policy (policy.ts), the stored form of passwords (hash.ts), and the threads that compute it
// (pool.ts, threads.ts). limits/ orders their queue and counts failures.
import { createLimits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import type { Settings } from '../process/settings.js'
import { createPasswords } from './hash.js'
import { createPool, type PoolOptions } from './pool.js'

/** What hashes passwords, and the limits by which its queue ranks networks. */
export type Hashing = ReturnType<typeof createHashing>

/** Makes what hashes passwords. An installation needs it before there can be an application. */
export function createHashing(
  registry: Models,
  { limitFactor, bcryptCost: cost }: Pick<Settings, 'limitFactor' | 'bcryptCost'>,
  { now, ...options }: { now: () => number } & Omit<PoolOptions, 'cost' | 'recentCount' | 'onRefused'>,
) {
  const limits = createLimits(registry, limitFactor, now)
  const { recentCount, countRefusal: onRefused } = limits.rateLimits
  const pool = createPool({ ...options, cost, recentCount, onRefused })
  return { limits, pool, passwords: createPasswords({ dataKeys: registry.dataKeys, cost, pool }) }
}
