/** A gateway in a process of its own, which reaches the services over gRPC: the same answers, errors and all. */
import { type ChildProcess, spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import test from 'ava'
import { createGateway } from '../../gateway/http.js'
import { createRemoteTransport } from '../../gateway/remote.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { createRequest, password, serviceForFile, type TestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
let gateway: ChildProcess
let request: TestService['request']

test.before(async () => {
  const main = fileURLToPath(new URL('../../gateway/main.js', import.meta.url))
  gateway = spawn(process.execPath, [main], {
    env: {
      PATH: process.env.PATH,
      AUTH_SERVER_URL: service.grpc,
      AUTH_HTTP_ADDRESS: '127.0.0.1:0',
      AUTH_TRUSTED_PROXIES: '127.0.0.1',
    },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  for await (const line of createInterface({ input: gateway.stdout! })) {
    const url = /http:\/\/\S+?(?=,|$)/.exec(line)?.[0]
    if (!url) continue
    request = createRequest(url)
    return
  }
  throw new Error('the gateway did not start')
})
test.after.always(async () => {
  if (gateway.exitCode === null) {
    gateway.kill('SIGKILL')
    await once(gateway, 'exit')
  }
})

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
  t.is((await request('GET', '/readyz')).status, 200)
})

test.serial('refusals come through with status, reason, wrong fields, request id and the time to wait', async t => {
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
  const query = { username: randomUUID(), password: 'wrong password' }
  for (let i = 0; i < 10; i++) {
    refused(t, await request('POST', '/users/login', { query, headers }), 404, 'INVALID_CREDENTIALS')
  }
  const held = await request('POST', '/users/login', { query, headers })
  refused(t, held, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(held.headers.get('retry-after')) > 840)
  const events = await service.registry.audit.list({ action: 'session.login', outcome: 'refused', limit: 20 })
  t.is(events.at(-1)?.address, '198.51.100.77')
})

test.serial('the gateway ends on SIGTERM', async t => {
  gateway.kill('SIGTERM')
  const [code] = await once(gateway, 'exit')
  t.is(code, 0)
})

test('while no server answers, the gateway says 503 with Retry-After', async t => {
  const transport = createRemoteTransport({ target: '127.0.0.1:9' })
  const options = { defaultRevision: '1.0.2', trustedProxies: [], corsOrigins: [], log: { error() {} } } as const
  const alone = createGateway({ ...options, transport, address: { host: '127.0.0.1', port: 0 } })
  const { port } = await alone.listen()
  t.teardown(async () => {
    await alone.close(0)
    transport.close()
  })
  const ask = createRequest(`http://127.0.0.1:${port}`)
  for (const [method, path] of [
    ['GET', '/users/me'],
    ['POST', '/users/login?username=a&password=b'],
    ['GET', '/.well-known/jwks.json'],
  ] as const) {
    const answer = await ask(method, path)
    refused(t, answer, 503, 'UNAVAILABLE')
    t.regex(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/)
    t.notRegex(answer.text, /127\.0\.0\.1|ECONN/)
  }
  t.is((await ask('GET', '/readyz')).status, 503)
})
