// Recent failures, sign-ups and refusals of each network, as this process counted them. They rank networks in the hash queue.
import { LRUCache } from 'lru-cache'
import { networksOf } from '../requests/client-address.js'
import { maxEntries } from './cache-size.js'

/** Milliseconds in which a count decays to 1/e. */
const decayMs = 900_000

/** Maximum networks with a count; the ones that changed least recently leave first. */
const maxNetworks = 20_000

/**
 * Creates empty counts, by which networks rank. They decay exponentially. But for refusals, the count of an outer network is
 * the sum of its inner ones. `now` is a clock in ms.
 */
export function createNetworkRanks(now: () => number) {
  const counts = new LRUCache<string, { readonly count: number; readonly at: number }>(maxEntries(maxNetworks))
  function of(network: string): number {
    const last = counts.peek(network)
    return last ? last.count * Math.exp((last.at - now()) / decayMs) : 0
  }
  const set = (network: string, count: number) => counts.set(network, { count, at: now() })
  return {
    /** The count of a network that `networksOf` names. */
    of,
    /** Adds an amount to all networks of a client address. */
    add(address: string, amount: number): void {
      for (const network of networksOf(address)) set(network, of(network) + amount)
    },
    /**
     * Raises the counts of these networks to a half at least, which lasts about 3 minutes for the rank: a flood that asks
     * for more than there is ranks behind users at new networks, and no further behind however many they are.
     */
    countRefusal(networks: readonly string[]): void {
      for (const network of networks) set(network, Math.max(of(network), 0.5))
    },
  }
}
