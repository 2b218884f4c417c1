/**
 * The endpoint for metrics, `GET /metrics` in the text format of Prometheus, and for probes, `GET /healthz` and
 * `GET /readyz`. It has its own port, so that no client delays a probe. It owns the metrics of every program: Node.js and
 * process, build, scheduler, and certificates. Others register theirs in its registry.
 */
import { once } from 'node:events'
import { createServer, type ServerResponse } from 'node:http'
import { type AddressInfo, createServer as createPort, type Socket } from 'node:net'
import { Counter, collectDefaultMetrics, Gauge, Registry } from 'prom-client'
import { isLoopback } from '../process/settings.js'
import { version } from '../process/version.js'
import { createIsOwnHost, type IsOwnHost } from '../requests/own-hosts.js'

/** The endpoint of a process. */
export type MetricsEndpoint = ReturnType<typeof createMetricsEndpoint>

/** Milliseconds after which an idle connection is closed: longer than the intervals of Prometheus and of probes. */
const idleTimeout = 65_000

/** Creates an endpoint. It listens once `listen` is called. */
export function createMetricsEndpoint() {
  const registry = new Registry()
  const registers = [registry]
  const collectors: (() => Promise<void>)[] = []
  const certificates = new Map<string, () => number | undefined>()
  new Gauge({
    name: 'auth_build_info',
    help: 'Always 1; the labels are the versions of the service and of Node.js.',
    labelNames: ['version', 'node'],
    registers,
  }).set({ version, node: process.versions.node }, 1)

  /** Exports a number that `read` returns at each scrape, or a number for each value of a label. */
  function expose(
    type: typeof Gauge | typeof Counter,
    name: string,
    help: string,
    label: string | undefined,
    read: () => number | Readonly<Record<string, number>>,
  ) {
    new type({
      name,
      help,
      labelNames: label ? [label] : [],
      registers,
      collect() {
        this.reset()
        const value = read()
        if (typeof value === 'number') this.inc(value)
        else for (const [key, number] of Object.entries(value)) this.inc({ [label!]: key }, number)
      },
    })
  }

  const expiry = 'Expiry time of the presented certificate, in seconds since 1970.'
  expose(Gauge, 'auth_certificate_end_timestamp_seconds', expiry, 'of', () => {
    const ends = [...certificates].map(([of, endsAt]) => [of, endsAt()] as const)
    return Object.fromEntries(ends.flatMap(([of, end]) => (end === undefined ? [] : [[of, end / 1000]])))
  })

  let ready = async () => false
  const plain = { 'content-type': 'text/plain', 'cache-control': 'no-store' }
  const answers: Readonly<Record<string, (response: ServerResponse) => Promise<unknown>>> = {
    async '/metrics'(response) {
      await Promise.all(collectors.map(collect => collect()))
      const text = await registry.metrics()
      response.writeHead(200, { 'content-type': registry.contentType }).end(text)
    },
    '/healthz': async response => response.writeHead(200, plain).end('ok'),
    async '/readyz'(response) {
      const is = await ready().catch(() => false)
      response.writeHead(is ? 200 : 503, plain).end(is ? 'ok' : 'not ready')
    },
  }
  let isOwnHost: IsOwnHost = () => true
  const http = createServer(({ method, url = '', headers }, response) => {
    if (url === '/metrics' && !isOwnHost(headers.host)) return void response.writeHead(421).end()
    const answer = (method === 'GET' || method === 'HEAD') && Object.hasOwn(answers, url) ? answers[url] : undefined
    if (answer) answer(response).catch(() => response.writeHead(500).end())
    else response.writeHead(404).end()
  })
  http.timeout = idleTimeout
  const connections = new Set<Socket>()
  const port = createPort()
  return {
    registry,
    expose,
    /** Runs `collect` before each scrape is answered. */
    beforeScrape: (collect: () => Promise<void>) => void collectors.push(collect),
    /** Exports when a certificate ends, in ms since 1970; `of` names the endpoint that presents it. */
    watchCertificate: (of: 'grpc' | 'http' | 'servers', endsAt: () => number | undefined) =>
      void certificates.set(of, endsAt),
    /** Exports how many requests wait, are in progress, and were shed, and the milliseconds that they were charged. */
    watchScheduler(stats: () => Readonly<Record<'waiting' | 'running' | 'shed' | 'charged', number>>) {
      expose(Gauge, 'auth_requests', 'Requests that wait to begin, and requests in progress.', 'state', () => {
        const { waiting, running } = stats()
        return { waiting, running }
      })
      const shed = 'Requests refused because too many waited, or because they waited too long.'
      expose(Counter, 'auth_requests_shed_total', shed, undefined, () => stats().shed)
      const charged = 'Time of the main thread and the database that requests were charged.'
      expose(Counter, 'auth_requests_charged_seconds_total', charged, undefined, () => stats().charged / 1000)
    },
    /** Makes `/readyz` call `isReady`. Before this, and when that rejects, the process is not ready. */
    watchReady(isReady: () => Promise<boolean>) {
      ready = isReady
    },
    /** Listens, with TLS if `secure` is given, and returns the real port. At a loopback address `/metrics` checks `Host`. */
    async listen(address: { host: string; port: number }, secure?: (socket: Socket) => Socket) {
      if (isLoopback(address.host)) isOwnHost = createIsOwnHost([])
      collectDefaultMetrics({ register: registry })
      port.on('connection', socket => {
        connections.add(socket)
        socket.once('close', () => connections.delete(socket))
        http.emit('connection', secure ? secure(socket) : socket)
      })
      await once(port.listen(address), 'listening')
      return (port.address() as AddressInfo).port
    },
    async close() {
      const closed = new Promise(resolve => port.close(resolve))
      for (const connection of connections) connection.destroy()
      await closed
    },
  }
}
