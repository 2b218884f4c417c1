/** Probes at the address of the metrics: liveness and readiness. */
import { once } from 'node:events'
import { get } from 'node:https'
import { text } from 'node:stream/consumers'
import test from 'ava'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { freshDatabase } from '../_helpers/database.js'
import { startRelay } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

const scraped = { AUTH_METRICS_ADDRESS: '127.0.0.1:0' }

/** Sends a request to the metrics address; returns for example `200 ok`. */
const prober =
  (metrics: string) =>
  async (path: string, method = 'GET') => {
    const answer = await fetch(new URL(path, metrics), { method })
    return `${answer.status} ${await answer.text()}`
  }

const metricsOf = ({ addresses }: { addresses: { metrics?: { port: number } } }) =>
  `http://127.0.0.1:${addresses.metrics!.port}`

test('a process is live and ready until it drains', async t => {
  const { service } = await startTestService(t, scraped)
  const probe = prober(metricsOf(service))
  t.is(await probe('/healthz'), '200 ok')
  await waitForValue(() => probe('/readyz'), '200 ok')
  t.is(await probe('/readyz', 'HEAD'), '200 ')
  for (const path of ['/', '/readyz/', '/healthz?verbose', '/toString', '/users/login']) t.is(await probe(path), '404 ')
  t.is(await probe('/readyz', 'POST'), '404 ')
  service.drain()
  t.is(await probe('/readyz'), '503 not ready')
  t.is(await probe('/readyz', 'HEAD'), '503 ')
  t.is(await probe('/healthz'), '200 ok')
})

test('a process is live but not ready while the database takes no writes', async t => {
  const relay = await startRelay(t, await freshDatabase(t))
  const { service } = await startTestService(t, { ...scraped, DATABASE_URL: relay.url })
  const probe = prober(metricsOf(service))
  await waitForValue(() => probe('/readyz'), '200 ok')
  relay.goDark()
  await waitForValue(() => probe('/readyz'), '503 not ready')
  t.is(await probe('/healthz'), '200 ok')
  relay.lightUp()
  await waitForValue(() => probe('/readyz'), '200 ok')
})

test('a separate gateway is ready while a server is, until it drains', async t => {
  const server = await spawnServer(t, { AUTH_DRAIN: '60' })
  const gateway = await spawnGateway(t, server.grpc, { AUTH_DRAIN: '60' })
  const probe = prober(gateway.metrics)
  await waitForValue(() => probe('/readyz'), '200 ok')
  gateway.child.kill('SIGTERM')
  await waitForValue(() => probe('/readyz'), '503 not ready')
  t.is((await fetch(`${gateway.http}/.well-known/jwks.json`)).status, 200)
  const other = await spawnGateway(t, server.grpc)
  const ask = prober(other.metrics)
  await waitForValue(() => ask('/readyz'), '200 ok')
  server.child.kill('SIGTERM')
  await waitForValue(() => ask('/readyz'), '503 not ready')
  t.true(server.alive())
  server.child.kill('SIGKILL')
  await server.ended
  t.is(await ask('/readyz'), '503 not ready')
  t.is(await ask('/healthz'), '200 ok')
})

test('probes are served over TLS if metrics are, and need no client certificate', async t => {
  const authority = createAuthority('Authority')
  const files = await writePems(t, { ca: authority.certificate, ...authority.issue({ name: 'auth-server' }) })
  const tls = { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key, AUTH_TLS_CA: files.ca }
  const { service } = await startTestService(t, { ...scraped, ...tls })
  const url = `${metricsOf(service).replace('http:', 'https:')}/readyz`
  const [answer] = await once(get(url, { rejectUnauthorized: false }), 'response')
  t.is(`${answer.statusCode} ${await text(answer)}`, '200 ok')
})
