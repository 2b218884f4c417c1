/**
 * Where Prometheus finds the metrics of a process, `GET /metrics` in its text format. It owns what every program has:
 * the endpoint, the metrics of Node.js and of the process, the build, and when certificates end. What else is counted
 * whoever counts it registers.
 */
import { readFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client'

/** The endpoint of a process. */
export interface MetricsEndpoint {
  readonly registry: Registry
  /** Has something found out before each scrape is answered. */
  inquire(inquiry: () => Promise<void>): void
  /** Shows when a certificate that is presented ends, in ms since 1970; `of` says to whom. */
  watchCertificate(of: 'grpc' | 'http' | 'servers', endsAt: () => number | undefined): void
  /** Shows how many requests wait, are worked on, and were shed. */
  watchScheduler(stats: () => { readonly waiting: number; readonly running: number; readonly shed: number }): void
  /** Opens the port, over TLS where `secure` speaks it on a connection; returns the real one. */
  listen(address: { host: string; port: number }, secure?: (socket: Socket) => Socket): Promise<number>
  close(): Promise<void>
}

/** Prepares an endpoint. Nothing listens before `listen` is called. */
export function createMetricsEndpoint(): MetricsEndpoint {
  const registry = new Registry()
  const registers = [registry]
  const inquiries: (() => Promise<void>)[] = []
  const certificates = new Map<string, () => number | undefined>()
  new Gauge({
    name: 'auth_build_info',
    help: 'Always 1; the labels tell the version of the service and of Node.js.',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: version(), node: process.versions.node }, 1)
  new Gauge({
    name: 'auth_certificate_end_timestamp_seconds',
    help: 'When the certificate that is presented ends, in seconds since 1970.',
    labelNames: ['of'],
    registers,
    collect() {
      for (const [of, endsAt] of certificates) {
        const end = endsAt()
        if (end !== undefined) this.set({ of }, end / 1000)
      }
    },
  })

  const server = createServer((request, response) => {
    if (request.method !== 'GET' || request.url !== '/metrics') {
      response.writeHead(404).end()
      return
    }
    Promise.all(inquiries.map(inquire => inquire()))
      .then(() => registry.metrics())
      .then(
        text => response.writeHead(200, { 'content-type': registry.contentType }).end(text),
        () => response.writeHead(500).end(),
      )
  })
  return {
    registry,
    inquire: inquiry => void inquiries.push(inquiry),
    watchCertificate: (of, endsAt) => void certificates.set(of, endsAt),
    watchScheduler(stats) {
      new Gauge({
        name: 'auth_requests',
        help: 'Requests that wait because their networks are beyond their shares, and requests that are worked on.',
        labelNames: ['state'],
        registers,
        collect() {
          const { waiting, running } = stats()
          this.set({ state: 'waiting' }, waiting)
          this.set({ state: 'running' }, running)
        },
      })
      new Counter({
        name: 'auth_requests_shed_total',
        help: 'Requests that were refused because too many waited, or because they waited too long.',
        registers,
        collect() {
          this.reset()
          this.inc(stats().shed)
        },
      })
    },
    listen: ({ host, port }, secure) =>
      new Promise((resolve, reject) => {
        collectDefaultMetrics({ register: registry })
        if (secure) {
          const [speakHttp] = server.listeners('connection') as [(socket: Socket) => void]
          server.removeAllListeners('connection')
          server.on('connection', (socket: Socket) => speakHttp.call(server, secure(socket)))
        }
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

function version(): string {
  return JSON.parse(readFileSync(new URL(import.meta.resolve('#package')), 'utf8')).version
}
