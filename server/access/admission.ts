// Who is within the limits of a client address, before anything is done for it. Each process keeps what it last heard of
// the shared buckets, so that whoever is held up is refused from memory: no statement, no hash, no row.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { type Attempts, type CounterKeys, knowableNetworks } from '../models/attempt.js'
import type { BucketLimit, Buckets } from '../models/bucket.js'
import { maxEntries } from '../process/cache-size.js'
import { network } from '../requests/client-address.js'
import { type Limit, Refusal, refuse } from '../requests/refusal.js'
import { knownAddressDays } from './lockout.js'
import { createRecentCounts } from './recent-counts.js'

/** What a client address, or a service, may do: so much at once, refilled evenly. */
export const addressLimits = {
  /** Failed sign-ins, answers, mailed keys and activation keys: 300 in 15 minutes. */
  failures: { capacity: 300, perSecond: 300 / 900 },
  /** Sign-ups: 600 at once, refilled 300 an hour. */
  signUps: { capacity: 600, perSecond: 300 / 3600 },
  /** Requests for recovery keys: 60 an hour. */
  recoveryRequests: { capacity: 60, perSecond: 60 / 3600 },
  /** Availability look-ups, counted by each process for itself: 300 at once, refilled 60 a minute. */
  lookUps: { capacity: 300, perSecond: 1 },
  /** Keys of services that a process hasn't seen before, counted likewise: 300 in 15 minutes. */
  serviceKeys: { capacity: 300, perSecond: 300 / 900 },
  /** Users that a service reads, counted by each process for the service: 10,000 at once, refilled 2,000 a second. */
  serviceReads: { capacity: 10_000, perSecond: 2_000 },
} as const satisfies Record<string, BucketLimit>

/** The limits as a factor multiplies them. A bucket holds one at least: else it would be full for ever. */
export function limitsOf(factor: number): Record<keyof typeof addressLimits, BucketLimit> {
  const limits = Object.entries(addressLimits).map(([kind, { capacity, perSecond }]) => [
    kind,
    { capacity: Math.max(1, capacity * factor), perSecond: perSecond * factor },
  ])
  return Object.fromEntries(limits)
}

/** Kinds of bucket that all replicas share. */
export type SharedKind = Exclude<keyof typeof addressLimits, 'lookUps' | 'serviceKeys' | 'serviceReads'>

/** Most accounts that know a network and go on under their own counts where it is held up. */
const mostKnown = 5_000

/** Most client addresses that a process remembers; the longest unused ones are forgotten. */
const remembered = 100_000

/** Decides who may go on, by client address. */
export interface Admission {
  /** Refuses with TOO_MANY_ATTEMPTS when it is known that nothing of a shared kind is left; takes nothing. */
  check(kind: Exclude<SharedKind, 'failures'>, address: string): void
  /** Takes one of a shared kind. Refuses with TOO_MANY_ATTEMPTS, from memory where that is known. */
  take(kind: Exclude<SharedKind, 'failures'>, address: string): Promise<void>
  /** Takes back what was taken of a shared kind for something that there was no room for. */
  refund(kind: Exclude<SharedKind, 'failures'>, address: string): Promise<void>
  /** Takes a look-up; false when there are none left. */
  takeLookUp(address: string): boolean
  /** Takes a look at a key of a service that wasn't seen before; false when there are none left. */
  takeServiceKey(address: string): boolean
  /** Takes so many users that a service reads. Refuses with TOO_MANY_ATTEMPTS when they are more than are left. */
  takeServiceReads(service: string, users: number): void
  /**
   * Seconds to wait for an address that has failed too often, or that has too many attempts under way; else undefined.
   * Told from memory, but for one call in a quarter of a second, which asks whether somebody has unlocked the address.
   */
  blockedFor(address: string): Promise<number | undefined>
  /** Counts an attempt of the address as under way until the function that it returns is called. */
  begin(address: string): () => void
  /** Takes note of what the database said of the address's failures. */
  observe(address: string, level: number): void
  /**
   * Counts a failure of the address. Returns the number of failures that hold it up from now on, once in the time in which a
   * bucket empties; else undefined.
   */
  addFailure(address: string): Promise<number | undefined>
  /** How often a network, an outer one too, failed and signed up lately, as far as this process knows. */
  usedOf(network: string): number
  /** Whether an active account knows the address or its outer network; each is asked for once a minute. */
  knows(address: string, usernameKey: string): Promise<boolean>
}

/** What a process knows of a bucket. */
interface State {
  level: number
  at: number
  inFlight: number
  /** When the database was last asked whether it is still so full. */
  confirmedAt: number
  /** When it was last told that the address is held up: a lock is told once, however long it is hammered at. */
  toldAt: number
}

/** Milliseconds for which a full bucket is believed to be full. */
const believed = 250

/** `factor` multiplies the limits; `now` is a clock in milliseconds. */
export function createAdmission(deps: {
  buckets: Buckets
  attempts: Pick<Attempts, 'accountsKnowing'>
  counterKeys: CounterKeys
  factor: number
  now: () => number
}): Admission {
  const { buckets, attempts, counterKeys, factor, now } = deps
  const states = new LRUCache<string, State>(maxEntries(remembered))
  const limits = limitsOf(factor)
  const recent = createRecentCounts(now)

  const accounts = new LRUCache<string, ReadonlySet<string>>({
    maxSize: 1_000_000,
    sizeCalculation: keys => keys.size + 1,
    ttl: 60_000,
    fetchMethod: async network => new Set(await attempts.accountsKnowing(network, knownAddressDays, mostKnown)),
  })

  const keyOf = (kind: keyof typeof addressLimits, address: string) => `${kind} ${network(address)}`

  /** The state of a bucket as it is now. */
  function stateOf(kind: keyof typeof addressLimits, address: string): State {
    const key = keyOf(kind, address)
    const time = now()
    const state = states.get(key) ?? { level: 0, at: time, inFlight: 0, confirmedAt: 0, toldAt: 0 }
    states.set(key, state)
    const seconds = Math.max(0, time - state.at) / 1000
    state.level = Math.max(0, state.level - seconds * limits[kind].perSecond)
    state.at = time
    return state
  }

  /** Seconds until there is room for one more, counting those under way. */
  function wait(kind: keyof typeof addressLimits, { level, inFlight }: State, count = 1): number | undefined {
    const { capacity, perSecond } = limits[kind]
    if (level + inFlight + count <= capacity) return undefined
    return (level + count - capacity) / perSecond
  }

  /** Takes one of a kind that each process counts for itself. */
  function takeOwn(kind: 'lookUps' | 'serviceKeys', address: string): boolean {
    const state = stateOf(kind, address)
    const free = wait(kind, state) === undefined
    if (free) state.level++
    return free
  }

  function check(kind: SharedKind, address: string): void {
    const retryAfter = wait(kind, stateOf(kind, address))
    if (retryAfter !== undefined) refuse(Reason.TOO_MANY_ATTEMPTS, { retryAfter, limit: kind })
  }

  return {
    check,
    async take(kind, address) {
      check(kind, address)
      const state = stateOf(kind, address)
      state.inFlight++
      const { level, taken } = await buckets.take(counterKeys.address(kind, address), limits[kind]).finally(() => {
        state.inFlight--
      })
      state.level = level
      state.at = now()
      if (!taken) refuse(Reason.TOO_MANY_ATTEMPTS, { retryAfter: wait(kind, state) ?? 0, limit: kind })
      if (kind === 'signUps') recent.add(address, 1)
    },
    async refund(kind, address) {
      if (kind === 'signUps') recent.add(address, -1)
      const level = await buckets.refund(counterKeys.address(kind, address), limits[kind])
      stateOf(kind, address).level = level
    },
    takeLookUp: address => takeOwn('lookUps', address),
    takeServiceKey: address => takeOwn('serviceKeys', address),
    takeServiceReads(service, users) {
      const state = stateOf('serviceReads', service)
      // What is more than the whole bucket takes all of it.
      const taken = Math.min(users, limits.serviceReads.capacity)
      const retryAfter = wait('serviceReads', state, taken)
      if (retryAfter !== undefined) throw tooManyAttempts(retryAfter, 'serviceReads')
      state.level += taken
    },
    async blockedFor(address) {
      const state = stateOf('failures', address)
      const full = state.level + 1 > limits.failures.capacity
      if (full && now() - state.confirmedAt > believed) {
        state.confirmedAt = now()
        const level = await buckets.read(counterKeys.address('failures', address), limits.failures)
        Object.assign(state, { level, at: now() })
      }
      return wait('failures', state)
    },
    begin(address) {
      const state = stateOf('failures', address)
      state.inFlight++
      return () => {
        state.inFlight--
      }
    },
    observe(address, level) {
      stateOf('failures', address).level = level
    },
    async addFailure(address) {
      recent.add(address, 1)
      const level = await buckets.add(counterKeys.address('failures', address), limits.failures)
      const state = stateOf('failures', address)
      Object.assign(state, { level, confirmedAt: now() })
      const { capacity, perSecond } = limits.failures
      const isNew = level + 1 > capacity && now() - state.toldAt > (capacity / perSecond) * 1000
      if (!isNew) return undefined
      state.toldAt = now()
      return Math.round(capacity)
    },
    usedOf: recent.of,
    async knows(address, usernameKey) {
      for (const network of knowableNetworks(address)) {
        if ((await accounts.fetch(network))?.has(usernameKey)) return true
      }
      return false
    },
  }
}

/** The refusal of someone who has to wait. */
export function tooManyAttempts(retryAfter: number, limit: Limit): Refusal {
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { retryAfter, limit })
}
