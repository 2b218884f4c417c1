/** A gateway in a separate process, which reaches the services over gRPC, gives the same answers, including errors. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { getEventListeners, once } from 'node:events'
import { createServer as createHttp2Server, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { Code, type ConnectError } from '@connectrpc/connect'
import { status } from '@grpc/grpc-js'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { createRemoteTransport } from '../../gateway/remote.js'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Transaction } from '../../server/database/connection.js'
import { spawnServer } from '../_helpers/apart.js'
import { createAuthority, writePems } from '../_helpers/certificates.js'
import { keepLog } from '../_helpers/logged.js'
import { lockWaiters } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { createRequest, password, serviceForFile, type TestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue, within } from '../_helpers/wait.js'

const service = serviceForFile()
const authority = createAuthority('Authority')
const main = fileURLToPath(new URL('../../gateway/main.js', import.meta.url))

interface GatewayProcess {
  readonly http: string
  readonly child: ChildProcess
  readonly request: TestService['request']
  /** Its log: one JSON object a line. */
  log(): Record<string, unknown>[]
}

/** Starts a gateway in front of a gRPC target. */
async function spawnGateway(target: string, more: Record<string, string> = {}): Promise<GatewayProcess> {
  const child = spawn(process.execPath, [main], {
    env: {
      PATH: process.env.PATH,
      AUTH_SERVER_URL: target,
      AUTH_HTTP_ADDRESS: '127.0.0.1:0',
      AUTH_METRICS_ADDRESS: 'off',
      AUTH_TRUSTED_PROXIES: '127.0.0.1',
      ...more,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
  let logged = ''
  child.stdout.on('data', chunk => {
    logged += chunk
    keepLog(String(chunk))
  })
  for await (const line of createInterface({ input: child.stderr })) {
    const http = /^HTTP +(http:\S+)$/.exec(line)?.[1]
    if (!http) throw new Error(line)
    const lines = () => logged.split('\n').filter(line => line !== '')
    return { http, child, request: createRequest(http), log: () => lines().map(line => JSON.parse(line)) }
  }
  throw new Error('the gateway did not start')
}

async function kill({ child }: GatewayProcess): Promise<void> {
  if (child.exitCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

let gateway: GatewayProcess
let request: TestService['request']
test.before(async () => {
  gateway = await spawnGateway(service.grpc)
  request = gateway.request
})
test.after.always(() => kill(gateway))

test.serial('every operation works, in both revisions', async t => {
  for (const base of ['', '/1.0.0', '/1.0.2']) {
    const send = (method: string, path: string, options: Parameters<typeof request>[2] = {}) =>
      request(method, base + path, options)
    const ok = async (...all: Parameters<typeof send>) => {
      const { status, text, json } = await send(...all)
      t.is(status, 200, `${all[1]} ${text}`)
      return json ?? text
    }
    const questions = await ok('GET', '/forgotpasswords/findallforgotpasswordquestions')
    const username = `Zé ${randomUUID()}`
    const fields = { nickname: randomUUID(), password, state: 'CE', city: 'Crato', termsofusage: true }
    const body = { username, ...fields, roles: ['ROLE_INSTITUTION'], email: 'ze@example.org' }
    const token = await ok('POST', '/users/signup', { body })
    const organization = await service.organization()
    if (base === '/1.0.0') {
      const query = { username, emailpartner: organization.email }
      t.is(await ok('POST', '/users/sendadminkeybyemailpartner', { token, query }), '')
    }
    const query = { username, activationkey: organization.activationkey }
    t.is(await ok('POST', '/users/activate', { token, query }), username)
    t.is(claimsOf(await ok('POST', '/users/login', { body: { username, password } })).active, true)
    const me = await ok('GET', '/users/me', { token })
    t.is(`${me.active} ${me.partnerOrganization.id}`, `1 ${organization.id}`)
    t.is('email' in me.partnerOrganization, base === '/1.0.0')
    t.deepEqual(await ok('GET', `/users/${encodeURIComponent(username)}`, { token }), me)
    t.is(claimsOf(await ok('GET', '/users/refresh', { token })).sub, String(me.id))
    t.is(await ok('POST', '/users/existsByUsername', { query: { username } }), true)
    t.is(await ok('POST', '/users/existsByNickname', { query: { nickname: randomUUID() } }), false)
    const answers = questions
      .slice(0, 2)
      .map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer: 'a' }))
    for (const answer of answers) {
      const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
      t.is(await ok('POST', path, { token, body: answer }), '')
    }
    const byAnswers = await ok('POST', '/forgotpasswords/loginbyusernameandanswers', {
      query: { username },
      body: answers,
    })
    t.deepEqual(claimsOf(byAnswers).amr, ['kba'])
    t.is(await ok('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email: 'other@example.org' } }), '')
    await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
    const byKey = await ok('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key: 'ABCD2345' } })
    t.deepEqual(claimsOf(byKey).amr, ['otp'])
    const newPassword = { newPassword: 'sabiá-laranjeira 8' }
    t.is(await ok('POST', '/forgotpasswords/passwordupdatebyusername', { token: byKey, query: newPassword }), '')
    refused(t, await send('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  }
  t.true((await request('GET', '/.well-known/jwks.json')).json.keys.length > 0)
  t.is((await request('GET', '/healthz')).status, 200)
  await waitForValue(async () => (await request('GET', '/readyz')).status, 200)
})

test.serial('refusals carry status, reason, wrong fields, request id and the time to wait', async t => {
  refused(t, await request('GET', '/users/me'), 403, 'ACCESS_DENIED')
  refused(t, await request('GET', '/users/me', { token: 'bad' }), 500, 'INVALID_TOKEN')
  const body = {
    username: 'x',
    nickname: 7,
    password: 'short',
    state: 'ABC',
    city: 'ç',
    termsofusage: 'yes',
    roles: [],
  }
  const signUp = await request('POST', '/users/signup', { body })
  refused(t, signUp, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(signUp), ['nickname', 'password', 'roles', 'state', 'termsofusage'])
  const given = await request('POST', '/users/login', { headers: { 'x-request-id': 'abc-1' } })
  refused(t, given, 400, 'MISSING_PARAMETER')
  t.is(given.json.requestId, 'abc-1')
  t.deepEqual(wrongFields(given), ['password', 'username'])
  refused(t, await request('POST', '/users/signup', { body: '{' }), 400, 'MALFORMED_REQUEST')

  const headers = { 'x-forwarded-for': '198.51.100.77' }
  const { username } = await service.signUp('ROLE_CLIENT')
  const query = { username, password: 'wrong password' }
  for (let i = 0; i < 10; i++) {
    refused(t, await request('POST', '/users/login', { query, headers }), 404, 'INVALID_CREDENTIALS')
  }
  const held = await request('POST', '/users/login', { query, headers })
  refused(t, held, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(held.headers.get('retry-after')) > 840)
  const events = await service.registry.audit.list({ action: 'session.login', outcome: 'refused', limit: 20 })
  t.is(events.at(-1)?.address, '198.51.100.77')
})

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
    const patience = 1500
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
    const child = spawn(process.execPath, [main], { env: { PATH: process.env.PATH, [name]: value }, stdio: 'pipe' })
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

test('an internal error is logged where it happened, and not again by the gateway', async t => {
  const server = await spawnService(t, { AUTH_LOG_LEVEL: 'error', AUTH_HTTP_ADDRESS: '127.0.0.1:0' })
  const before = await spawnGateway(server.grpc)
  t.teardown(() => kill(before))
  const client = new pg.Client({ connectionString: server.databaseUrl })
  await client.connect()
  t.teardown(() => client.end())
  await client.query('ALTER TABLE questions RENAME TO questions_gone')
  const headers = { 'x-request-id': 'fault-1' }
  const answer = await before.request('GET', '/forgotpasswords/findallforgotpasswordquestions', { headers })
  refused(t, answer, 503, 'INTERNAL')
  t.is(answer.headers.get('retry-after'), null)
  await waitFor(() => server.output().includes('fault-1'))
  t.is(server.output().split('fault-1').length, 2)
  t.deepEqual(before.log(), [])
})

test('an unreachable server is logged by the gateway, without the request’s content', async t => {
  const alone = await spawnGateway('127.0.0.1:9')
  t.teardown(() => kill(alone))
  const headers = { 'x-request-id': 'lost-1' }
  const options = { query: { username: 'ana', password: 'secret word' }, headers, once: true }
  const answer = await alone.request('POST', '/users/login', options)
  refused(t, answer, 503, 'UNAVAILABLE')
  t.regex(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/)
  const log = () => alone.log().filter(({ server }) => server === undefined)
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

for (const [target, why, certificates] of [
  ['127.0.0.1:9', /connect ECONNREFUSED 127\.0\.0\.1:9$/, undefined],
  ['of another name', /certificate/, 'auth-gateway'],
] as const) {
  test(`a gateway of one server logs why it can’t connect, and that no other is ready: ${target}`, async t => {
    const files =
      certificates && (await writePems(t, { ca: authority.certificate, ...authority.issue({ name: certificates }) }))
    const tls = files && (await spawnServer(t, { AUTH_TLS_CERT: files.cert, AUTH_TLS_KEY: files.key }))
    const alone = await spawnGateway(tls?.grpc ?? target, files ? { AUTH_TLS_CA: files.ca } : {})
    t.teardown(() => kill(alone))
    const line = await waitFor(() => alone.log().find(({ server }) => server !== undefined))
    t.like(line, { level: 'warn', server: tls?.grpc ?? target, msg: 'a server is lost: no other is ready' })
    t.regex(String(line.why), why)
  })
}

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

test('a canceled call ends at once, and one canceled earlier isn’t started', async t => {
  const rpc = ForgotPasswords.method.findAllForgotPasswordQuestions
  const { calls, target } = await silentServer(t)
  const transport = createRemoteTransport({ target })
  t.teardown(() => transport.close())
  const canceler = new AbortController()
  const call = () => t.throwsAsync<ConnectError>(transport.unary(rpc, canceler.signal, undefined, undefined, {}))
  const first = call()
  await waitForValue(() => calls.length, 1)
  canceler.abort()
  for (const canceled of [first, call()]) {
    t.true(await within(10_000, canceled))
    t.is((await canceled).code, Code.Canceled)
  }
  // It is also canceled at the server.
  await waitFor(() => calls[0]!.closed)
  t.is(calls.length, 1)
})

test('an ended call leaves no listener on its signal', async t => {
  const rpc = ForgotPasswords.method.findAllForgotPasswordQuestions
  // A connection's signal exists much longer than its calls.
  const { signal } = new AbortController()
  t.true((await remote(t).unary(rpc, signal, 0, undefined, {})).message.questions.length > 0)
  t.is(getEventListeners(signal, 'abort').length, 0)
})

for (const [kind, make] of Object.entries({
  'a record': (pairs: [string, string][]) => Object.fromEntries(pairs),
  'a list': (pairs: [string, string][]) => pairs,
  Headers: (pairs: [string, string][]) => new Headers(pairs),
})) {
  test(`the remote transport accepts headers as ${kind}, and each response has its own headers`, async t => {
    const transport = remote(t)
    const { token } = await service.signUp('ROLE_CLIENT')
    const call = () =>
      transport.unary(Users.method.getMe, undefined, 5000, make([['Authorization', `Bearer ${token}`]]), {})
    const [first, second] = [await call(), await call()]
    t.is(first.message.user?.role, 'ROLE_CLIENT')
    first.header.set('x', 'y')
    first.trailer.set('x', 'y')
    t.is(second.header.get('x'), null)
    t.is(second.trailer.get('x'), null)
  })
}
