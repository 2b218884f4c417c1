/** Hostile input at the ports: too large, too many, ambiguous, or sent to be reflected. */
import { connect as connectHttp2 } from 'node:http2'
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { sendRaw } from '../_helpers/raw.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const port = () => Number(new URL(service.http).port)
const raw = (text: string, options = {}) => sendRaw(port(), [Buffer.from(text, 'latin1')], options)
const json = 'Content-Type: application/json\r\n'
const end = 'Connection: close\r\n\r\n'

test('a body holds at most 64 KiB, regardless of its Content-Length', async t => {
  const large = 'x'.repeat(64 * 1024 + 1)
  const whole = JSON.stringify({ username: 'x'.repeat(64 * 1024 - 15) })
  t.is(whole.length, 64 * 1024)
  t.is((await service.request('POST', '/users/login', { body: whole })).status, 400)
  const body = JSON.stringify({ username: large })
  refused(t, await service.request('POST', '/users/signup', { body }), 413)
  const headers = { 'content-type': 'application/x-www-form-urlencoded' }
  refused(t, await service.request('POST', '/users/login', { body: `username=${large}`, headers }), 413)
  const call = await service.request('POST', '/auth.v1.Users/Login', { body })
  t.is(`${call.status} ${call.json.code}`, '429 resource_exhausted')
  // Announced: refused before it is sent.
  const signUp = `POST /users/signup HTTP/1.1\r\nHost: a\r\n${json}`
  t.deepEqual((await raw(`${signUp}Content-Length: 999999999\r\n\r\n{`)).statuses, [413])
  // In chunks, the size shows only during the transfer, and the rest isn't read.
  const head = `${signUp}Transfer-Encoding: chunked\r\n\r\n`
  const chunks = Array<string>(200).fill(`4000\r\n${'x'.repeat(0x4000)}\r\n`)
  const { statuses, closed } = await sendRaw(port(), [head, ...chunks], { pause: 1 })
  t.deepEqual([statuses, closed], [[413], true])
})

test('URLs and headers are limited in size', async t => {
  for (const [path, lines, status] of [
    [`/users/me?x=${'x'.repeat(9000)}`, '', 414],
    ['/users/me', `X: ${'x'.repeat(17_000)}\r\n`, 431],
    ['/users/me', 'X-Something: some value\r\n'.repeat(1000), 431],
  ] as const) {
    const { statuses, closed } = await raw(`GET ${path} HTTP/1.1\r\nHost: a\r\n${lines}\r\n`)
    t.deepEqual([statuses, closed || status === 414], [[status], true])
  }
})

const smuggled = 'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n'
const post = (lines: string, body = smuggled) =>
  `POST /users/login HTTP/1.1\r\nHost: a\r\n${json}${lines}\r\n\r\n${body}`
const chunked = `0\r\n\r\n${smuggled}`
const chunks = 'Transfer-Encoding: chunked'
const ambiguous = [
  post(`Content-Length: 4\r\n${chunks}`, chunked),
  post(`${chunks}\r\nContent-Length: 4`, chunked),
  post(`Content-Length: 0\r\nContent-Length: ${smuggled.length}`),
  ...[`0, ${smuggled.length}`, '+0', '-1', '0x0', '0 0', '18446744073709551616', ''].map(length =>
    post(`Content-Length: ${length}`),
  ),
  ...['xchunked', 'chunked, identity', 'chunked, chunked', '"chunked"', '\x0bchunked', '\0chunked'].map(coding =>
    post(`Transfer-Encoding: ${coding}`, chunked),
  ),
  // A space before the colon, a folded header, a bare CR.
  post('Transfer-Encoding : chunked\r\nContent-Length: 4', chunked),
  post(`X: x\r\n ${chunks}\r\nContent-Length: 4`, chunked),
  post('Transfer-Encoding:\r\n chunked\r\nContent-Length: 4', chunked),
  post(`X: a\r${chunks}\r\nContent-Length: 4`, chunked),
  post(`: x\r\nContent-Length: 0`),
  post(`Content(Length): 0`),
  `POST /users/login HTTP/1.1\nHost: a\nContent-Type: application/json\nContent-Length: 0\n\n${smuggled}`,
  ...['FFFFFFFFFFFFFFFF0\r\n', '-1\r\n', '0\n\n', '1\r\nxx0\r\n\r\n', '0;a\n\r\n\r\n'].map(start =>
    post(chunks, start + smuggled),
  ),
  `GET /users/me\r\n${smuggled}`,
  ...['GET /users/me HTTP/1.2', 'GET /users/me HTTP/1.1 HTTP/1.1', 'GET /users /me HTTP/1.1'].map(
    line => `${line}\r\nHost: a\r\n\r\n${smuggled}`,
  ),
  `GET /users/\0me HTTP/1.1\r\nHost: a\r\n\r\n${smuggled}`,
  // Two Host fields, and HTTP/1.0 with Transfer-Encoding.
  ...['Host: b', 'Host: a', 'X: y\r\nhOST: '].map(lines => `GET /healthz HTTP/1.1\r\nHost: a\r\n${lines}\r\n\r\n`),
  'GET /nowhere HTTP/1.1\r\nHost: \r\nHost: a\r\n\r\n',
  `POST /auth.v1.Users/Login HTTP/1.1\r\nHost: a\r\nHost: b\r\n${json}Content-Length: 2\r\n\r\n{}`,
  post(chunks, chunked).replace('HTTP/1.1', 'HTTP/1.0'),
  `GET /healthz HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n${smuggled}`,
]

test('a request whose end or host is ambiguous between two parsers is refused, and the connection closes', async t => {
  await Promise.all(
    ambiguous.map(async text => {
      const answer = await raw(text)
      t.true(answer.closed, text)
      t.notRegex(answer.text, / 200 |\r\nok/, text)
      // HTTP/0.9 has no status.
      t.deepEqual(answer.statuses, answer.text === '' ? [] : [400], text)
    }),
  )
  t.deepEqual((await raw('GET /healthz HTTP/1.0\r\n\r\n')).statuses, [200])
})

test('nothing from a request is returned as a response header', async t => {
  const evil = 'x\r\nX-Injected: 1\r\n\r\n<script>'
  const coded = encodeURIComponent(evil)
  const { token } = await service.signUp('ROLE_CLIENT')
  const { request } = service
  for (const { headers, text } of [
    ...[await request('POST', '/users/login', { query: { username: evil, password: evil } })],
    ...[await request('GET', `/users/${coded}`, { token }), await request('GET', `/${coded}`)],
    ...[await request('POST', '/users/signup', { body: { username: evil, nickname: evil } })],
    ...[await request('GET', '/users/me', { token, headers: { 'x-request-id': coded, accept: coded } })],
    ...[await request('POST', '/auth.v1.Users/Login', { body: { username: evil, password: evil } })],
  ]) {
    t.is(headers.get('x-injected'), null)
    t.regex(headers.get('x-request-id') ?? '', /^[\w-]{1,64}$/)
    t.false(text.includes('<script>'))
    t.is(headers.get('x-content-type-options'), 'nosniff')
  }
  for (const id of ['a'.repeat(65), 'a b', 'a;b', '', 'ä']) {
    const { text } = await raw(`GET /healthz HTTP/1.1\r\nHost: a\r\nX-Request-Id: ${id}\r\n${end}`)
    t.regex(text, /x-request-id: [\da-f-]{36}\r/i)
  }
})

test('unusual methods, hosts and upgrades are answered without side effects', async t => {
  for (const [line, lines, statuses] of [
    ['CONNECT example.org:443', 'Host: example.org\r\n', []],
    ['GET /healthz', '', [400]],
    ['GET http://[::1/healthz', 'Host: a\r\n', [200]],
    ['GET /healthz', 'Host: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade\r\n', [200]],
    ['GET /healthz', 'Host: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n', [200]],
    ['PROPFIND /users/me', 'Host: a\r\n', [405]],
    ['TRACE /users/me', 'Host: a\r\nAuthorization: Bearer x\r\n', [405]],
    ['GET /../../etc/passwd', 'Host: a\r\n', [404]],
    ['GET //users/me', 'Host: a\r\n', [404]],
  ] as const) {
    const answer = await raw(`${line} HTTP/1.1\r\n${lines}${end}`)
    t.deepEqual(answer.statuses, statuses, line)
    t.notRegex(answer.text, /Bearer x/)
  }
})

test('a gRPC message has at most 64 KiB, its metadata 16 KiB, a connection 128 calls at once', async t => {
  /** The gRPC code that is answered to bytes as a message; 0 if it is none. */
  const send = (bytes: Buffer, metadata = new Metadata()) => {
    const client = new Client(service.grpc, credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 })
    t.teardown(() => client.close())
    const same = (value: Buffer) => value
    return new Promise<number>(resolve => {
      const end = (error: ServiceError | null) => resolve(error?.code ?? 0)
      client.makeUnaryRequest('/auth.v1.Users/Login', same, same, bytes, metadata, {}, end)
    })
  }
  t.is(await send(Buffer.concat([Buffer.from([0x0a, 0xf0, 0xa2, 0x04]), Buffer.alloc(70_000, 0x61)])), 8)
  const metadata = new Metadata()
  metadata.set('x-much', 'x'.repeat(40_000))
  t.not(await send(Buffer.alloc(0), metadata), 0)
  t.is(await send(Buffer.alloc(0)), 3)
  const session = connectHttp2(`http://${service.grpc}`)
  t.teardown(() => session.destroy())
  const { maxConcurrentStreams } = await new Promise<{ maxConcurrentStreams?: number }>(resolve =>
    session.once('remoteSettings', resolve),
  )
  t.is(maxConcurrentStreams, 128)
})

const targets = ['POST /users/login', 'POST /auth.v1.Users/Login', 'GET /nowhere']

/** Asserts that a request gets one answer, a problem document, and that its connection closes. */
async function closes(t: { deepEqual(a: unknown, b: unknown, text: string): void }, text: string, status: number) {
  const answer = await raw(text)
  const reason = /"reason":"(\w+)"/.exec(answer.text)?.[1]
  const expected = status === 417 ? 'EXPECTATION_FAILED' : 'PAYLOAD_TOO_LARGE'
  t.deepEqual([answer.statuses, reason, answer.closed], [[status], expected, true], text)
}

test('an expectation other than 100-continue is answered with 417 and a problem document', async t => {
  const unknown = ['200-ok', '100-continue, 200-ok', '100-continued', '100-continue;q=1', '""']
  const texts = unknown.flatMap(expectation =>
    targets.flatMap(target =>
      ['', `${json}Content-Length: 2\r\n`].map(
        lines => `${target} HTTP/1.1\r\nHost: a\r\nExpect: ${expectation}\r\n${lines}\r\n`,
      ),
    ),
  )
  await Promise.all(texts.map(text => closes(t, text, 417)))
})

test('a body that is announced as too large is refused before 100 Continue, any other is asked for', async t => {
  const head = (target: string, length: number, more = '') =>
    `${target} HTTP/1.1\r\nHost: a\r\n${json}${more}Content-Length: ${length}\r\n`
  const texts = targets.flatMap(target =>
    [65_537, 99_999_999_999].flatMap(length =>
      ['100-continue', '100-Continue'].map(each => `${head(target, length, `Expect: ${each}\r\n`)}\r\n`),
    ),
  )
  await Promise.all(texts.map(text => closes(t, text, 413)))
  const body = JSON.stringify({ username: 'nobody', password: 'not a password' })
  for (const target of targets.slice(0, 2)) {
    const start = `${head(target, body.length, 'Expect: 100-continue\r\n')}${end}`
    const { text } = await sendRaw(port(), [start, body], { pause: 200, patience: 60_000 })
    t.regex(text, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 40[14] /)
  }
})

test('paths are compared after their unreserved characters are decoded, and no others', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { username: 'tilde~name.x' })
  const statusOf = async (line: string, lines = '\r\n') =>
    (await raw(`${line} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\n${lines}`))
      .statuses[0]
  const query = new URLSearchParams({ username, password })
  for (const path of [
    ...['/users/login', '/users/%6Cogin', '/users/%6c%6F%67%69%6e', '/%75sers/login', '/%31%2E0%2e2/users/login'],
    ...['/1.0.0/users/logi%6E', 'http://a/users/%6Cogin'],
  ])
    t.is(await statusOf(`POST ${path}?${query}`), 200, path)
  for (const [path, status] of [
    ['/users/%6De', 200],
    ['/users/tilde%7Ename%2Ex', 200],
    ['/users/%7Busername%7d?username=tilde~name.x', 200],
    ['/users/%7Eme', 403],
  ] as const)
    t.is(await statusOf(`GET ${path}`), status, path)
  t.is(await statusOf('POST /auth.v1.Users/%47etMe', `${json}Content-Length: 2\r\n\r\n{}`), 200)
  for (const path of [
    ...['/users%2Flogin', '/%2Fusers/login', '//users/login', '/users/%256Cogin', '/users/login%20'],
    ...['/users/login%00', '/users/%6login', '/users/%6', '/users/login%3F', '/users/./login', '/users/x/%2e%2e/login'],
  ])
    t.true([404, 405].includes((await statusOf(`POST ${path}?${query}`))!), path)
})
