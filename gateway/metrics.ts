/** Metrics of a gateway, which docs/metrics.md lists. No label contains input of clients. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client'

/** The result of a request. */
interface Result {
  /** Its path in the table of routes; `RPC` for a call over Connect or gRPC-Web; `other`. */
  readonly route: string
  /** The status of its answer; `gone` if the client disconnected before. */
  readonly status: number | 'gone'
  /** From its arrival to the end of its answer; absent if it couldn't be read. */
  readonly seconds?: number
}

/** State of a gateway for a scrape. */
interface GatewayStats {
  readonly connections: number
  readonly maxConnections: number
}

/** Creates the metrics of a gateway. */
export function createGatewayMetrics(registry: Registry) {
  const registers = [registry]
  const requests = new Counter({
    name: 'auth_http_requests_total',
    help: 'Requests over HTTP by route and status; gone if the client disconnected before the answer.',
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
    help: 'Connections of clients that were refused or cut, by the limit that was reached.',
    labelNames: ['limit'],
    registers,
  })
  for (const limit of ['connections', 'unread']) cuts.inc({ limit }, 0)
  return {
    observe({ route, status, seconds }: Result): void {
      requests.inc({ route, status })
      if (seconds !== undefined) duration.observe({ route }, seconds)
    },
    /** Counts a connection that a limit closed or refused. */
    cut: (limit: 'connections' | 'unread') => cuts.inc({ limit }),
    /** Exports the state of the gateway. */
    watch(stats: () => GatewayStats): void {
      new Gauge({
        name: 'auth_http_connections',
        help: 'Connections of clients: open, and maximum.',
        labelNames: ['state'],
        registers,
        collect() {
          const { connections, maxConnections } = stats()
          this.set({ state: 'open' }, connections)
          this.set({ state: 'most' }, maxConnections)
        },
      })
    },
  }
}
