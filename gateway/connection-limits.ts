/** Limits on the connections of client networks. */

import { LRUCache } from 'lru-cache'
import { type Bucket, createBucket } from '../server/limits/bucket.js'
import { maxEntries } from '../server/limits/cache-size.js'
import { canonicalAddress, networksOf } from '../server/requests/client-address.js'
import type { Connection } from './connection.js'

/** Maximum connections of a network. */
export const connectionLimits = {
  /** Concurrent connections of an address or /64. */
  perAddress: 1_000,
  /** Concurrent connections of a /24 or /48. */
  perNetwork: 2_500,
  /** New connections of an address or /64 per second, and at once. */
  newPerSecond: 100,
  newAtOnce: 1_000,
}

/** Addresses whose new connections are counted; the least recently used ones are dropped. */
const trackedAddresses = 50_000

/** Counts the connections of networks. */
interface ConnectionLimits {
  /** Whether an address may open another connection now. Call it before any other work, including TLS. */
  mayOpen(remoteAddress: string | undefined): boolean
  /**
   * Counts a connection until it closes. If a network is at its limit, returns its longest idle other connection, which the
   * caller must close.
   */
  add(connection: Connection): Connection | undefined
}

/** Creates the limits. `isTrusted` identifies trusted proxies, which are exempt because they carry many clients. */
export function createConnectionLimits(
  { perAddress, perNetwork, newPerSecond, newAtOnce }: typeof connectionLimits,
  isTrusted: (address: string) => boolean,
): ConnectionLimits {
  const opened = new LRUCache<string, Bucket>(maxEntries(trackedAddresses))
  const open = new Map<string, Set<Connection>>()

  return {
    mayOpen(remoteAddress) {
      const address = canonicalAddress(remoteAddress ?? '')
      if (address === undefined || isTrusted(address)) return true
      const network = networksOf(address)[0]!
      let bucket = opened.get(network)
      if (!bucket) {
        bucket = createBucket({ capacity: newAtOnce, perSecond: newPerSecond })
        opened.set(network, bucket)
      }
      return bucket.acquire(1)
    },
    add(connection) {
      const address = canonicalAddress(connection.remoteAddress ?? '')
      if (address === undefined || isTrusted(address)) return undefined
      const networks = networksOf(address)
      const counted = [
        { network: networks[0]!, max: perAddress },
        { network: networks.at(-1)!, max: perNetwork },
      ]
      let evicted: Connection | undefined
      for (const { network, max } of counted) {
        const others = open.get(network) ?? new Set()
        if (others.size >= max) evicted ??= longestIdle(others)
        open.set(network, others.add(connection))
      }
      connection.once('close', () => {
        for (const { network } of counted) {
          const others = open.get(network)!
          others.delete(connection)
          if (others.size === 0) open.delete(network)
        }
      })
      return evicted
    },
  }
}

/** The longest idle connection; connections without a request come first. */
function longestIdle(connections: Iterable<Connection>): Connection | undefined {
  let longest: Connection | undefined
  for (const each of connections) {
    if (each.destroyed) continue
    if (!longest || isIdleLonger(each, longest)) longest = each
  }
  return longest
}

function isIdleLonger(one: Connection, other: Connection): boolean {
  if ((one.response === undefined) !== (other.response === undefined)) return one.response === undefined
  return one.activeAt < other.activeAt
}
