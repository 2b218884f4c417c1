/** Access lines: one for each call or request, with caller and outcome, without user input. */

import { once } from 'node:events'
import { get } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { credentials } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import fc from 'fast-check'
import { Registry } from 'prom-client'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createLog } from '../../server/observability/log.js'
import { createUndeclaredProxies } from '../../server/observability/undeclared-proxy.js'
import { accessLines, accessOf, launchGateway } from '../_helpers/access-lines.js'
import { openSignedIn } from '../_helpers/administration.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { grpcOf } from '../_helpers/grpc.js'
import { scrape } from '../_helpers/metrics.js'
import { sendRaw } from '../_helpers/raw.js'
import { createRequest, password, signUpForm, startTestService, teardownOfFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { type Spawned, spawnService } from '../_helpers/spawned.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const traceId = '0af7651916cd43dd8448eb211c80319c'
const traceparent = `00-${traceId}-b7ad6b7169203331-01`

// Those tests share it that look for lines by the ids of their requests.
let shared: Spawned
const hooks = teardownOfFile()
test.before(async () => {
  shared = await spawnService(hooks)
})

const login = async ({ http }: Spawned) => {
  const query = { username: 'admin', password }
  return (await createRequest(http)('POST', '/users/login', { query })).text
}

/** Asserts that each request, by its id, has one line, at info, with these fields. */
async function assertLines(t: ExecutionContext, service: Spawned, expected: Record<string, object>) {
  for (const [requestId, fields] of Object.entries(expected)) {
    const lines = await accessOf(service, requestId)
    t.is(lines.length, 1, requestId)
    const { time, ms, ...rest } = lines[0]!
    t.deepEqual(rest, { level: 'info', requestId, ...fields })
    t.true(typeof ms === 'number' && ms >= 0 && Date.parse(String(time)) > 0)
  }
}

test('a call logs one line at info: RPC, outcome, milliseconds, caller and network', async t => {
  const request = createRequest(shared.http)
  const token = await login(shared)
  const from = (requestId: string, address = '192.0.2.77', more = {}) => ({
    headers: { 'x-request-id': requestId, 'x-forwarded-for': address, ...more },
  })
  const query = { username: 'admin', password }
  await request('GET', '/users/me', { token, ...from('me', '2001:db8:1:2:3::4', { traceparent }) })
  await request('GET', '/users/me', from('anonymous', '192.0.2.77', { traceparent: 'hunter2' }))
  await request('POST', '/users/login', { query, ...from('in') })
  await request('POST', '/users/login', { query: { ...query, password: 'x' }, ...from('out') })
  await request('POST', '/auth.v1.Users/GetMe', { token, body: {}, ...from('connect') })
  const form = signUpForm({ username: 'muito-secreta', nickname: 'apelido secreto' })
  await request('POST', '/users/signup', { body: form, ...from('up') })
  const grpc = grpcOf(t, shared.grpc)
  const metadata = { 'x-request-id': 'grpc', 'x-forwarded-for': '192.0.2.9', traceparent }
  await grpc.call(Users.method.getMe, {}, { token, metadata })

  const user = idOf(token)
  const here = { msg: 'call', network: '192.0.2.77', endpoint: 'http' }
  await assertLines(t, shared, {
    me: { ...here, rpc: 'GetMe', status: 'OK', user, network: '2001:db8:1:2::/64', traceId },
    anonymous: { ...here, rpc: 'GetMe', status: 'PERMISSION_DENIED', reason: 'ACCESS_DENIED' },
    in: { ...here, rpc: 'Login', status: 'OK', user },
    out: { ...here, rpc: 'Login', status: 'UNAUTHENTICATED', reason: 'INVALID_CREDENTIALS', user },
    connect: { ...here, rpc: 'GetMe', status: 'OK', user },
    up: { ...here, rpc: 'SignUp', status: 'OK' },
    grpc: { ...here, rpc: 'GetMe', status: 'OK', user, network: '192.0.2.9', endpoint: 'grpc', traceId },
  })
  t.notRegex(shared.output(), /secret[ao]/)
})

test('a request that reaches no RPC logs one line, without user input', async t => {
  const request = createRequest(shared.http)
  const secret = 'typed-by-an-attacker'
  const send = (requestId: string, method: string, path: string, more = {}) =>
    request(method, path, { ...more, headers: { 'x-request-id': requestId, traceparent } })
  await send('unknown', 'GET', `/${secret}?password=${secret}`)
  await send('method', 'PUT', `/users/login?password=${secret}`)
  await send('json', 'POST', '/users/signup', { body: `{"password":"${secret}` })
  await send('large', 'POST', '/users/signup', { body: { password: secret.repeat(10_000) } })
  await send('variable', 'DELETE', `/users/${secret}`)
  await send('not-connect', 'POST', '/unknown.v1.Users/GetMe', { body: `{${secret}` })
  await send('options', 'OPTIONS', '/users/me')
  const here = { msg: 'request', network: '127.0.0.1', endpoint: 'http', traceId }
  await assertLines(t, shared, {
    unknown: { ...here, method: 'GET', status: 404, reason: 'NOT_FOUND' },
    method: { ...here, method: 'PUT', path: '/users/login', status: 405, reason: 'METHOD_NOT_ALLOWED' },
    json: { ...here, method: 'POST', path: '/users/signup', status: 400, reason: 'MALFORMED_REQUEST' },
    large: { ...here, method: 'POST', path: '/users/signup', status: 413, reason: 'PAYLOAD_TOO_LARGE' },
    variable: { ...here, method: 'DELETE', path: '/users/{username}', status: 405, reason: 'METHOD_NOT_ALLOWED' },
    'not-connect': { ...here, method: 'POST', status: 404, reason: 'NOT_FOUND' },
    options: { ...here, method: 'OPTIONS', path: '/users/me', status: 204 },
  })
  t.false(shared.output().includes(secret))
})

test('probes and scrapes log no line, an invalid request or one with too many headers its refusal', async t => {
  const service = await spawnService(t, { AUTH_METRICS_ADDRESS: '127.0.0.1:0' })
  const metrics = /metrics +(\S+)/.exec(service.output())![1]!
  for (const url of [`${service.http}/healthz`, `${service.http}/readyz`, metrics])
    await waitForValue(async () => (await fetch(url)).status, 200)
  const port = Number(new URL(service.http).port)
  await sendRaw(port, ['typed-by-an-attacker\r\n\r\n'])
  await sendRaw(port, [`GET / HTTP/1.1\r\nhost: x\r\nx: ${'typed-by-an-attacker'.repeat(2000)}\r\n\r\n`])
  const lines = await waitFor(() => accessLines(service).length > 1 && accessLines(service), service.output)
  const here = { level: 'info', msg: 'request', network: '127.0.0.1', endpoint: 'http' }
  t.deepEqual(
    lines.map(({ time, requestId, ...line }) => line),
    [
      { ...here, status: 400, reason: 'MALFORMED_REQUEST' },
      { ...here, status: 431, reason: 'HEADERS_TOO_LARGE' },
    ],
  )
  t.false(service.output().includes('attacker'))
})

test('a separate gateway logs the requests that it answers itself, and the server logs calls', async t => {
  const service = await spawnService(t)
  const gateway = await launchGateway(t, service.grpc)
  const request = createRequest(gateway.http)
  const headers = (requestId: string) => ({ 'x-request-id': requestId, 'x-forwarded-for': '192.0.2.5', traceparent })
  await request('GET', '/users/me', { headers: headers('refused') })
  await request('GET', '/nowhere', { headers: headers('unknown') })
  const [call] = await accessOf(service, 'refused')
  t.like(call, { rpc: 'GetMe', reason: 'ACCESS_DENIED', network: '192.0.2.5', endpoint: 'grpc', traceId })
  const [unknown] = await accessOf(gateway, 'unknown')
  t.like(unknown, { status: 404, network: '192.0.2.5', endpoint: 'http', traceId })
  const ids = (lines: readonly { requestId?: unknown }[]) => lines.map(({ requestId }) => requestId)
  t.deepEqual(ids(accessLines(gateway)), ['unknown'])
  t.false(ids(accessLines(service)).includes('unknown'))

  service.child.kill('SIGKILL')
  await service.ended
  await request('GET', '/users/me', { headers: headers('lost'), once: true })
  t.like((await accessOf(gateway, 'lost'))[0], { path: '/users/me', status: 503, reason: 'UNAVAILABLE' })
})

for (const [how, end] of [
  ['ends', 'process.exit()'],
  ['crashes', "throw new Error('crash')"],
] as const) {
  test(`no line is lost when the process ${how}, even directly after the response`, async t => {
    const program = `import { subscribe } from 'node:diagnostics_channel'
      subscribe('http.server.response.finish', ({ request }) => {
        if (request.headers['x-request-id'] === 'last') setImmediate(() => { ${end} })
      })`
    const flags = ['--import', `data:text/javascript,${encodeURIComponent(program)}`]
    const service = await spawnService(t, {}, { flags })
    const request = createRequest(service.http)
    for (const id of ['first', 'last']) await request('GET', '/users/me', { headers: { 'x-request-id': id } })
    await service.ended
    // Lines that a thread was about to write come after those written at the end.
    const ids = accessLines(service).map(({ requestId }) => requestId)
    t.deepEqual(ids.sort(), ['first', 'last'])
  })
}

test('a gRPC caller with a certificate is named by the certificate, a gateway is not', async t => {
  const authority = createAuthority('Authority')
  const own = authority.issue({ name: 'auth-server', addresses: ['127.0.0.1'] })
  const { cert, key, ca } = await writePems(t, { ca: authority.certificate, ...own })
  const service = await spawnService(t, { AUTH_TLS_CERT: cert, AUTH_TLS_KEY: key, AUTH_TLS_CA: ca })
  for (const name of ['reports', 'auth-gateway']) {
    const own = authority.issue({ name })
    const grpc = grpcOf(t, service.grpc, credentials.createSsl(authority.certificate, own.key, own.cert))
    // Only a gateway can set the request id.
    await grpc.call(Users.method.existsByNickname, { nickname: 'x' }, { metadata: { 'x-request-id': 'named' } })
  }
  const lines = await waitFor(() => {
    const all = accessLines(service).filter(({ rpc }) => rpc === 'ExistsByNickname')
    return all.length === 2 && all
  }, service.output)
  t.deepEqual(
    lines.map(({ service, requestId }) => [service, requestId === 'named']),
    [
      ['reports', false],
      [undefined, true],
    ],
  )
})

test('the line of a failed sign-in has the id of the account, if there is one, and never the name that was typed', async t => {
  const service = await spawnService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const id = idOf(await login(service))
  const request = createRequest(service.http)
  const send = (requestId: string, path: string, form: Record<string, string>, body?: object) =>
    request('POST', path, { query: form, headers: { 'x-request-id': requestId }, ...(body && { body }) })
  const typed = { username: 'AdMin', password: 'x' }
  await send('password', '/users/login', typed)
  await send('key', '/forgotpasswords/loginbyusernameandkey', { username: 'AdMin', key: 'ABCD2345' })
  await send('answers', '/forgotpasswords/loginbyusernameandanswers', { username: 'AdMin' }, [
    { forgotpasswordquestions: { id: 1 }, answer: 'x' },
  ])
  await send('nobody', '/users/login', { username: 'nome-digitado', password: 'x' })
  for (let index = 0; index < 9; index++) await send(`more ${index}`, '/users/login', typed)
  await send('locked', '/users/login', typed)
  for (const [requestId, [reason, user]] of Object.entries({
    password: ['INVALID_CREDENTIALS', id],
    key: ['INVALID_KEY', id],
    answers: [undefined, id],
    nobody: ['INVALID_CREDENTIALS', undefined],
    locked: ['TOO_MANY_ATTEMPTS', id],
  })) {
    const [line] = await accessOf(service, requestId)
    t.is(line?.user, user, requestId)
    if (reason) t.is(line?.reason, reason, requestId)
  }
  t.notRegex(service.output(), /AdMin|nome-digitado/)
})

// The log.

test('texts that an error or a field may quote stay out of the log', t => {
  const lines: string[] = []
  const log = createLog('info', line => lines.push(line))
  const cause = Object.assign(new Error('Key (username)=(hunter2) exists'), { code: '23505', detail: 'hunter2' })
  log.error({ err: new Error('could not log in with hunter2', { cause }), requestId: 'r1' }, 'call failed')
  log.warn({ password: 'hunter2', user: { token: 'hunter2' } }, 'by mistake')
  log.debug('not at this level')
  t.is(lines.length, 2)
  t.false(lines.join('').includes('hunter2'))
  const { level, msg, requestId, err } = JSON.parse(lines[0]!)
  t.deepEqual({ level, msg, requestId }, { level: 'error', msg: 'call failed', requestId: 'r1' })
  t.is(err.type, 'Error')
  t.is(err.cause.code, '23505')
  t.regex(err.stack[0], /^at /)
})

test('of entries with the same message and error one is written a second, with the number left out; others are all written', async t => {
  const lines: Record<string, unknown>[] = []
  const log = createLog('info', line => lines.push(JSON.parse(line)))
  const refused = () => Object.assign(new Error('connect'), { code: 'ECONNREFUSED' })
  const outage = (from: number, to: number) => {
    for (let id = from; id <= to; id++) log.error({ err: refused(), id }, 'call failed')
  }
  const written = () => lines.splice(0).map(({ msg, id, suppressed }) => [msg, id, suppressed])
  outage(1, 300)
  for (const id of [1, 2]) log.info({ id }, 'call')
  log.error({ err: refused(), id: 1 }, 'mail failed')
  log.error({ err: Object.assign(new Error(''), { code: '57P03' }), id: 1 }, 'call failed')
  t.deepEqual(written(), [
    ['call failed', 1, undefined],
    ['call', 1, undefined],
    ['call', 2, undefined],
    ['mail failed', 1, undefined],
    ['call failed', 1, undefined],
  ])
  await waitForValue(
    () => lines,
    value => value.length > 0,
  )
  t.deepEqual(written(), [['call failed', 300, 298]])
  outage(301, 302)
  await waitForValue(
    () => lines,
    value => value.length > 0,
  )
  t.deepEqual(written(), [['call failed', 302, 1]])
  // A quiet second ends it.
  await sleep(1_500)
  outage(303, 303)
  t.deepEqual(written(), [['call failed', 303, undefined]])
})

test('external faults are logged without a stack trace, and all others with one', t => {
  const lines: string[] = []
  const log = createLog('info', line => lines.push(line))
  const fault = (code: unknown, type = Error) => Object.assign(new type('x'), { code })
  const codes = ['ECONNREFUSED', 'ETIMEDOUT', 'EAI_AGAIN', 'ENOSPC', '08006', '25006', '53100', '57P01', '55P03', 14, 4]
  const ended = ['Connection terminated unexpectedly', 'Client has encountered a connection error and is not queryable']
  const lost = ended.map(text => new Error('statement', { cause: new Error(text) }))
  for (const [index, err] of [...codes.map(code => fault(code)), ...lost].entries())
    log.error({ err }, `failure ${index}`)
  const faults = lines.splice(0)
  t.is(faults.length, codes.length + lost.length)
  t.notRegex(faults.join(''), /stack/)
  const others = [fault('ERR_INVALID_ARG_TYPE'), fault('23505'), fault('42P01'), fault(13), fault(undefined, TypeError)]
  for (const err of others) log.error({ err }, 'failed')
  t.is(lines.length, others.length)
  for (const line of lines) t.regex(line, /"stack":\["at /)
})

test('a request for tokens logs the client that it names, also with a wrong secret, and nothing that isn’t a client', async t => {
  const lines: string[] = []
  const onLine = (line: string) => void lines.push(line)
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }, { onLine })
  const admin = await openSignedIn(t, service)
  await admin.createService({ name: 'grafana', redirectUris: ['https://grafana.example.org/callback'] })
  for (const client_id of ['grafana', 'typed-by-an-attacker']) {
    const form = { client_id, client_secret: 'wrong', grant_type: 'authorization_code', code: 'x' }
    await fetch(`${service.http}/oauth/token`, { method: 'POST', body: new URLSearchParams(form) })
  }
  const exchanges = () => lines.map(line => JSON.parse(line)).filter(({ rpc }) => rpc === 'ExchangeToken')
  await waitForValue(() => exchanges().length, 2)
  t.deepEqual(
    exchanges().map(({ service, reason }) => [service, reason]),
    [
      ['grafana', 'INVALID_CLIENT'],
      [undefined, 'INVALID_CLIENT'],
    ],
  )
})

// A proxy that AUTH_TRUSTED_PROXIES doesn't name is reported in the log, as a metric, and by doctor.

const forwarded = { 'x-forwarded-for': '203.0.113.7' }

/** A service that trusts no proxy, the seconds that its clock is ahead, and its warnings. */
async function start(t: ExecutionContext) {
  let ahead = 0
  const lines: string[] = []
  const service = await startTestService(
    t,
    { AUTH_METRICS_ADDRESS: '127.0.0.1:0', AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_TRUSTED_PROXIES: '' },
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
    lines,
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
  await send(35, forwarded, '127.0.0.1')
  await send(25, forwarded, '127.0.0.2')
  t.is(await metric('http'), 0)
  pass(61)
  t.deepEqual([await metric('http'), await metric('grpc')], [1, 0])
  t.is(warnings().length, 1)
  const networks = ['127.0.0.1', '127.0.0.2']
  t.like(warnings()[0], { level: 'warn', endpoint: 'http', networks, requests: 60, forwarded: 60 })
  const { status, detail, fix } = await doctor()
  t.is(status, 'warning')
  t.regex(detail, /^Of 60 requests .*, 60 carried X-Forwarded-For and came from 127\.0\.0\.1, 127\.0\.0\.2, not in/)
  t.regex(fix, /AUTH_TRUSTED_PROXIES/)

  for (const count of [1, 2]) {
    await send(60, forwarded)
    pass(61)
    t.is(await metric('http'), 1)
    t.is(warnings().length, count)
    if (count === 2) break
    pass(3_600)
    t.is(await metric('http'), 0)
    t.is((await doctor()).status, 'ok')
  }
})

test('over gRPC an untrusted proxy is detected, and no service that forwards addresses, whose calls without one are logged once', async t => {
  const service = await start(t)
  const client = grpcOf(t, service.grpc)
  const send = async (metadata: Record<string, string>) => {
    for (let n = 0; n < 60; n++) await client.call(Users.method.getKeys, {}, { metadata })
    service.pass(61)
    return service.metric('grpc')
  }
  const key = await serviceKey(service, ['clients.forward'], 'silent')
  t.is(await send({ ...forwarded, authorization: `Bearer ${key}` }), 0)
  const silent = () => service.lines.filter(line => line.includes('"service":"silent"') && line.includes('"warn"'))
  t.deepEqual(silent(), [])
  for (let n = 0; n < 5; n++) await client.call(Users.method.getKeys, {}, { token: key })
  t.is(silent().length, 1)
  t.false(service.lines.join('').includes(key))
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
