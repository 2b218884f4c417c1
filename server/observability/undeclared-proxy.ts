/**
 * Finds proxies that `AUTH_TRUSTED_PROXIES` doesn't name: all clients behind one count as one address, and soon are refused
 * together. A proxy shows by most requests of a minute coming from a few peers and carrying `X-Forwarded-For`, which isn't
 * believed of them. So do clients who send the header themselves, if there are few others: it is for people to tell which.
 */
import { Gauge, type Registry } from 'prom-client'
import { network, type Sender } from '../requests/client-address.js'
import type { Log } from './log.js'

/** Milliseconds over which requests are counted, and between two warnings. */
const window = 60_000
const warnedEvery = 3_600_000

/** Fewest requests of a minute that tell anything: somebody who tries something out sends less. */
const fewest = 60

/** Most addresses that one proxy has. */
const mostPeers = 8

/** Peers that are counted in a minute. Those that send much are among the first. */
const remembered = 64

/** Where requests come in. */
type Endpoint = 'grpc' | 'http'

/** What was found in a minute. */
interface UndeclaredProxy {
  readonly endpoint: Endpoint
  /** The peers, as limits count them; those that sent most first. */
  readonly networks: readonly string[]
  /** Requests in all, and from these peers with the header. */
  readonly requests: number
  readonly forwarded: number
}

/** Counts a request: who sent it, and the header as it came, if it did. */
export type OnSender = (sender: Pick<Sender, 'address' | 'proxied'>, forwardedFor: string | undefined) => void

/** Looks for them at the endpoints of a process. */
export interface UndeclaredProxies {
  /** Watches an endpoint from now on. What it returns takes less than a microsecond, and remembers 64 peers at most. */
  watch(endpoint: Endpoint): OnSender
  /** What was found in the last hour, the latest of each endpoint. */
  found(): readonly UndeclaredProxy[]
}

/** Warns in the log, once an hour for each endpoint, and shows it as a metric. `now` is a clock in milliseconds. */
export function createUndeclaredProxies(deps: {
  registry: Registry
  log: Pick<Log, 'warn'>
  now: () => number
}): UndeclaredProxies {
  const { registry, log, now } = deps
  const watched = new Map<Endpoint, () => UndeclaredProxy | undefined>()

  new Gauge({
    name: 'auth_undeclared_proxy',
    help: 'Whether in the last hour most requests came with X-Forwarded-For from a few untrusted peers: 1, or 0.',
    labelNames: ['endpoint'],
    registers: [registry],
    collect() {
      for (const [endpoint, found] of watched) this.set({ endpoint }, found() ? 1 : 0)
    },
  })

  return {
    watch(endpoint) {
      let began = now()
      let requests = 0
      const peers = new Map<string, number>()
      let last: (UndeclaredProxy & { readonly at: number }) | undefined
      let warnedAt = Number.NEGATIVE_INFINITY

      /** Begins another minute when this one is over, also by a clock that was set back. */
      function turn(time: number): void {
        if (time >= began && time < began + window) return
        const top = [...peers].sort(([, a], [, b]) => b - a).slice(0, mostPeers)
        const forwarded = top.reduce((sum, [, count]) => sum + count, 0)
        if (requests >= fewest && forwarded > requests / 2) {
          last = { endpoint, networks: top.map(([peer]) => network(peer)), requests, forwarded, at: began + window }
          warn(last, time)
        }
        began = time
        requests = 0
        peers.clear()
      }

      function warn({ at: _, ...found }: NonNullable<typeof last>, time: number): void {
        if (Math.abs(time - warnedAt) < warnedEvery) return
        warnedAt = time
        log.warn(found, warning)
      }

      watched.set(endpoint, () => {
        const time = now()
        turn(time)
        return last && Math.abs(time - last.at) < warnedEvery ? last : undefined
      })
      return ({ address, proxied }, forwardedFor) => {
        turn(now())
        requests++
        if (proxied || !forwardedFor) return
        const count = peers.get(address)
        if (count !== undefined || peers.size < remembered) peers.set(address, (count ?? 0) + 1)
      }
    },
    found: () => [...watched.values()].flatMap(found => found() ?? []),
  }
}

const warning =
  'most requests of a minute carry X-Forwarded-For and come from few peers that AUTH_TRUSTED_PROXIES does not name: if they are proxies, all clients behind them count as one address'
