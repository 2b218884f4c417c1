// Rate limits of client addresses, checked before other work. Each process caches the levels of the shared buckets, so a
// refusal needs no statement, no hash and no row.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { CounterKeys } from '../models/attempt.js'
import type { BucketLimit, Buckets } from '../models/bucket.js'
import { addressLimits, lockout } from '../policy/limits.js'
import { network } from '../requests/client-address.js'
import { type Limit, Refusal } from '../requests/refusal.js'
import { type Bucket, createBucket } from './bucket.js'
import { maxEntries } from './cache-size.js'
import { createNetworkRanks } from './network-ranks.js'

type Kind = keyof typeof addressLimits

/** Kinds of operation whose buckets all replicas share, apart from failures. */
type SharedKind = 'signUps' | 'recoveryRequests' | 'accountRecoveryRequests'

/** Returns the limits multiplied by `factor`. Each capacity is at least 1: a smaller bucket would refuse everything. */
export function limitsOf(factor: number): Record<Kind, BucketLimit> {
  const limits = Object.entries(addressLimits).map(([kind, { capacity, perSecond }]) => [
    kind,
    { capacity: Math.max(1, capacity * factor), perSecond: perSecond * factor },
  ])
  return Object.fromEntries(limits)
}

/** Returns the number of failures that lock an account, multiplied by `factor`: a whole number, at least 1. */
export function failuresThatLock(factor: number): number {
  return Math.max(1, Math.round(lockout.failures * factor))
}

/** Maximum buckets in the cache; it evicts the least recently used ones first. */
const maxStates = 100_000

/** Minimum milliseconds between two reads of a full bucket. */
const confirmedFor = 250

const never = Number.NEGATIVE_INFINITY

/** The cached state of a bucket. Times are in ms. */
interface State {
  readonly bucket: Bucket
  inFlight: number
  /** When the database last confirmed that the bucket is full. */
  confirmedAt: number
  /** When `addFailure` last reported a block. Further attempts during a block aren't reported. */
  reportedAt: number
}

/** Admits or refuses operations by client address. Addresses are in canonical text. */
export type RateLimits = ReturnType<typeof createRateLimits>

/** Creates the limits; `factor` multiplies the limits, `now` is a clock in ms. */
export function createRateLimits(deps: {
  buckets: Buckets
  counterKeys: CounterKeys
  factor: number
  now: () => number
}) {
  const { buckets, counterKeys, factor, now } = deps
  const states = new LRUCache<string, State>(maxEntries(maxStates))
  const limits = limitsOf(factor)
  const recent = createNetworkRanks(now)

  /** The key of a client address in the cache, with the digest of an account, whose name may be long. */
  const subjectOf = (address: string, account?: string) =>
    account === undefined ? network(address) : counterKeys.address('', address, account).toString('base64')

  /** The cached state of the bucket of a network, an account there, or a service. */
  function stateOf(kind: Kind, subject: string): State {
    const key = `${kind} ${subject}`
    let state = states.get(key)
    if (!state) {
      state = { bucket: createBucket(limits[kind], now), inFlight: 0, confirmedAt: never, reportedAt: never }
      states.set(key, state)
    }
    return state
  }

  /** Returns the seconds until the bucket has room for `count` operations beyond those in flight; undefined if it has. */
  function wait({ bucket, inFlight }: State, count = 1): number | undefined {
    if (bucket.blockedFor(inFlight + count) === 0) return undefined
    // An operation in flight ends soon, and may leave the level as it is.
    return bucket.blockedFor(count) / 1000
  }

  function check(kind: SharedKind | 'lookUps', address: string, account?: string): void {
    const retryAfter = wait(stateOf(kind, subjectOf(address, account)))
    if (retryAfter !== undefined) throw tooManyAttempts(retryAfter, kind)
  }

  return {
    /** Refuses with TOO_MANY_ATTEMPTS when the cached bucket of this kind is full. Counts nothing. */
    check,
    /**
     * Counts one operation of this kind. Refuses with TOO_MANY_ATTEMPTS when the bucket is full, from the cache if
     * possible. An `account`, by its key, has a bucket of its own at each address.
     */
    async take(kind: SharedKind, address: string, account?: string): Promise<void> {
      check(kind, address, account)
      const state = stateOf(kind, subjectOf(address, account))
      state.inFlight++
      const subject = counterKeys.address(kind, address, account)
      const { level, taken } = await buckets.take(subject, limits[kind]).finally(() => {
        state.inFlight--
      })
      state.bucket.fill(level)
      if (!taken) throw tooManyAttempts(wait(state) ?? 0, kind)
    },
    /** Reverses `take` for an operation that is then refused for lack of capacity. */
    async refund(kind: SharedKind, address: string): Promise<void> {
      const level = await buckets.refund(counterKeys.address(kind, address), limits[kind])
      stateOf(kind, network(address)).bucket.fill(level)
    },
    /** Counts an availability look-up, or a refusal that reveals a taken name; false when the bucket is full. */
    takeLookUp: (address: string) => stateOf('lookUps', network(address)).bucket.acquire(1),
    /** Counts a service key that this process hasn't seen before. Refuses with TOO_MANY_ATTEMPTS when the bucket is full. */
    takeServiceKey(address: string): void {
      const { bucket } = stateOf('serviceKeys', network(address))
      if (!bucket.acquire(1)) throw tooManyAttempts(bucket.blockedFor(1) / 1000, 'serviceKeys')
    },
    /**
     * Counts the users that a service reads, and returns how many it counted. Refuses with TOO_MANY_ATTEMPTS when the bucket
     * has no room for all of them.
     */
    takeServiceReads(service: string, users: number): number {
      const state = stateOf('serviceReads', service)
      // A request for more than the capacity would otherwise never succeed.
      const taken = Math.min(users, limits.serviceReads.capacity)
      const retryAfter = wait(state, taken)
      if (retryAfter !== undefined) throw tooManyAttempts(retryAfter, 'serviceReads')
      state.bucket.spend(taken)
      return taken
    },
    /** Takes back counted users that the service didn't get. */
    refundServiceReads(service: string, users: number): void {
      stateOf('serviceReads', service).bucket.spend(-users)
    },
    /**
     * Returns the seconds to wait for an address with too many operations of a kind, those in flight included; else undefined. It
     * reads the cache. If the cached bucket is full, it also reads the bucket once in 250 ms, because an administrator can clear it.
     */
    async blockedFor(
      address: string,
      kind: 'failures' | SharedKind = 'failures',
      account?: string,
    ): Promise<number | undefined> {
      // A question adds no state: those of many accounts would evict others.
      const state = states.get(`${kind} ${subjectOf(address, account)}`)
      if (!state) return undefined
      if (state.bucket.blockedFor(1) > 0 && now() - state.confirmedAt > confirmedFor) {
        state.confirmedAt = now()
        state.bucket.fill(await buckets.read(counterKeys.address(kind, address, account), limits[kind]))
      }
      return wait(state)
    },
    /** Counts an attempt of the address as in flight until the result is disposed of. */
    begin(address: string): Disposable {
      const state = stateOf('failures', network(address))
      state.inFlight++
      return { [Symbol.dispose]: () => void state.inFlight-- }
    },
    /** Caches the level of the address's bucket of failures, as the database returned it. */
    observe(address: string, level: number): void {
      stateOf('failures', network(address)).bucket.fill(level)
    },
    /**
     * Counts a failure of the address. `counted` is the level of its bucket if a statement has already added the failure. When
     * the bucket becomes full, it returns the number of failures that block the address, at most once in the time that a full
     * bucket takes to drain; else undefined.
     */
    async addFailure(address: string, counted?: number): Promise<number | undefined> {
      recent.add(address, 1)
      const level = counted ?? (await buckets.add(counterKeys.address('failures', address), limits.failures))
      const state = stateOf('failures', network(address))
      state.bucket.fill(level)
      state.confirmedAt = now()
      const { capacity, perSecond } = limits.failures
      const isNew = level + 1 > capacity && now() - state.reportedAt > (capacity / perSecond) * 1000
      if (!isNew) return undefined
      state.reportedAt = now()
      return Math.round(capacity)
    },
    /**
     * Adds a sign-up whose password was hashed to `recentCount`. Waiting sign-ups don't count, so that they don't lower the
     * rank of their network; nor does its first one, whose new user signs in next.
     */
    countSignUp: (address: string) => recent.add(address, 1 / 3),
    /** Counts, for `recentCount`, that a job of these networks was refused for lack of capacity. */
    countRefusal: recent.countRefusal,
    /**
     * Number of recent failures of a network from `networksOf` that this process has counted. A sign-up counts a third,
     * and all refusals for lack of capacity together count half.
     */
    recentCount: recent.of,
  }
}

/** Returns the refusal of a caller that reached a limit; `retryAfter` is in seconds. */
export function tooManyAttempts(retryAfter: number, limit: Limit): Refusal {
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { retryAfter, limit })
}
