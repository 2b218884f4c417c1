/** A gateway in a separate process, which reaches the services over gRPC, gives the same answers, including errors. */
import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer as createHttp2Server, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Code, type ConnectError } from '@connectrpc/connect'
import { status } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { createRemoteTransport } from '../../gateway/remote.js'
import { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Transaction } from '../../server/database/database.js'
import { createScheduler, noHashing, schedulerLimits } from '../../server/limits/scheduler.js'
import { programs, spawnGateway, spawnServer } from '../_helpers/apart.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import type { Teardown } from '../_helpers/database.js'
import { openGateway } from '../_helpers/gateway.js'
import { lockWaiters } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { createRequest, serviceForFile, type TestService, teardownOfFile } from '../_helpers/service.js'
import { type Program, signalUntilEnded, spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const authority = createAuthority('Authority')

/** A gateway in front of a gRPC target; `log` has an object for each line of its log. */
async function gatewayAt(t: Teardown, target: string, env: Record<string, string> = {}) {
  const program = await spawnGateway(t, target, { AUTH_LIMIT_FACTOR: '1', ...env })
  const log = (): Record<string, unknown>[] =>
    [...program.output().matchAll(/^\{.*$/gm)].map(([line]) => JSON.parse(line))
  return { ...program, request: createRequest(program.http), log }
}

let request: TestService['request']
const hooks = teardownOfFile()
test.before(async () => {
  request = (await gatewayAt(hooks, service.grpc)).request
})

test.serial('what is no operation of the contract works, too', async t => {
  t.is((await request('POST', '/users/existsByUsername', { query: { username: 'admin' } })).json, true)
  t.is((await request('POST', '/users/existsByNickname', { query: { nickname: randomUUID() } })).json, false)
  t.true((await request('GET', '/.well-known/jwks.json')).json.keys.length > 0)
  t.is((await request('GET', '/healthz')).status, 200)
  await waitForValue(async () => (await request('GET', '/readyz')).status, 200)
})

test.serial(
  'refusals carry wrong fields, request id and the time to wait, and events the address of the client',
  async t => {
    const wrong = {
      username: 'x',
      nickname: 7,
      password: 'short',
      state: 'ABC',
      city: 'ç',
      termsofusage: 'yes',
      roles: [],
    }
    const signUp = await request('POST', '/users/signup', { body: wrong })
    refused(t, signUp, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(signUp), ['nickname', 'password', 'roles', 'state', 'termsofusage'])
    const given = await request('POST', '/users/login', { headers: { 'x-request-id': 'abc-1' } })
    refused(t, given, 400, 'MISSING_PARAMETER')
    t.is(given.json.requestId, 'abc-1')
    const headers = { 'x-forwarded-for': '198.51.100.77' }
    const query = { username: (await service.signUp('ROLE_CLIENT')).username, password: 'wrong password' }
    for (let i = 0; i < 10; i++) await request('POST', '/users/login', { query, headers })
    const held = await request('POST', '/users/login', { query, headers })
    refused(t, held, 429, 'TOO_MANY_ATTEMPTS')
    t.true(Number(held.headers.get('retry-after')) > 840)
    const events = await service.registry.audit.list({ action: 'session.login', outcome: 'refused', limit: 20 })
    t.is(events.at(-1)?.address, '198.51.100.77')
  },
)

test.serial('non-ASCII bytes in a header change no answer', async t => {
  const headers = { authorization: 'Bearer é', 'accept-language': 'português' }
  for (const send of [request, service.request]) {
    refused(t, await send('GET', '/users/me', { headers }), 500, 'INVALID_TOKEN')
    refused(t, await send('GET', '/users/me', { headers: { authorization: 'é' } }), 403, 'ACCESS_DENIED')
  }
})

test.serial('a call ends at its deadline even if the server would wait longer', async t => {
  const { database } = service.registry
  const hold = async (transaction: Transaction) => {
    await database.sequelize.query('LOCK TABLE questions, migrations', { transaction })
    const ask = () => request('GET', '/readyz', { once: true })
    // The last result is cached for a moment.
    await waitForValue(ask, value => value.status !== 200)
    const answer = await ask()
    refused(t, answer, 503, 'UNAVAILABLE')
    t.is(answer.headers.get('retry-after'), '1')
    const patience = 4_000
    const late = request('POST', '/auth.v1.ForgotPasswords/FindAllForgotPasswordQuestions', {
      body: {},
      headers: { 'connect-timeout-ms': String(patience) },
      once: true,
    })
    await waitForValue(
      () => lockWaiters(database, '%FROM questions%'),
      value => value > 0,
    )
    // The service, which is in this process, is frozen until after the deadline: only the gateway can answer.
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, patience + 500)
    t.is((await late).json.code, 'deadline_exceeded')
  }
  await database.transact(hold, { unlimited: true })
  t.is((await request('GET', '/readyz')).status, 200)
})

test('a gateway without an address or with an invalid setting refuses to start', async t => {
  for (const [name, value, message] of [
    ['AUTH_HTTP_ADDRESS', 'off', /AUTH_HTTP_ADDRESS/],
    ['AUTH_SERVER_URL', 'nowhere', /AUTH_SERVER_URL/],
  ] as const) {
    const child = spawn(process.execPath, [programs.gateway], { env: { PATH: process.env.PATH, [name]: value } })
    let said = ''
    child.stderr.on('data', chunk => {
      said += chunk
    })
    const [code] = await once(child, 'close')
    t.is(code, 1)
    t.regex(said, message)
    t.notRegex(said, / at /)
  }
})

test('an internal error is answered with 503 and logged once, with its request id, where it happened, also behind a gateway', async t => {
  const server = await spawnService(t, { AUTH_LOG_LEVEL: 'error' })
  const before = await gatewayAt(t, server.grpc)
  const client = new pg.Client({ connectionString: server.databaseUrl })
  await client.connect()
  t.teardown(() => client.end())
  await client.query('ALTER TABLE questions RENAME TO questions_gone')
  const rpc = '/auth.v1.ForgotPasswords/FindAllForgotPasswordQuestions'
  const lines = () => (server.output().match(/^\{.*$/gm) ?? []).map(line => JSON.parse(line))
  // Equal errors within a second are one line.
  const logged = () => lines().reduce((sum, { suppressed = 0 }) => sum + 1 + suppressed, 0)
  for (const [index, ask] of [createRequest(server.http), before.request].entries()) {
    const headers = { 'x-request-id': `fault-${index}` }
    const answer = await ask('GET', '/forgotpasswords/findallforgotpasswordquestions', { headers })
    refused(t, answer, 503, 'INTERNAL')
    t.is(answer.headers.get('retry-after'), null)
    t.is((await ask('POST', rpc, { body: {}, headers })).json.code, 'internal')
    refused(t, await ask('GET', '/nothing', { headers }), 404)
    await waitFor(() => logged() >= 2 * (index + 1), lines)
    t.like(lines().at(-1), { level: 'error', requestId: `fault-${index}`, rpc: 'FindAllForgotPasswordQuestions' })
  }
  t.is(logged(), 4)
  t.deepEqual(
    before.log().filter(({ level }) => level === 'error'),
    [],
  )
})

test('an unreachable server is logged by the gateway, without the request’s content', async t => {
  const alone = await gatewayAt(t, '127.0.0.1:9')
  const headers = { 'x-request-id': 'lost-1' }
  const options = { query: { username: 'ana', password: 'secret word' }, headers, once: true }
  const answer = await alone.request('POST', '/users/login', options)
  refused(t, answer, 503, 'UNAVAILABLE')
  t.regex(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/)
  const log = () => alone.log().filter(({ requestId }) => requestId !== undefined)
  await waitForValue(log, value => value.length > 1)
  const [line, access, ...more] = log()
  t.deepEqual(more, [])
  t.like(access, { msg: 'request', requestId: 'lost-1', path: '/users/login', status: 503, reason: 'UNAVAILABLE' })
  t.false(JSON.stringify(access).includes('ana'))
  const { level, requestId, msg, err } = line as { level: string; requestId: string; msg: string; err: Logged }
  t.deepEqual([level, requestId, msg], ['error', 'lost-1', 'request failed'])
  t.is(err.code, Code.Unavailable)
  t.is(err.cause.code, status.UNAVAILABLE)
  t.notRegex(JSON.stringify(line), /secret|127\.0\.0\.1|ECONN/)
})

test('a gateway logs why it can’t connect, and reports not ready', async t => {
  const files = await writePems(t, { ca: authority.certificate, ...authority.issue({ name: 'auth-gateway' }) })
  const misnamed = await spawnServer(t, { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key })
  for (const [target, why, env] of [
    ['127.0.0.1:9', /connect ECONNREFUSED 127\.0\.0\.1:9/, {}],
    [misnamed.grpc, /certificate/, { AUTH_TLS_CA: files.ca }],
  ] as const) {
    const alone = await gatewayAt(t, target, env)
    refused(t, await alone.request('GET', '/readyz', { once: true }), 503, 'UNAVAILABLE')
    const line = await waitFor(() => alone.log().find(({ why }) => why !== undefined))
    t.like(line, { level: 'warn', msg: 'a call was lost' })
    t.regex(String(line.why), why)
  }
})

test('a gateway obeys no proxy of the shell, and logs its stop', async t => {
  const proxy = 'http://127.0.0.1:9'
  const one = await gatewayAt(t, service.grpc, { http_proxy: proxy, https_proxy: proxy, grpc_proxy: proxy })
  t.is((await one.request('GET', '/readyz')).status, 200)
  one.child.kill('SIGINT')
  t.is(await one.ended, 0)
  t.deepEqual(
    one.log().flatMap(({ msg }) => (/^stop/.test(String(msg)) ? [msg] : [])),
    ['stopping', 'stopped'],
  )
})

test('gateway and server warn once of calls from or to other machines without TLS', async t => {
  const warnings = async (setting: string, started: Program) => {
    // Writes what the log has buffered.
    await signalUntilEnded(started, 'SIGINT')
    return started.output().split(`${setting} is not set: passwords and tokens pass in clear text`).length - 1
  }
  t.is(await warnings('AUTH_TLS_CA', await gatewayAt(t, '192.0.2.1:50051')), 1)
  t.is(await warnings('AUTH_TLS_CA', await gatewayAt(t, 'dns:///localhost:9')), 0)
  t.is(await warnings('AUTH_TLS_CERT', await spawnServer(t, { AUTH_GRPC_ADDRESS: '0.0.0.0:0' })), 1)
  t.is(await warnings('AUTH_TLS_CERT', await spawnServer(t)), 0)
})

interface Logged {
  readonly code: number
  readonly cause: Logged
}

/** A transport to the service's gRPC port. */
function remote(t: ExecutionContext) {
  const transport = createRemoteTransport({ target: service.grpc })
  t.teardown(() => transport.close())
  return transport
}

/** A server that accepts calls and answers none. */
async function silentServer(t: ExecutionContext) {
  const calls: ServerHttp2Stream[] = []
  const server = createHttp2Server().on('stream', (stream, headers) => {
    stream.on('error', () => {})
    // In addition to health checks.
    if (!headers[':path']!.startsWith('/grpc.health.v1.')) calls.push(stream)
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => {
    server.close()
  })
  return { calls, target: `127.0.0.1:${(server.address() as AddressInfo).port}` }
}

test('a call that its client gives up is left to the server, and one canceled earlier isn’t started', async t => {
  const rpc = ForgotPasswords.method.findAllForgotPasswordQuestions
  const { calls, target } = await silentServer(t)
  const transport = createRemoteTransport({ target })
  t.teardown(() => transport.close())
  const canceler = new AbortController()
  const call = (signal?: AbortSignal) => t.throwsAsync<ConnectError>(transport.unary(rpc, signal, 4_000, undefined, {}))
  const first = call(canceler.signal)
  await waitForValue(() => calls.length, 1)
  canceler.abort()
  t.is((await call(canceler.signal)).code, Code.Canceled)
  // On the same connection: the end of the first stream would have come before.
  const second = call()
  await waitForValue(() => calls.length, 2)
  t.false(calls[0]!.closed)
  for (const each of [first, second]) t.is((await each).code, Code.DeadlineExceeded)
  await waitFor(() => calls.every(({ closed }) => closed))
  t.is(calls.length, 2)
})

for (const path of ['/forgotpasswords/loginbyusernameandanswers', '/users/login'])
  test(`${path}: a call that waits for a hash holds no slot of the gateway`, async t => {
    const { calls, target } = await silentServer(t)
    const transport = createRemoteTransport({ target })
    t.teardown(() => transport.close())
    const scheduler = createScheduler(schedulerLimits, noHashing)
    const { request } = await openGateway(t, {}, { transport, scheduler })
    const query = { username: 'ana', password: 'x' }
    void request('POST', path, { query, ...(path !== '/users/login' && { body: [] }) }).catch(() => {})
    await waitForValue(() => calls.length, 1)
    t.is(scheduler.stats().running, 0)
  })

test('the remote transport accepts headers in any form, and each response has its own headers', async t => {
  const transport = remote(t)
  const { token } = await service.signUp('ROLE_CLIENT')
  const Authorization = `Bearer ${token}`
  for (const given of [{ Authorization }, Object.entries({ Authorization }), new Headers({ Authorization })]) {
    const call = () => transport.unary(Users.method.getMe, undefined, 5000, given, {})
    const [first, second] = [await call(), await call()]
    t.is(first.message.user?.role, 'ROLE_CLIENT')
    for (const part of ['header', 'trailer'] as const) {
      first[part].set('x', 'y')
      t.is(second[part].get('x'), null)
    }
  }
})

/** A server that closes every connection at its first call, or with `late` once it has started to answer. */
async function breakingServer(t: ExecutionContext, late: boolean) {
  const paths: unknown[] = []
  const server = createHttp2Server().on('stream', (stream, headers) => {
    stream.on('error', () => {})
    paths.push(headers[':path'])
    if (!late) return stream.session?.destroy()
    stream.respond({ ':status': 200, 'content-type': 'application/grpc' })
    setTimeout(() => stream.session?.destroy(), 50)
  })
  server.on('session', session => session.on('error', () => {}))
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(async () => void server.close())
  return { paths, target: `127.0.0.1:${(server.address() as AddressInfo).port}` }
}

test('a lost call is UNAVAILABLE; it is repeated once if it reads and its answer had not begun, else never', async t => {
  for (const late of [false, true]) {
    const { paths, target } = await breakingServer(t, late)
    for (const rpc of [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]) {
      const transport = createRemoteTransport({ target })
      paths.length = 0
      const error = await t.throwsAsync<ConnectError>(transport.unary(rpc, undefined, 30_000, undefined, {}))
      transport.close()
      t.is(error.code, Code.Unavailable, rpc.name)
      const isRead = /^(Get|BatchGet|List|Exists|FindAll|VerifyToken|Introspect|Poll)/.test(rpc.name)
      t.true(paths.length >= 1 && paths.length <= (isRead && !late ? 2 : 1), `${rpc.name} ${paths.length}`)
    }
  }
})

test('metadata of any size cross in both directions, with the refusals that they have in one process', async t => {
  const long = 'x'.repeat(15_000)
  const given: Record<string, string>[] = [
    { authorization: `Bearer ${long}` },
    {
      authorization: `Bearer ${'x'.repeat(4_096)}`,
      'accept-language': long.slice(0, 5_000),
      tracestate: long.slice(0, 5_000),
    },
  ]
  for (const headers of given)
    for (const send of [request, service.request])
      refused(t, await send('GET', '/users/me', { headers, once: true }), 500, 'INVALID_TOKEN')
  for (const count of [1, 10, 11, 2_000]) {
    const answers = Array.from({ length: count }, (_, index) => index)
    const body = { username: 'admin', answers }
    const wrong = await request('POST', '/forgotpasswords/loginbyusernameandanswers', { body, once: true })
    refused(t, wrong, 400, 'MALFORMED_REQUEST')
    // A list that is too long is one fault.
    t.is(wrong.json.errors.length, count > 10 ? 1 : count)
    t.is(wrong.json.errors[0].field, count > 10 ? 'answers' : 'answers[0]')
    t.is(
      (await request('POST', '/auth.v1.ForgotPasswords/LoginByUsernameAndAnswers', { body, once: true })).json.code,
      'invalid_argument',
    )
  }
  t.is((await request('GET', '/readyz')).status, 200)
})
