// Rate limits of client addresses, checked before other work. Each process caches the levels of the shared buckets, so a
// refusal needs no statement, no hash and no row.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { maxEntries } from '../limits/cache-size.js'
import { type Attempts, type CounterKeys, knowableNetworks } from '../models/attempt.js'
import type { BucketLimit, Buckets } from '../models/bucket.js'
import { addressLimits } from '../policy/limits.js'
import { network } from '../requests/client-address.js'
import { type Limit, Refusal } from '../requests/refusal.js'
import { knownAddressDays } from './lockout.js'
import { createRecentCounts } from './recent-counts.js'

/** Returns the limits multiplied by `factor`. Each capacity is at least 1: a smaller bucket would refuse everything. */
export function limitsOf(factor: number): Record<keyof typeof addressLimits, BucketLimit> {
  const limits = Object.entries(addressLimits).map(([kind, { capacity, perSecond }]) => [
    kind,
    { capacity: Math.max(1, capacity * factor), perSecond: perSecond * factor },
  ])
  return Object.fromEntries(limits)
}

/** Kinds of operation whose buckets all replicas share, apart from failures. */
type SharedKind = 'signUps' | 'recoveryRequests'

/** Maximum accounts per network that are exempt from the limit of that network. */
const maxKnownAccounts = 5_000

/** Maximum buckets in the cache; it evicts the least recently used ones first. */
const maxStates = 100_000

/** Admits or refuses operations by client address. Addresses are in canonical text. */
export interface Admission {
  /** Refuses with TOO_MANY_ATTEMPTS when the cached bucket of this kind is full. Counts nothing. */
  check(kind: SharedKind | 'lookUps', address: string): void
  /**
   * Counts one operation of this kind. Refuses with TOO_MANY_ATTEMPTS when the bucket is full, from the cache if
   * possible.
   */
  take(kind: SharedKind, address: string): Promise<void>
  /** Reverses `take` for an operation that is then refused for lack of capacity. */
  refund(kind: SharedKind, address: string): Promise<void>
  /**
   * Adds a sign-up whose password was hashed to `recentCount`. Waiting sign-ups don't count, so that they don't lower
   * the rank of their network.
   */
  countSignUp(address: string): void
  /** Counts, for `recentCount`, that a job of these networks was refused for lack of capacity. */
  countRefusal(networks: readonly string[]): void
  /** Counts an availability look-up, or a refusal that reveals a taken name; false when the bucket is full. */
  takeLookUp(address: string): boolean
  /** Counts a service key that this process hasn't seen before; false when the bucket is full. */
  takeServiceKey(address: string): boolean
  /**
   * Counts the users that a service reads, and returns how many it counted. Refuses with TOO_MANY_ATTEMPTS when the bucket
   * has no room for all of them.
   */
  takeServiceReads(service: string, users: number): number
  /** Takes back counted users that the service didn't get. */
  refundServiceReads(service: string, users: number): void
  /**
   * Returns the seconds to wait for an address with too many failures or attempts in flight; else undefined. It reads the
   * cache. If the cached bucket is full, it also reads the bucket once in 250 ms, because an administrator can clear it.
   */
  blockedFor(address: string): Promise<number | undefined>
  /** Counts an attempt of the address as in flight until the returned function is called. */
  begin(address: string): () => void
  /** Caches the level of the address's bucket of failures, as the database returned it. */
  observe(address: string, level: number): void
  /**
   * Counts a failure of the address. When the bucket becomes full, it returns the number of failures that block the
   * address, at most once in the time that a full bucket takes to drain; else undefined.
   */
  addFailure(address: string): Promise<number | undefined>
  /**
   * Number of recent failures of a network from `networksOf` that this process has counted. A sign-up counts a third,
   * and all refusals for lack of capacity together count half.
   */
  recentCount(network: string): number
  /** Whether an active account knows the address or its outer network. The list of accounts is cached for a minute. */
  knows(address: string, usernameKey: string): Promise<boolean>
}

/** The cached state of a bucket. Times are in ms since 1970. */
interface State {
  level: number
  /** The time of `level`. */
  at: number
  inFlight: number
  /** When the database last confirmed that the bucket is full. */
  confirmedAt: number
  /** When `addFailure` last reported a block. Further attempts during a block aren't reported. */
  reportedAt: number
}

/** Minimum milliseconds between two reads of a full bucket. */
const confirmedFor = 250

/** Creates the admission; `factor` multiplies the limits, `now` is a clock in ms since 1970. */
export function createAdmission(deps: {
  buckets: Buckets
  attempts: Pick<Attempts, 'accountsKnowing'>
  counterKeys: CounterKeys
  factor: number
  now: () => number
}): Admission {
  const { buckets, attempts, counterKeys, factor, now } = deps
  const states = new LRUCache<string, State>(maxEntries(maxStates))
  const limits = limitsOf(factor)
  const recent = createRecentCounts(now)

  const accounts = new LRUCache<string, ReadonlySet<string>>({
    maxSize: 1_000_000,
    sizeCalculation: keys => keys.size + 1,
    ttl: 60_000,
    fetchMethod: async network => new Set(await attempts.accountsKnowing(network, knownAddressDays, maxKnownAccounts)),
  })

  /** Returns the cached state of the bucket of a network or service, drained up to now. */
  function stateOf(kind: keyof typeof addressLimits, subject: string): State {
    const key = `${kind} ${subject}`
    const time = now()
    const state = states.get(key) ?? { level: 0, at: time, inFlight: 0, confirmedAt: 0, reportedAt: 0 }
    states.set(key, state)
    const seconds = Math.max(0, time - state.at) / 1000
    state.level = Math.max(0, state.level - seconds * limits[kind].perSecond)
    state.at = time
    return state
  }

  /** Returns the seconds until the bucket has room for `count` operations beyond those in flight; undefined if it has. */
  function wait(kind: keyof typeof addressLimits, { level, inFlight }: State, count = 1): number | undefined {
    const { capacity, perSecond } = limits[kind]
    if (level + inFlight + count <= capacity) return undefined
    // An operation in flight ends soon, and may leave the level as it is.
    return Math.max(0, (level + count - capacity) / perSecond)
  }

  /** Counts an operation in a bucket of this process; false when the bucket is full. */
  function takeLocal(kind: 'lookUps' | 'serviceKeys', address: string): boolean {
    const state = stateOf(kind, network(address))
    const free = wait(kind, state) === undefined
    if (free) state.level++
    return free
  }

  function check(kind: SharedKind | 'lookUps', address: string): void {
    const retryAfter = wait(kind, stateOf(kind, network(address)))
    if (retryAfter !== undefined) throw tooManyAttempts(retryAfter, kind)
  }

  return {
    check,
    async take(kind, address) {
      check(kind, address)
      const state = stateOf(kind, network(address))
      state.inFlight++
      const { level, taken } = await buckets.take(counterKeys.address(kind, address), limits[kind]).finally(() => {
        state.inFlight--
      })
      state.level = level
      state.at = now()
      if (!taken) throw tooManyAttempts(wait(kind, state) ?? 0, kind)
    },
    async refund(kind, address) {
      const level = await buckets.refund(counterKeys.address(kind, address), limits[kind])
      stateOf(kind, network(address)).level = level
    },
    takeLookUp: address => takeLocal('lookUps', address),
    takeServiceKey: address => takeLocal('serviceKeys', address),
    takeServiceReads(service, users) {
      const state = stateOf('serviceReads', service)
      // A request for more than the capacity would otherwise never succeed.
      const taken = Math.min(users, limits.serviceReads.capacity)
      const retryAfter = wait('serviceReads', state, taken)
      if (retryAfter !== undefined) throw tooManyAttempts(retryAfter, 'serviceReads')
      state.level += taken
      return taken
    },
    refundServiceReads(service, users) {
      const state = stateOf('serviceReads', service)
      state.level = Math.max(0, state.level - users)
    },
    async blockedFor(address) {
      const state = stateOf('failures', network(address))
      const full = state.level + 1 > limits.failures.capacity
      if (full && now() - state.confirmedAt > confirmedFor) {
        state.confirmedAt = now()
        const level = await buckets.read(counterKeys.address('failures', address), limits.failures)
        Object.assign(state, { level, at: now() })
      }
      return wait('failures', state)
    },
    begin(address) {
      const state = stateOf('failures', network(address))
      state.inFlight++
      return () => {
        state.inFlight--
      }
    },
    observe(address, level) {
      stateOf('failures', network(address)).level = level
    },
    async addFailure(address) {
      recent.add(address, 1)
      const level = await buckets.add(counterKeys.address('failures', address), limits.failures)
      const state = stateOf('failures', network(address))
      Object.assign(state, { level, confirmedAt: now() })
      const { capacity, perSecond } = limits.failures
      const isNew = level + 1 > capacity && now() - state.reportedAt > (capacity / perSecond) * 1000
      if (!isNew) return undefined
      state.reportedAt = now()
      return Math.round(capacity)
    },
    // A network's first sign-up leaves its rank as it is: its new user signs in next.
    countSignUp: address => recent.add(address, 1 / 3),
    countRefusal: recent.countRefusal,
    recentCount: recent.of,
    async knows(address, usernameKey) {
      for (const network of knowableNetworks(address)) {
        if ((await accounts.fetch(network))?.has(usernameKey)) return true
      }
      return false
    },
  }
}

/** Returns the refusal of a caller that reached a limit; `retryAfter` is in seconds. */
export function tooManyAttempts(retryAfter: number, limit: Limit): Refusal {
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { retryAfter, limit })
}
