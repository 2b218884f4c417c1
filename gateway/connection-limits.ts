/** How many connections the networks of clients may have. */

import { LRUCache } from 'lru-cache'
import { createTokenBucket, type TokenBucket } from '../server/limits/token-bucket.js'
import { canonicalAddress, networksOf } from '../server/requests/client-address.js'
import type { Connection } from './connection.js'

/** Connections of a network. */
export const connectionLimits = {
  /** Of an address or /64 at one time. */
  perAddress: 1_000,
  /** Of a /24 or /48 at one time. */
  perNetwork: 2_500,
  /** New ones of an address or /64 in a second, and at once. */
  newPerSecond: 100,
  newAtOnce: 1_000,
}

/** Addresses whose new connections are counted; the longest unused ones are forgotten. */
const remembered = 50_000

/** Counts the connections of networks. */
export interface ConnectionLimits {
  /** Whether an address may open another connection now. To be asked before anything is done for it, TLS included. */
  mayOpen(remoteAddress: string | undefined): boolean
  /**
   * Counts a connection until it closes. Where a network has as many as it may, the one of its others that has been idle
   * for longest is returned, and is to be closed.
   */
  add(connection: Connection): Connection | undefined
}

/** Peers of which `isTrusted` stand for many clients, and have no bounds. */
export function createConnectionLimits(
  { perAddress, perNetwork, newPerSecond, newAtOnce }: typeof connectionLimits,
  isTrusted: (address: string) => boolean,
): ConnectionLimits {
  const opened = new LRUCache<string, TokenBucket>({ max: remembered })
  const open = new Map<string, Set<Connection>>()

  return {
    mayOpen(remoteAddress) {
      const address = canonicalAddress(remoteAddress ?? '')
      if (address === undefined || isTrusted(address)) return true
      const network = networksOf(address)[0]!
      let bucket = opened.get(network)
      if (!bucket) {
        bucket = createTokenBucket(newAtOnce, newPerSecond)
        opened.set(network, bucket)
      }
      return bucket.acquire(1)
    },
    add(connection) {
      const address = canonicalAddress(connection.remoteAddress ?? '')
      if (address === undefined || isTrusted(address)) return undefined
      const networks = networksOf(address)
      const counted = [
        { network: networks[0]!, most: perAddress },
        { network: networks.at(-1)!, most: perNetwork },
      ]
      let surplus: Connection | undefined
      for (const { network, most } of counted) {
        const others = open.get(network) ?? new Set()
        if (others.size >= most) surplus ??= longestIdle(others)
        open.set(network, others.add(connection))
      }
      connection.once('close', () => {
        for (const { network } of counted) {
          const others = open.get(network)!
          others.delete(connection)
          if (others.size === 0) open.delete(network)
        }
      })
      return surplus
    },
  }
}

/** The connection on which nothing has happened for longest, of those without a request if there are such. */
function longestIdle(connections: Iterable<Connection>): Connection | undefined {
  let longest: Connection | undefined
  for (const each of connections) {
    if (each.destroyed) continue
    if (!longest || isIdler(each, longest)) longest = each
  }
  return longest
}

function isIdler(one: Connection, other: Connection): boolean {
  if ((one.pending.size === 0) !== (other.pending.size === 0)) return one.pending.size === 0
  return one.activeAt < other.activeAt
}
