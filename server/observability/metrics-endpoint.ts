/**
 * Where Prometheus finds the metrics of a process, `GET /metrics` in its text format, and probes find its health,
 * `GET /healthz` and `GET /readyz`. A port of its own, so that nothing that clients do holds up a probe. It owns what every
 * program has: the endpoint, the metrics of Node.js and of the process, the build, and when certificates end. What else is
 * counted whoever counts it registers.
 */
import { readFileSync } from 'node:fs'
import { createServer, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createPort, type Socket } from 'node:net'
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
  /** Has `/readyz` ask from now on whether the process takes work. Until then, and when it rejects, the answer is no. */
  watchReady(isReady: () => Promise<boolean>): void
  /** Opens the port, over TLS where `secure` speaks it on a connection; returns the real one. */
  listen(address: { host: string; port: number }, secure?: (socket: Socket) => Socket): Promise<number>
  close(): Promise<void>
}

/** Milliseconds for which nothing may come or go on a connection: longer than Prometheus and probes keep quiet. */
const idleTimeout = 65_000

/** Prepares an endpoint. Nothing listens before `listen` is called. */
export function createMetricsEndpoint(): MetricsEndpoint {
  const registry = new Registry()
  const registers = [registry]
  const inquiries: (() => Promise<void>)[] = []
  const certificates = new Map<string, () => number | undefined>()
  new Gauge({
    name: 'auth_build_info',
    help: 'Always 1; the labels are the versions of the service and of Node.js.',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version: version(), node: process.versions.node }, 1)
  new Gauge({
    name: 'auth_certificate_end_timestamp_seconds',
    help: 'Expiry time of the presented certificate, in seconds since 1970.',
    labelNames: ['of'],
    registers,
    collect() {
      for (const [of, endsAt] of certificates) {
        const end = endsAt()
        if (end !== undefined) this.set({ of }, end / 1000)
      }
    },
  })

  let ready = async () => false
  const plain = { 'content-type': 'text/plain', 'cache-control': 'no-store' }
  const answers = new Map<string | undefined, (response: ServerResponse) => Promise<unknown>>([
    [
      '/metrics',
      async response => {
        await Promise.all(inquiries.map(inquire => inquire()))
        const text = await registry.metrics()
        response.writeHead(200, { 'content-type': registry.contentType }).end(text)
      },
    ],
    ['/healthz', async response => response.writeHead(200, plain).end('ok')],
    [
      '/readyz',
      async response => {
        const is = await ready().catch(() => false)
        response.writeHead(is ? 200 : 503, plain).end(is ? 'ok' : 'not ready')
      },
    ],
  ])
  const http = createServer(({ method, url }, response) => {
    const answer = method === 'GET' || method === 'HEAD' ? answers.get(url) : undefined
    if (answer) answer(response).catch(() => response.writeHead(500).end())
    else response.writeHead(404).end()
  })
  http.timeout = idleTimeout
  const connections = new Set<Socket>()
  const port = createPort()
  return {
    registry,
    inquire: inquiry => void inquiries.push(inquiry),
    watchCertificate: (of, endsAt) => void certificates.set(of, endsAt),
    watchScheduler(stats) {
      new Gauge({
        name: 'auth_requests',
        help: 'Requests that wait to begin, and requests in progress.',
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
        help: 'Requests refused because too many waited, or because they waited too long.',
        registers,
        collect() {
          this.reset()
          this.inc(stats().shed)
        },
      })
    },
    watchReady(isReady) {
      ready = isReady
    },
    listen: (address, secure) =>
      new Promise((resolve, reject) => {
        collectDefaultMetrics({ register: registry })
        port.on('connection', socket => {
          connections.add(socket)
          socket.once('close', () => connections.delete(socket))
          http.emit('connection', secure ? secure(socket) : socket)
        })
        port.once('error', reject)
        port.listen(address, () => resolve((port.address() as AddressInfo).port))
      }),
    close: () =>
      new Promise(resolve => {
        port.close(() => resolve())
        for (const connection of connections) connection.destroy()
      }),
  }
}

function version(): string {
  return JSON.parse(readFileSync(new URL(import.meta.resolve('#package')), 'utf8')).version
}
