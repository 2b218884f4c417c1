import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import type { Observe } from './calls/dispatch.js'
import type { PoolStats } from './passwords/pool.js'

/** What is counted and measured, in the text format of Prometheus. */
export interface Metrics {
  readonly observe: Observe
  /** How long a hash waited for its turn, in ms. */
  observeWait(ms: number): void
  /** Shows the state of the hashing queue from now on. */
  watchHashing(stats: () => PoolStats): void
  /** Serves `GET /metrics`; returns the port. */
  listen(address: { host: string; port: number }): Promise<number>
  close(): Promise<void>
}

/** Creates the metrics of this process. No label holds a user, address or anything a caller typed. */
export function createMetrics(): Metrics {
  const registers = [new Registry()]
  const [registry] = registers as [Registry]
  const calls = new Counter({
    name: 'auth_calls_total',
    help: 'Calls by RPC and outcome: OK, or the reason of the refusal.',
    labelNames: ['rpc', 'outcome'],
    registers,
  })
  const duration = new Histogram({
    name: 'auth_call_seconds',
    help: 'Time from the arrival of a call to its answer, in seconds.',
    labelNames: ['rpc'],
    buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })
  const wait = new Histogram({
    name: 'auth_hash_wait_seconds',
    help: 'Time that a password or answer waited for a thread to be hashed, in seconds.',
    buckets: [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
    registers,
  })
  const server = createServer((request, response) => {
    if (request.method !== 'GET' || request.url !== '/metrics') {
      response.writeHead(404).end()
      return
    }
    registry.metrics().then(
      text => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
      () => response.writeHead(500).end(),
    )
  })
  return {
    observe(method, reason, seconds) {
      calls.inc({ rpc: method.name, outcome: reason === undefined ? 'OK' : Reason[reason]! })
      duration.observe({ rpc: method.name }, seconds)
    },
    observeWait: ms => wait.observe(ms / 1000),
    watchHashing(stats) {
      new Gauge({
        name: 'auth_hash_queue',
        help: 'Hashes waiting and running.',
        labelNames: ['state'],
        registers,
        collect() {
          const { waiting, running } = stats()
          this.set({ state: 'waiting' }, waiting)
          this.set({ state: 'running' }, running)
        },
      })
      new Counter({
        name: 'auth_hash_shed_total',
        help: 'Calls refused because their hash would have come too late.',
        registers,
        collect() {
          this.reset()
          this.inc(stats().shed)
        },
      })
    },
    listen: ({ host, port }) =>
      new Promise((resolve, reject) => {
        collectDefaultMetrics({ register: registry })
        server.once('error', reject)
        server.listen(port, host, () => resolve((server.address() as AddressInfo).port))
      }),
    close: () =>
      new Promise(resolve => {
        server.close(() => resolve())
        server.closeAllConnections()
      }),
  }
}
