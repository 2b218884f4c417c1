/**
 * Client addresses: how one is read and written, which network it counts for, and whose word on it is taken. The same
 * at every endpoint and on the command line, so that a client is counted once however it comes.
 */
import { BlockList, isIP, isIPv4, SocketAddress } from 'node:net'
import { LRUCache } from 'lru-cache'

/** Who sent a request, as far as addresses tell. */
export interface Sender {
  /** IP address of the client in canonical text. */
  readonly address: string
  /** Whether the peer that sent the request is a trusted proxy. */
  readonly proxied: boolean
  /** What it counts for in the scheduler: the networks of the client, or the proxy where it tells of none. */
  readonly networks: readonly string[]
}

/** Finds the client of a request; `trusted` says of the peer what the list of trusted proxies would say otherwise. */
export type SenderOf = (peer: string | undefined, forwardedFor: string | undefined, trusted?: boolean) => Sender

/**
 * An IP address in canonical text (RFC 5952), without the zone of a link; an IPv4-mapped IPv6 address is the IPv4
 * address. Undefined for text that is no IP address.
 */
export function canonicalAddress(text: string): string | undefined {
  if (isIPv4(text)) return text
  const address = text.split('%', 1)[0] ?? ''
  if (isIP(address) !== 6) return undefined
  const plain = new SocketAddress({ address, family: 'ipv6' }).address
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(plain)
  return mapped?.[1] ?? plain
}

/**
 * An IP address or CIDR block (RFC 4632), its address in canonical text; undefined for text that is neither. A block of
 * IPv4-mapped addresses is the block of the IPv4 addresses.
 */
export function canonicalBlock(text: string): string | undefined {
  const [given = '', bits, ...rest] = text.split('/')
  const most = isIPv4(given) ? 32 : 128
  const address = given.includes('%') ? undefined : canonicalAddress(given)
  if (address === undefined || rest.length > 0) return undefined
  if (bits === undefined) return address
  if (!/^\d{1,3}$/.test(bits) || Number(bits) > most) return undefined
  return `${address}/${isIPv4(address) ? Math.max(0, Number(bits) - (most - 32)) : Number(bits)}`
}

/** What a canonical address is counted as: the /64 of an IPv6 address, since a client that has one address of it has all. */
export function network(address: string): string {
  return address.includes(':') ? prefix(hextets(address), 4, 64) : address
}

/**
 * The networks that a canonical address belongs to, innermost first: an IPv4 address and its /24; of an IPv6 address its
 * /64, /56 and /48, which are what providers delegate (RFC 6177).
 */
export function networksOf(address: string): readonly string[] {
  let networks = networksKnown.get(address)
  if (!networks) {
    networks = address.includes(':') ? networksOfIpv6(hextets(address)) : networksOfIpv4(address)
    networksKnown.set(address, networks)
  }
  return networks
}

const networksKnown = new LRUCache<string, readonly string[]>({ max: 10_000 })

function networksOfIpv4(address: string): readonly string[] {
  return [address, `${address.slice(0, address.lastIndexOf('.'))}.0/24`]
}

function networksOfIpv6(groups: readonly string[]): readonly string[] {
  const fourth = (Number.parseInt(groups[3]!, 16) & 0xff00).toString(16)
  return [prefix(groups, 4, 64), prefix([...groups.slice(0, 3), fourth], 4, 56), prefix(groups, 3, 48)]
}

function prefix(groups: readonly string[], count: number, bits: number): string {
  return `${groups.slice(0, count).join(':')}::/${bits}`
}

/** The eight groups of an IPv6 address in canonical text. */
function hextets(address: string): string[] {
  const [head = '', tail] = address.split('::')
  const left = head === '' ? [] : head.split(':')
  const right = tail ? tail.split(':') : []
  const middle = tail === undefined ? [] : Array<string>(Math.max(0, 8 - left.length - right.length)).fill('0')
  return [...left, ...middle, ...right]
}

/**
 * Returns the function that finds the client's address. It is the peer's, unless the peer is a trusted proxy: then
 * `X-Forwarded-For` is followed from the right, past trusted proxies, to the first address that isn't one. What stands
 * left of an unreadable entry counts for nothing. A peer without an address (it has gone) is `0.0.0.0`.
 *
 * `trustedProxies` are addresses or CIDR blocks (RFC 4632).
 */
export function createSenderOf(trustedProxies: readonly string[]): SenderOf {
  const isTrusted = createMatcher(trustedProxies)
  return (peer, forwardedFor, trusted) => {
    let address = canonicalAddress(peer ?? '') ?? '0.0.0.0'
    if (!(trusted ?? isTrusted(address))) return { address, proxied: false, networks: networksOf(address) }
    if (!forwardedFor) return { address, proxied: true, networks: [`proxy ${address}`] }
    for (const entry of forwardedFor.split(',').reverse()) {
      const next = canonicalAddress(withoutPort(entry.trim()))
      if (next === undefined) break
      address = next
      if (!isTrusted(address)) break
    }
    return { address, proxied: true, networks: networksOf(address) }
  }
}

/** Tells whether a canonical address is in a list of addresses and CIDR blocks. */
function createMatcher(blocks: readonly string[]): (address: string) => boolean {
  if (blocks.length === 0) return () => false
  const list = new BlockList()
  for (const block of blocks) {
    const [address = '', prefix] = block.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  // Proxies are few, and asking the list costs more than the rest of this file.
  const known = new LRUCache<string, boolean>({ max: 1000 })
  return address => {
    let found = known.get(address)
    if (found === undefined) {
      found = list.check(address, isIPv4(address) ? 'ipv4' : 'ipv6')
      known.set(address, found)
    }
    return found
  }
}

/** Some proxies add the port: `192.0.2.1:4711`, `[2001:db8::1]:4711`. */
function withoutPort(entry: string): string {
  const parts = /^(?:\[(.+)\]|([^:]+))(?::\d+)?$/.exec(entry)
  return parts?.[1] ?? parts?.[2] ?? entry
}
