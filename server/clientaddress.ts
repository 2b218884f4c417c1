import { BlockList, isIP, isIPv4, SocketAddress } from 'node:net'

/** Who sent a request, as far as addresses tell. */
export interface Sender {
  /** IP address of the client in canonical text. */
  readonly address: string
  /** Whether the peer that sent the request is a trusted proxy. */
  readonly proxied: boolean
}

/**
 * Returns the function that finds the client's address. It is the peer's, unless the peer is a trusted proxy: then
 * `X-Forwarded-For` is followed from the right, past trusted proxies, to the first address that isn't one. What stands
 * left of an unreadable entry counts for nothing.
 *
 * `trustedProxies` are addresses or CIDR blocks (RFC 4632).
 */
export function createSenderOf(
  trustedProxies: readonly string[],
): (peer: string | undefined, forwardedFor: string | undefined) => Sender {
  const list = new BlockList()
  for (const proxy of trustedProxies) {
    const [address = '', prefix] = proxy.split('/')
    const family = isIPv4(address) ? 'ipv4' : 'ipv6'
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  // The peer is one of few proxies, and asking the list costs more than the rest.
  const known = new Map<string, boolean>()
  const trusted = (address: string) => {
    const before = known.get(address)
    if (before !== undefined) return before
    if (known.size === 1000) known.clear()
    const now = list.check(address, isIPv4(address) ? 'ipv4' : 'ipv6')
    known.set(address, now)
    return now
  }

  return (peer, forwardedFor) => {
    // A peer without an address has gone or came over a Unix socket.
    let address = canonical(peer ?? '') ?? '0.0.0.0'
    if (trustedProxies.length === 0 || !trusted(address)) return { address, proxied: false }
    for (const entry of forwardedFor?.split(',').reverse() ?? []) {
      const next = canonical(withoutPort(entry.trim()))
      if (next === undefined) break
      address = next
      if (!trusted(address)) break
    }
    return { address, proxied: true }
  }
}

function canonical(text: string): string | undefined {
  if (isIPv4(text)) return text
  const address = text.split('%', 1)[0] ?? ''
  if (isIP(address) !== 6) return undefined
  const plain = new SocketAddress({ address, family: 'ipv6' }).address
  const mapped = /^::ffff:(\d+\.\d+\.\d+\.\d+)$/.exec(plain)
  return mapped?.[1] ?? plain
}

/** Some proxies add the port: `192.0.2.1:4711`, `[2001:db8::1]:4711`. */
function withoutPort(entry: string): string {
  const parts = /^(?:\[(.+)\]|([^:]+))(?::\d+)?$/.exec(entry)
  return parts?.[1] ?? parts?.[2] ?? entry
}
