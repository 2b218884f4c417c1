/** The metrics of a gateway, in a separate process and within a service. */
import { once } from 'node:events'
import { rename, writeFile } from 'node:fs/promises'
import { get } from 'node:https'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { createRouterTransport, type Transport } from '@connectrpc/connect'
import test from 'ava'
import { Registry } from 'prom-client'
import { createGatewayMetrics } from '../../gateway/metrics.js'
import { spawnGateway, spawnServer } from '../_helpers/apart.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { freshDatabase } from '../_helpers/database.js'
import { openGateway } from '../_helpers/gateway.js'
import { scrape } from '../_helpers/metrics.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password, startTestService } from '../_helpers/service.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

test('a separate gateway counts each request once by route and status, without user input in labels', async t => {
  const server = await spawnServer(t)
  const gateway = await spawnGateway(t, server.grpc)
  const request = createRequest(gateway.http)
  const post = (path: string, body: object) => request('POST', path, { body, once: true })
  await post('/users/login', { username: 'admin', password })
  await post('/users/login', { username: 'admin', password: 'planted-secret' })
  await post('/1.0.0/users/login', { username: 'admin', password })
  await request('GET', '/planted-secret?planted-secret', { once: true })
  await request('GET', '/users/planted-secret', { once: true })
  await request('DELETE', '/users/login', { once: true })
  await post('/auth.v1.Users/ExistsByUsername', { username: 'planted-secret' })
  await post('/auth.v1.Users/PlantedSecret', {})
  await request('GET', '/healthz', { once: true })
  const raw = connect(Number(new URL(gateway.http).port), '127.0.0.1', () => raw.end('planted-secret\r\n\r\n'))
  await once(raw.resume(), 'close')

  const counts = async () => {
    const { samples } = await scrape(gateway.metrics)
    const own = samples.filter(({ name }) => name === 'auth_http_requests_total')
    return own.map(({ labels, value }) => `${labels.route} ${labels.status} ${value}`).sort()
  }
  const expected = [
    '/1.0.0/users/login 200 1',
    '/healthz 200 1',
    '/users/login 200 1',
    '/users/login 404 1',
    '/users/login 405 1',
    '/users/{username} 403 1',
    'RPC 200 1',
    'other 400 1',
    'other 404 2',
  ]
  // A request counts once its response is sent.
  await waitForValue(counts, value => value.length >= expected.length)
  t.deepEqual(await counts(), expected)
  const { text: all, value, samples } = await scrape(gateway.metrics)
  t.notRegex(all, /planted|secret|admin|127\.0\.0\.1/i)
  t.is(value('auth_http_request_seconds_count', { route: '/users/login' }), 3)
  // A login takes some time.
  t.true(value('auth_http_request_seconds_sum', { route: '/users/login' })! > 0)
  t.is(value('auth_http_connections', { state: 'most' }), 10_000)
  t.is(value('auth_requests', { state: 'waiting' }), 0)
  t.is(value('auth_requests', { state: 'running' }), 0)
  t.is(value('auth_requests_shed_total'), 0)
  for (const limit of ['connections', 'unread']) t.is(value('auth_http_cut_total', { limit }), 0)
  for (const name of ['auth_build_info', 'nodejs_eventloop_lag_p99_seconds', 'process_cpu_seconds_total'])
    t.true(value(name) !== undefined, name)
  // Metrics that only a server has are absent.
  t.false(samples.some(({ name }) => /^auth_(ready|calls|hash|database|outbox|audit)/.test(name)))
})

test('a request that its client canceled is counted as such', async t => {
  const registry = new Registry()
  let asked = () => {}
  const arrived = new Promise<void>(resolve => {
    asked = resolve
  })
  const transport: Transport = {
    ...createRouterTransport(() => {}),
    unary: (_, signal) => {
      asked()
      return new Promise((_, reject) => signal?.addEventListener('abort', () => reject(signal.reason)))
    },
  }
  const limits = { maxConnections: 1 }
  const { port } = await openGateway(t, {}, { transport, metrics: createGatewayMetrics(registry), limits })
  const client = connect(port, '127.0.0.1', () => {
    client.write('GET /forgotpasswords/findallforgotpasswordquestions HTTP/1.1\r\nhost: x\r\n\r\n')
  })
  await arrived
  t.regex(await registry.metrics(), /auth_http_connections\{state="open"\} 1$/m)
  // The limit is one connection.
  const second = connect(port, '127.0.0.1').on('error', () => {})
  await once(second, 'close')
  t.regex(await registry.metrics(), /auth_http_cut_total\{limit="connections"\} 1$/m)
  client.destroy()
  await waitForValue(
    () => registry.metrics(),
    value => /\{route="\/forgot\w+\/\w+",status="gone"\} 1$/m.test(value),
  )
  await waitForValue(
    () => registry.metrics(),
    value => /auth_http_connections\{state="open"\} 0$/m.test(value),
  )
  t.pass()
})

test('gateway metrics show which servers are connected and which are not', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const port = await freePort()
  const first = await spawnServer(t, { DATABASE_URL })
  const start = () => spawnServer(t, { DATABASE_URL, AUTH_GRPC_ADDRESS: `127.0.0.1:${port}` })
  const second = await start()
  const gateway = await spawnGateway(t, `${first.grpc},${second.grpc}`)
  const request = createRequest(gateway.http)
  const servers = async (connected: number, away: number) =>
    waitFor(async () => {
      await request('GET', '/readyz', { once: true })
      const { value } = await scrape(gateway.metrics)
      const now = [value('auth_servers', { state: 'connected' }), value('auth_servers', { state: 'away' })]
      return now[0] === connected && now[1] === away
    })
  await servers(2, 0)
  second.child.kill('SIGKILL')
  await second.ended
  await servers(1, 1)
  await start()
  await servers(2, 0)
  t.pass()
})

test('metrics show when each certificate expires, and follow a replaced one', async t => {
  const authority = createAuthority('Authority')
  const midnight = Math.floor(Date.now() / 86_400_000) * 86_400_000
  const issue = (days: number) =>
    authority.issue({ name: 'auth', dnsNames: ['localhost'], until: new Date(midnight + days * 86_400_000) })
  const endOf = (days: number) => midnight / 1000 + days * 86_400
  const replace = async (path: string, content: Buffer) => {
    await writeFile(`${path}.new`, content)
    await rename(`${path}.new`, path)
  }
  const [http, inner] = [await writePems(t, issue(30)), await writePems(t, issue(60))]
  const tls = {
    AUTH_METRICS_ADDRESS: '127.0.0.1:0',
    AUTH_HTTP_TLS_CERT: http.cert,
    AUTH_HTTP_TLS_KEY: http.key,
    AUTH_TLS_CERT: inner.cert,
    AUTH_TLS_KEY: inner.key,
  }
  const { service } = await startTestService(t, tls)
  const gateway = await spawnGateway(t, '127.0.0.1:9', tls)
  t.regex(gateway.metrics, /^https:/)
  const read = async (url: string) => {
    const [answer] = await once(get(url, { ca: authority.certificate, servername: 'localhost' }), 'response')
    const ends = (await text(answer)).matchAll(/^auth_certificate_end_timestamp_seconds\{of="(\w+)"\} (\S+)$/gm)
    return Object.fromEntries([...ends].map(([, of, end]) => [of, Number(end)]))
  }
  const all = () =>
    Promise.all([read(`https://127.0.0.1:${service.addresses.metrics!.port}/metrics`), read(gateway.metrics)])
  t.deepEqual(await all(), [
    { grpc: endOf(60), http: endOf(30) },
    { servers: endOf(60), http: endOf(30) },
  ])
  const renewed = issue(90)
  await replace(http.cert, renewed.cert)
  await replace(http.key, renewed.key)
  await waitForValue(
    () => all(),
    value => value.every(ends => ends.http === endOf(90)),
  )
  t.is((await all())[0]!.grpc, endOf(60))
})
