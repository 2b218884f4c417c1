/** What a gateway counts and measures. docs/observability.md lists it. No label holds anything that a client typed. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** What a request came to. */
export interface Result {
  /** Its path in the table of routes; `RPC` for a call over Connect or gRPC-Web; `other`. */
  readonly route: string
  /** The status of its answer; `gone` where the client had left before. */
  readonly status: number | 'gone'
  /** From its arrival to the end of its answer; absent where it couldn't be read. */
  readonly seconds?: number
}

/** What is asked of a gateway for a scrape. */
export interface GatewayStats {
  readonly connections: number
  readonly mostConnections: number
}

/** Metrics of a gateway, in a process of its own or not. */
export interface GatewayMetrics {
  observe(result: Result): void
  /** Counts a connection that was ended or not taken by the limit that was reached. */
  cut(limit: 'connections' | 'unread'): void
  /** Shows the state of the gateway from now on. */
  watch(stats: () => GatewayStats): void
  /** Shows from now on how many servers there are, and how many of them are connected. */
  watchServers(stats: () => { readonly known: number; readonly connected: number }): void
}

/** Creates the metrics of a gateway. */
export function createGatewayMetrics(registry: Registry): GatewayMetrics {
  const registers = [registry]
  const requests = new Counter({
    name: 'auth_http_requests_total',
    help: 'Requests over HTTP by route and status; gone where the client had left before the answer.',
    labelNames: ['route', 'status'],
    registers,
  })
  const duration = new Histogram({
    name: 'auth_http_request_seconds',
    help: 'Time from the arrival of a request to the end of its answer, in seconds.',
    labelNames: ['route'],
    buckets: [0.0025, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })
  const cuts = new Counter({
    name: 'auth_http_cut_total',
    help: 'Connections of clients that were not taken or cut off, by the limit that was reached.',
    labelNames: ['limit'],
    registers,
  })
  for (const limit of ['connections', 'unread']) cuts.inc({ limit }, 0)
  return {
    observe({ route, status, seconds }) {
      requests.inc({ route, status })
      if (seconds !== undefined) duration.observe({ route }, seconds)
    },
    cut: limit => cuts.inc({ limit }),
    watch(stats) {
      new Gauge({
        name: 'auth_http_connections',
        help: 'Connections of clients: open, and the most there may be.',
        labelNames: ['state'],
        registers,
        collect() {
          const { connections, mostConnections } = stats()
          this.set({ state: 'open' }, connections)
          this.set({ state: 'most' }, mostConnections)
        },
      })
    },
    watchServers(stats) {
      new Gauge({
        name: 'auth_servers',
        help: 'Servers behind a gateway of its own process: connected, which calls go to, and away.',
        labelNames: ['state'],
        registers,
        collect() {
          const { known, connected } = stats()
          this.set({ state: 'connected' }, connected)
          this.set({ state: 'away' }, Math.max(0, known - connected))
        },
      })
    },
  }
}
