/** A proxy that AUTH_TRUSTED_PROXIES doesn't name is reported in the log, as a metric, and by doctor. */
import { once } from 'node:events'
import { get } from 'node:http'
import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'
import { Registry } from 'prom-client'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createUndeclaredProxies } from '../../server/observability/undeclared-proxy.js'
import { openSignedIn } from '../_helpers/administration.js'
import { openGrpc } from '../_helpers/grpc.js'
import { scrape } from '../_helpers/metrics.js'
import { startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'

const forwarded = { 'x-forwarded-for': '203.0.113.7' }

/** A service that by default trusts no proxy, the seconds that its clock is ahead, and its warnings. */
async function start(t: ExecutionContext, trusted = '') {
  let ahead = 0
  const lines: string[] = []
  const service = await startTestService(
    t,
    { AUTH_METRICS_ADDRESS: '127.0.0.1:0', AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_TRUSTED_PROXIES: trusted },
    { clock: { now: () => Date.now() + ahead * 1000 }, onLine: line => void lines.push(line) },
  )
  const port = Number(new URL(service.http).port)

  /** Sends so many requests from an address of this machine. */
  async function send(count: number, headers: Record<string, string> = {}, localAddress = '127.0.0.1') {
    for (let n = 0; n < count; n++) {
      const [answer] = await once(get({ port, host: '127.0.0.1', path: '/healthz', localAddress, headers }), 'response')
      await once(answer.resume(), 'end')
    }
  }
  return {
    ...service,
    send,
    pass(seconds: number) {
      ahead += seconds
    },
    warnings: () =>
      lines.map(line => JSON.parse(line)).filter(({ msg }) => String(msg).includes('AUTH_TRUSTED_PROXIES')),
    metric: async (endpoint: string) => (await scrape(service)).value('auth_undeclared_proxy', { endpoint }),
  }
}

test('an untrusted proxy causes a warning once an hour, and appears in the metric and in doctor', async t => {
  const service = await start(t)
  const { send, pass, warnings, metric } = service
  const doctor = async () => {
    const { checks } = await (await openSignedIn(t, service)).diagnose({})
    return checks.find(({ check }) => check === 'client addresses')!
  }
  t.is((await doctor()).status, 'ok')
  t.is(await metric('http'), 0)
  await send(35, forwarded, '127.0.0.1')
  await send(25, forwarded, '127.0.0.2')
  t.is(await metric('http'), 0)
  pass(61)
  t.is(await metric('http'), 1)
  t.is(await metric('grpc'), 0)
  const [warning, ...more] = warnings()
  t.deepEqual(more, [])
  const { level, endpoint, networks, requests } = warning
  t.deepEqual(
    { level, endpoint, networks, requests, forwarded: warning.forwarded },
    { level: 'warn', endpoint: 'http', networks: ['127.0.0.1', '127.0.0.2'], requests: 60, forwarded: 60 },
  )
  const { status, detail, fix } = await doctor()
  t.is(status, 'warning')
  t.regex(detail, /^Of 60 requests .*, 60 carried X-Forwarded-For and came from 127\.0\.0\.1, 127\.0\.0\.2, not in/)
  t.regex(fix, /AUTH_TRUSTED_PROXIES/)

  await send(60, forwarded)
  pass(61)
  t.is(await metric('http'), 1)
  t.is(warnings().length, 1)
  pass(3_600)
  t.is(await metric('http'), 0)
  t.is((await doctor()).status, 'ok')
  await send(60, forwarded)
  pass(61)
  t.is(await metric('http'), 1)
  t.is(warnings().length, 2)
})

test('an untrusted proxy is also detected over gRPC, and a service that may forward addresses is not taken for one', async t => {
  const service = await start(t)
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const send = async (metadata: Record<string, string>) => {
    for (let n = 0; n < 60; n++) await client.call(Users.method.getKeys, {}, { metadata })
    service.pass(61)
    return service.metric('grpc')
  }
  const authorization = `Bearer ${await serviceKey(service, ['clients.forward'])}`
  t.is(await send({ ...forwarded, authorization }), 0)
  t.is(await send(forwarded), 1)
  t.deepEqual(
    service.warnings().map(({ endpoint }) => endpoint),
    ['grpc'],
  )
})

test('a proxy is detected exactly when 8 peers sent most of at least 60 requests, with the header', t => {
  const request = fc.record({
    peer: fc.integer({ min: 1, max: 14 }),
    forwarded: fc.boolean(),
    proxied: fc.boolean(),
  })
  fc.assert(
    fc.property(
      fc.array(fc.tuple(request, fc.integer({ min: 1, max: 12 })), { maxLength: 40 }),
      fc.boolean(),
      (groups, back) => {
        let time = 1_000_000_000
        let warned = 0
        const warn = () => void warned++
        const proxies = createUndeclaredProxies({ registry: new Registry(), log: { warn }, now: () => time })
        const onSender = proxies.watch('http')
        const counts = new Map<number, number>()
        let total = 0
        for (const [{ peer, forwarded, proxied }, times] of groups)
          for (let n = 0; n < times; n++) {
            onSender({ address: `192.0.2.${peer}`, proxied }, forwarded ? '203.0.113.7' : undefined)
            total++
            if (forwarded && !proxied) counts.set(peer, (counts.get(peer) ?? 0) + 1)
          }
        t.deepEqual(proxies.found(), [])
        // A clock that is set back ends the minute, too.
        time += back ? -1 : 60_000
        const greatest = [...counts.values()].sort((a, b) => b - a).slice(0, 8)
        const most = greatest.reduce((sum, count) => sum + count, 0)
        const expected = total >= 60 && 2 * most > total
        t.is(proxies.found().length, Number(expected))
        t.is(warned, Number(expected))
      },
    ),
    { numRuns: 500 },
  )
})
