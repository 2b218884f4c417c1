// How much each network did lately that counts against it, as far as this process knows: failures and sign-ups.
import { LRUCache } from 'lru-cache'
import { maxEntries } from '../process/cache-size.js'
import { networksOf } from '../requests/client-address.js'

/** Counts that decay evenly, so that the count of an outer network is the sum of those inside it. */
export interface RecentCounts {
  /** Adds an amount, which may be negative, to every network of an address. */
  add(address: string, amount: number): void
  /** The count of a network that `networksOf` names. */
  of(network: string): number
}

/** Milliseconds in which a count decays to 1/e. */
const decayMs = 900_000

/** Networks that are remembered; those without a change for longest are forgotten first. */
const remembered = 20_000

/** `now` is a clock in milliseconds. */
export function createRecentCounts(now: () => number): RecentCounts {
  const counts = new LRUCache<string, { readonly count: number; readonly at: number }>(maxEntries(remembered))
  function of(network: string): number {
    const last = counts.peek(network)
    return last ? last.count * Math.exp((last.at - now()) / decayMs) : 0
  }
  return {
    of,
    add(address, amount) {
      for (const network of networksOf(address)) counts.set(network, { count: of(network) + amount, at: now() })
    },
  }
}
