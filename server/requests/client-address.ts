/**
 * Client addresses: parsing, canonical text, networks, and trusted proxies. All endpoints and the command line use
 * these functions, so that a client has the same counts everywhere.
 */
import { BlockList, isIP, isIPv4, SocketAddress } from 'node:net'
import { LRUCache } from 'lru-cache'

/** The client of a request. */
export interface Sender {
  /** IP address of the client in canonical text. */
  readonly address: string
  /** Whether the peer that sent the request is a trusted proxy. */
  readonly proxied: boolean
  /**
   * Networks that the scheduler counts the request for: those of the client; of a proxy that names no client, the
   * proxy.
   */
  readonly networks: readonly string[]
}

/**
 * Determines the client of a request from the address of the peer and the `X-Forwarded-For` header. `trusted` overrides
 * whether the peer is a trusted proxy.
 */
type SenderOf = (peer: string | undefined, forwardedFor: string | undefined, trusted?: boolean) => Sender

/**
 * Returns an IP address in canonical text (RFC 5952), without a zone; an IPv4-mapped IPv6 address becomes the IPv4
 * address. Undefined when the text isn't an IP address.
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
 * Returns an IP address or CIDR block (RFC 4632) with the address in canonical text; undefined for other text. A block
 * of IPv4-mapped addresses becomes the block of the IPv4 addresses.
 */
export function canonicalBlock(text: string): string | undefined {
  const [start = '', bits, ...rest] = text.split('/')
  const maxBits = isIPv4(start) ? 32 : 128
  const address = start.includes('%') ? undefined : canonicalAddress(start)
  if (address === undefined || rest.length > 0) return undefined
  if (bits === undefined) return address
  if (!/^\d{1,3}$/.test(bits) || Number(bits) > maxBits) return undefined
  return `${address}/${isIPv4(address) ? Math.max(0, Number(bits) - (maxBits - 32)) : Number(bits)}`
}

/**
 * Returns the innermost network of a canonical address: an IPv4 address itself; of an IPv6 address its /64, as in
 * SLAAC.
 */
export function network(address: string): string {
  return address.includes(':') ? prefix(hextets(address), 4, 64) : address
}

/**
 * Returns the networks of a canonical address, innermost first: an IPv4 address and its /24; of an IPv6 address its
 * /64, and its /56 and /48, the sizes that providers delegate (RFC 6177).
 */
export function networksOf(address: string): readonly string[] {
  let networks = cachedNetworks.get(address)
  if (!networks) {
    networks = address.includes(':') ? networksOfIpv6(hextets(address)) : networksOfIpv4(address)
    cachedNetworks.set(address, networks)
  }
  return networks
}

const cachedNetworks = new LRUCache<string, readonly string[]>({ max: 10_000 })

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
 * Creates the function that determines the client. Its address is that of the peer, unless the peer is a trusted proxy:
 * then it is the last entry of `X-Forwarded-For` that isn't a trusted proxy. Entries left of an unreadable one are
 * ignored: clients may have written them. A peer without an address (the connection is closed) is `0.0.0.0`.
 *
 * `trustedProxies` are addresses or CIDR blocks (RFC 4632).
 */
export function createSenderOf(trustedProxies: readonly string[]): SenderOf {
  const isTrusted = createMatcher(trustedProxies)
  return (peer, forwardedFor, trusted) => {
    let address = canonicalAddress(peer ?? '') ?? '0.0.0.0'
    if (!(trusted ?? isTrusted(address))) return { address, proxied: false, networks: networksOf(address) }
    const entries = forwardedEntries(forwardedFor)
    if (entries.length === 0) return { address, proxied: true, networks: [`proxy ${address}`] }
    for (const entry of entries.reverse()) {
      const next = canonicalAddress(withoutPort(entry))
      if (next === undefined) break
      address = next
      if (!isTrusted(address)) break
    }
    return { address, proxied: true, networks: networksOf(address) }
  }
}

/**
 * Returns the entries of an `X-Forwarded-For` header, as sent. Empty ones are left out (RFC 9110, 5.6.1). A comma within
 * quotes separates entries, too, because no address contains one.
 */
export function forwardedEntries(header = ''): string[] {
  return header
    .split(',')
    .map(entry => entry.trim())
    .filter(entry => entry !== '')
}

/** Creates a function that returns whether a canonical address is in a list of addresses and CIDR blocks. */
function createMatcher(blocks: readonly string[]): (address: string) => boolean {
  if (blocks.length === 0) return () => false
  const list = new BlockList()
  for (const block of blocks) {
    const [address = '', prefix] = block.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  // BlockList.check costs more than all else in this file, and proxies are few.
  const cache = new LRUCache<string, boolean>({ max: 1000 })
  return address => {
    let found = cache.get(address)
    if (found === undefined) {
      found = list.check(address, isIPv4(address) ? 'ipv4' : 'ipv6')
      cache.set(address, found)
    }
    return found
  }
}

/** Removes quotes, brackets and the port that some proxies add: `192.0.2.1:4711`, `"[2001:db8::1]:4711"`. */
function withoutPort(entry: string): string {
  const text = /^"([^"]*)"$/.exec(entry)?.[1] ?? entry
  const parts = /^(?:\[(.+)\]|([^:]+))(?::\d{1,5})?$/.exec(text)
  return parts?.[1] ?? parts?.[2] ?? text
}
