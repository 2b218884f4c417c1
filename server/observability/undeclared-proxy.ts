/**
 * Detects proxies that `AUTH_TRUSTED_PROXIES` doesn't name: all clients behind one count as one address, and are soon refused
 * together. The sign of a proxy is that most requests of a minute come from few untrusted peers and carry
 * `X-Forwarded-For`. Clients that send the header themselves look the same, if there are few others: operators must decide.
 */
import { Gauge, type Registry } from 'prom-client'
import { network, type Sender } from '../requests/client-address.js'
import type { Log } from './log.js'

/** Milliseconds over which requests are counted, and between two warnings. */
const window = 60_000
const warningInterval = 3_600_000

/** Requests of a minute below which nothing is concluded: a person who tries the service sends fewer. */
const minRequests = 60

/** Most addresses of one proxy. */
const maxProxyPeers = 8

/** Most peers that are counted in a minute. Those that send much are among the first. */
const maxPeers = 64

/** An endpoint for requests. */
type Endpoint = 'grpc' | 'http'

/** A finding of one minute. */
interface UndeclaredProxy {
  readonly endpoint: Endpoint
  /** The peers as networks, in which limits count; those that sent most first. */
  readonly networks: readonly string[]
  /** Requests in all, and from these peers with the header. */
  readonly requests: number
  readonly forwarded: number
}

/** Counts a request by its sender and its `X-Forwarded-For` header, if it has one. */
export type OnSender = (sender: Pick<Sender, 'address' | 'proxied'>, forwardedFor: string | undefined) => void

/** Detects undeclared proxies at the endpoints of a process. */
export type UndeclaredProxies = ReturnType<typeof createUndeclaredProxies>

/** Warns in the log, once an hour for each endpoint, and exports a metric. `now` is a clock in milliseconds. */
export function createUndeclaredProxies(deps: { registry: Registry; log: Pick<Log, 'warn'>; now: () => number }) {
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
    /** Watches an endpoint. The function that it returns takes less than a microsecond, and keeps at most 64 peers. */
    watch(endpoint: Endpoint): OnSender {
      let began = now()
      let requests = 0
      const peers = new Map<string, number>()
      let last: (UndeclaredProxy & { readonly at: number }) | undefined
      let warnedAt = Number.NEGATIVE_INFINITY

      /** Begins a new minute when the current one is over, also when the clock was set back. */
      function advance(time: number): void {
        if (time >= began && time < began + window) return
        const top = [...peers].sort(([, a], [, b]) => b - a).slice(0, maxProxyPeers)
        const forwarded = top.reduce((sum, [, count]) => sum + count, 0)
        if (requests >= minRequests && forwarded > requests / 2) {
          last = { endpoint, networks: top.map(([peer]) => network(peer)), requests, forwarded, at: began + window }
          warn(last, time)
        }
        began = time
        requests = 0
        peers.clear()
      }

      function warn({ at: _, ...found }: NonNullable<typeof last>, time: number): void {
        if (Math.abs(time - warnedAt) < warningInterval) return
        warnedAt = time
        log.warn(found, warning)
      }

      watched.set(endpoint, () => {
        const time = now()
        advance(time)
        return last && Math.abs(time - last.at) < warningInterval ? last : undefined
      })
      return ({ address, proxied }, forwardedFor) => {
        advance(now())
        requests++
        if (proxied || !forwardedFor) return
        const count = peers.get(address)
        if (count !== undefined || peers.size < maxPeers) peers.set(address, (count ?? 0) + 1)
      }
    },
    /** The latest finding of each endpoint in the last hour. */
    found: (): readonly UndeclaredProxy[] => [...watched.values()].flatMap(found => found() ?? []),
  }
}

const warning =
  'most requests of a minute carry X-Forwarded-For and come from few peers that AUTH_TRUSTED_PROXIES does not name: if they are proxies, all clients behind them count as one address'
