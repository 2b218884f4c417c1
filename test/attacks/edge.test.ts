/** Hostile input at the ports: too large, too slow, ambiguous, endlessly nested, or from a page of another origin. */
import { connect as connectHttp2 } from 'node:http2'
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { type RawAnswer, sendRaw } from '../_helpers/raw.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const port = () => Number(new URL(service.http).port)
const raw = (text: string | Buffer, patience?: number) =>
  sendRaw(port(), [text], patience === undefined ? {} : { patience })

/** Whether another client is still served, and in time. */
async function stillServes(): Promise<boolean> {
  const startedAt = performance.now()
  const { status } = await service.request('GET', '/readyz')
  return status === 200 && performance.now() - startedAt < 5000
}

test('a body holds at most 64 KiB, regardless of its Content-Length', async t => {
  const large = 'x'.repeat(64 * 1024 + 1)
  const whole = JSON.stringify({ username: 'x'.repeat(64 * 1024 - 15) })
  t.is(whole.length, 64 * 1024)
  t.is((await service.request('POST', '/users/login', { body: whole })).status, 400)
  const json = { 'content-type': 'application/json' }
  refused(
    t,
    await service.request('POST', '/users/signup', { body: JSON.stringify({ username: large }), headers: json }),
    413,
  )
  const form = { 'content-type': 'application/x-www-form-urlencoded' }
  refused(t, await service.request('POST', '/users/login', { body: `username=${large}`, headers: form }), 413)
  for (const path of ['/auth.v1.Users/Login', '/auth.v1.Users/SignUp']) {
    const { status, json: error } = await service.request('POST', path, {
      body: JSON.stringify({ username: large }),
      headers: json,
    })
    t.is(`${status} ${error.code}`, '429 resource_exhausted')
  }
  const head = 'POST /users/signup HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n'
  // Announced: refused before it is sent.
  t.deepEqual((await raw(`${head}Content-Length: 999999999\r\n\r\n{`)).statuses, [413])
  // In chunks, the size shows only during the transfer, and the rest isn't read.
  const chunk = `4000\r\n${'x'.repeat(0x4000)}\r\n`
  const endless = await sendRaw(
    port(),
    [`${head}Transfer-Encoding: chunked\r\n\r\n`, ...Array.from({ length: 200 }, () => chunk)],
    { pause: 1 },
  )
  t.deepEqual(endless.statuses, [413])
  t.true(endless.closed)
})

test('URLs and headers are limited in size', async t => {
  const { statuses } = await raw(`GET /users/me?x=${'x'.repeat(9000)} HTTP/1.1\r\nHost: a\r\n\r\n`)
  t.deepEqual(statuses, [414])
  for (const lines of [
    `X: ${'x'.repeat(17_000)}\r\n`,
    'X-Something: some value\r\n'.repeat(1000),
    `Authorization: Bearer ${'x'.repeat(17_000)}\r\n`,
  ]) {
    const answer = await raw(`GET /users/me HTTP/1.1\r\nHost: a\r\n${lines}\r\n`)
    t.deepEqual(answer.statuses, [431])
    t.true(answer.closed)
  }
  t.true(await stillServes())
})

/** Sends a byte at a time until the other side closes. */
const drip = (start: string, piece: string, patience = 2000) =>
  sendRaw(
    port(),
    (function* () {
      yield start
      for (let index = 0; index < 25; index++) yield piece
    })(),
    { pause: 1000, patience },
  )

const slowBody = (header: string) =>
  `POST /users/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n${header}\r\n\r\n`

test('a client that sends headers or a body slowly is disconnected', async t => {
  const [headers, ...bodies] = await Promise.all([
    drip('GET /healthz HTTP/1.1\r\nHost: a\r\n', 'X: x\r\n'),
    drip(`${slowBody('Content-Length: 1000')}{`, ' '),
    drip(slowBody('Transfer-Encoding: chunked'), '1\r\n \r\n'),
  ])
  t.true(headers.closed && headers.ms < 15_000, `${headers.ms}`)
  t.notRegex(headers.text, / 200 /)
  for (const { closed, ms } of bodies) t.true(closed && ms < 20_000, `${ms}`)
})

const smuggled = 'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n'
const post = (lines: string, body: string) =>
  `POST /users/login HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n${lines}\r\n${body}`
const chunked = `0\r\n\r\n${smuggled}`
const ambiguous: Record<string, string> = {
  'length and chunks': post(`Content-Length: 4\r\nTransfer-Encoding: chunked\r\n`, chunked),
  'chunks and length': post(`Transfer-Encoding: chunked\r\nContent-Length: 4\r\n`, chunked),
  'two lengths': post(`Content-Length: 0\r\nContent-Length: ${smuggled.length}\r\n`, smuggled),
  'two lengths in one': post(`Content-Length: 0, ${smuggled.length}\r\n`, smuggled),
  'a length with a sign': post('Content-Length: +0\r\n', smuggled),
  'a length below zero': post('Content-Length: -1\r\n', smuggled),
  'a length in hexadecimal': post('Content-Length: 0x0\r\n', smuggled),
  'a length with a space in it': post('Content-Length: 0 0\r\n', smuggled),
  'a length beyond counting': post('Content-Length: 18446744073709551616\r\n', smuggled),
  'an empty length': post('Content-Length: \r\n', smuggled),
  'unknown coding': post('Transfer-Encoding: xchunked\r\n', chunked),
  'chunks not last': post('Transfer-Encoding: chunked, identity\r\n', chunked),
  'chunks twice': post('Transfer-Encoding: chunked, chunked\r\n', chunked),
  'chunks in quotes': post('Transfer-Encoding: "chunked"\r\n', chunked),
  'chunks after a vertical tab': post('Transfer-Encoding: \x0bchunked\r\n', chunked),
  'chunks after a NUL': post('Transfer-Encoding: \0chunked\r\n', chunked),
  'a space before the colon': post(`Transfer-Encoding : chunked\r\nContent-Length: 4\r\n`, chunked),
  'a header folded into the next line': post(`X: x\r\n Transfer-Encoding: chunked\r\nContent-Length: 4\r\n`, chunked),
  'a coding folded into the next line': post(`Transfer-Encoding:\r\n chunked\r\nContent-Length: 4\r\n`, chunked),
  'lines that end in LF alone': `POST /users/login HTTP/1.1\nHost: a\nContent-Type: application/json\nContent-Length: 0\n\n${smuggled}`,
  'a bare CR in a value': post(`X: a\rTransfer-Encoding: chunked\r\nContent-Length: 4\r\n`, chunked),
  'a header without a name': post(`: x\r\nContent-Length: 0\r\n`, smuggled),
  'a name in brackets': post(`Content(Length): 0\r\n`, smuggled),
  'a chunk beyond counting': post('Transfer-Encoding: chunked\r\n', `FFFFFFFFFFFFFFFF0\r\n${smuggled}`),
  'a chunk below zero': post('Transfer-Encoding: chunked\r\n', `-1\r\n${smuggled}`),
  'a chunk in LF': post('Transfer-Encoding: chunked\r\n', `0\n\n${smuggled}`),
  'a chunk without its end': post('Transfer-Encoding: chunked\r\n', `1\r\nxx0\r\n\r\n${smuggled}`),
  'a chunk’s extension with LF': post('Transfer-Encoding: chunked\r\n', `0;a\n\r\n\r\n${smuggled}`),
  'HTTP/1.0 in chunks': post('Transfer-Encoding: chunked\r\n', chunked).replace('HTTP/1.1', 'HTTP/1.0'),
  'HTTP/0.9': `GET /users/me\r\n${smuggled}`,
  'HTTP/1.2': `GET /users/me HTTP/1.2\r\nHost: a\r\n\r\n${smuggled}`,
  'a version with more': `GET /users/me HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n${smuggled}`,
  'a space in the target': `GET /users /me HTTP/1.1\r\nHost: a\r\n\r\n${smuggled}`,
  'a NUL in the target': `GET /users/\0me HTTP/1.1\r\nHost: a\r\n\r\n${smuggled}`,
}

test('a request whose end is ambiguous between two parsers closes the connection', async t => {
  const answers = await Promise.all(
    Object.entries(ambiguous).map(async ([name, text]) => [name, await raw(Buffer.from(text, 'latin1'))] as const),
  )
  const smuggledIn = answers.filter(([, { text }]) => / 200 |\r\nok/.test(text)).map(([name]) => name)
  t.deepEqual(smuggledIn, [])
  const wrong = answers.filter(
    ([, { statuses, closed }]: readonly [string, RawAnswer]) =>
      !closed || statuses.length > 1 || (statuses[0] ?? 400) !== 400,
  )
  t.deepEqual(
    wrong.map(([name, { text }]) => `${name}: ${text.slice(0, 60)}`),
    [],
  )
})

test('nothing from a request is returned as a response header', async t => {
  const evil = 'x\r\nX-Injected: 1\r\n\r\n<script>'
  const coded = encodeURIComponent(evil)
  const { token } = await service.signUp('ROLE_CLIENT')
  const answers = [
    await service.request('POST', '/users/login', { query: { username: evil, password: evil } }),
    await service.request('GET', `/users/${coded}`, { token }),
    await service.request('GET', `/${coded}`),
    await service.request('POST', '/users/signup', { body: { username: evil, nickname: evil } }),
    await service.request('GET', '/users/me', {
      token,
      headers: { 'x-request-id': coded, origin: `https://a.example/${coded}`, accept: coded },
    }),
    await service.request('POST', '/auth.v1.Users/Login', { body: { username: evil, password: evil } }),
  ]
  for (const { headers, text } of answers) {
    t.is(headers.get('x-injected'), null)
    t.regex(headers.get('x-request-id') ?? '', /^[\w-]{1,64}$/)
    t.false(text.includes('<script>'))
    t.is(headers.get('x-content-type-options'), 'nosniff')
  }
  for (const id of ['a'.repeat(65), 'a b', 'a;b', '', 'ä']) {
    const { text } = await raw(
      Buffer.from(`GET /healthz HTTP/1.1\r\nHost: a\r\nX-Request-Id: ${id}\r\nConnection: close\r\n\r\n`, 'latin1'),
    )
    t.regex(text, /x-request-id: [\da-f-]{36}\r/i)
  }
  // Nor does TRACE return the request.
  const trace = await raw('TRACE /users/me HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\nConnection: close\r\n\r\n')
  t.deepEqual(trace.statuses, [405])
  t.notRegex(trace.text, /Bearer x/)
})

test('unusual methods, hosts and upgrades are answered without side effects', async t => {
  const end = 'Connection: close\r\n\r\n'
  const expected: [string, number[]][] = [
    [`CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n${end}`, []],
    [`GET /healthz HTTP/1.1\r\n${end}`, [400]],
    [`GET http://[::1/healthz HTTP/1.1\r\nHost: a\r\n${end}`, [200]],
    [
      `GET /healthz HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade, close\r\n\r\n`,
      [200],
    ],
    [`GET /healthz HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n`, [200]],
    [
      `POST /auth.v1.Users/Login HTTP/1.1\r\nHost: [\r\nContent-Type: application/json\r\nContent-Length: 2\r\n${end}{}`,
      [400],
    ],
    [`PROPFIND /users/me HTTP/1.1\r\nHost: a\r\n${end}`, [405]],
    [`GET /../../etc/passwd HTTP/1.1\r\nHost: a\r\n${end}`, [404]],
    [`GET //users/me HTTP/1.1\r\nHost: a\r\n${end}`, [404]],
  ]
  for (const [text, statuses] of expected) t.deepEqual((await raw(text)).statuses, statuses, text)
  t.true(await stillServes())
})

test('endlessly nested or malformed JSON is refused, and changes nothing in the process', async t => {
  const refusedWith = async (body: string) => {
    const answer = await service.request('POST', '/users/signup', { body })
    return `${answer.status} ${answer.json.reason}`
  }
  const deep = (open: string, close: string, levels: number) => open.repeat(levels) + close.repeat(levels)
  t.is(await refusedWith(deep('[', ']', 30_000)), '400 MALFORMED_REQUEST')
  t.is(await refusedWith(`{"username":${deep('[', ']', 30_000)}}`), '400 MALFORMED_REQUEST')
  t.is(await refusedWith(`{"x":${deep('{"a":', '}', 10_000).replace(/\{"a":\}/, '{"a":1}')}}`), '400 MALFORMED_REQUEST')
  t.is(await refusedWith(`{"username":"\\ud800"}`), '400 MALFORMED_REQUEST')
  t.is(await refusedWith('{"username":1e999}'), '422 INVALID_SIGN_UP')
  t.is(
    await refusedWith('{"__proto__":{"polluted":1},"constructor":{"prototype":{"polluted":1}}}'),
    '422 INVALID_SIGN_UP',
  )
  t.is(({} as { polluted?: number }).polluted, undefined)
  t.is(await refusedWith('[]'), '400 MALFORMED_REQUEST')
  t.is(await refusedWith('null'), '400 MALFORMED_REQUEST')
  t.is(await refusedWith('{"username":"a","username":{}}'), '422 INVALID_SIGN_UP')
  t.is(
    await refusedWith(`{${Array.from({ length: 6000 }, (_, index) => `"${index}":0`).join(',')}}`),
    '422 INVALID_SIGN_UP',
  )
  const wrongBytes = await fetch(`${service.http}/users/signup`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: Buffer.from([0x7b, 0x22, 0xff, 0xfe, 0x22, 0x3a, 0x31, 0x7d]),
  })
  t.is(wrongBytes.status, 400)
})

/** Sends bytes as the message of an RPC and returns the gRPC code, 0 when it was answered. */
function sendBytes(
  client: Client,
  bytes: Buffer,
  metadata = new Metadata(),
  path = '/auth.v1.Users/Login',
): Promise<number> {
  return new Promise(resolve => {
    client.makeUnaryRequest(
      path,
      value => value as Buffer,
      value => value,
      bytes,
      metadata,
      { deadline: Date.now() + 10_000 },
      (error: ServiceError | null) => resolve(error?.code ?? 0),
    )
  })
}

test('a gRPC message has at most 64 KiB, its metadata 16 KiB, a connection 128 calls at once', async t => {
  const client = new Client(service.grpc, credentials.createInsecure())
  const fresh = new Client(service.grpc, credentials.createInsecure(), { 'grpc.use_local_subchannel_pool': 1 })
  t.teardown(() => {
    client.close()
    fresh.close()
  })
  const field = Buffer.alloc(70_000, 0x61)
  t.is(await sendBytes(client, Buffer.concat([Buffer.from([0x0a, 0xf0, 0xa2, 0x04]), field])), 8)
  const metadata = new Metadata()
  metadata.set('x-much', 'x'.repeat(40_000))
  t.not(await sendBytes(fresh, Buffer.alloc(0), metadata), 0)
  t.is(await sendBytes(client, Buffer.alloc(0)), 3)
  const session = connectHttp2(`http://${service.grpc}`)
  t.teardown(() => session.destroy())
  const { maxConcurrentStreams } = await new Promise<{ maxConcurrentStreams?: number }>(resolve =>
    session.once('remoteSettings', resolve),
  )
  t.is(maxConcurrentStreams, 128)
})

/** Status, reason and connection of the only answer to raw bytes; the test fails if there is another number of answers. */
async function onlyAnswer(text: string) {
  const { text: answer, statuses, closed } = await raw(text)
  const [head = '', body = ''] = answer.replace(/^HTTP\/1\.1 100 Continue\r\n\r\n/, '').split('\r\n\r\n')
  const isProblem = /^content-type: application\/problem\+json\r?$/im.test(head)
  const reason = isProblem ? JSON.parse(body.slice(0, body.lastIndexOf('}') + 1)).reason : undefined
  return { statuses, reason, closed, head }
}

const jsonHead = 'Content-Type: application/json\r\n'

test('a request with two Host fields, and HTTP/1.0 with Transfer-Encoding, are refused, and the connection closes', async t => {
  const next = 'GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n'
  const chunks = `${jsonHead}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n`
  for (const request of [
    'GET /healthz HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n',
    'GET /healthz HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n',
    'GET /healthz HTTP/1.1\r\nHost: a\r\nX: y\r\nhOST: \r\n\r\n',
    'GET /nowhere HTTP/1.1\r\nHost: \r\nHost: a\r\n\r\n',
    'GET /healthz HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n',
    `POST /auth.v1.Users/Login HTTP/1.1\r\nHost: a\r\nHost: b\r\n${jsonHead}Content-Length: 2\r\n\r\n{}`,
    `POST /users/login HTTP/1.0\r\nHost: a\r\n${chunks}`,
    `POST /users/login HTTP/1.0\r\n${chunks}`,
    `POST /auth.v1.Users/Login HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n${chunks}`,
    'GET /healthz HTTP/1.0\r\nTransfer-Encoding: identity\r\n\r\n',
  ]) {
    const { statuses, reason, closed } = await onlyAnswer(`${request}${next}`)
    t.deepEqual(statuses, [400], request)
    t.is(reason, 'MALFORMED_REQUEST', request)
    t.true(closed, request)
  }
  t.deepEqual((await raw(`GET /healthz HTTP/1.0\r\n\r\n`)).statuses, [200])
})

test('an expectation other than 100-continue is answered with 417 and a problem document', async t => {
  const requests = ['GET /healthz', 'POST /users/login', 'POST /auth.v1.Users/Login', 'GET /nowhere']
  const texts = ['200-ok', '100-continue, 200-ok', 'x', '100-continued', '100-continue;q=1', '""'].flatMap(
    expectation =>
      requests.flatMap(request =>
        ['\r\n', `${jsonHead}Content-Length: 2\r\n\r\n`].map(
          body => `${request} HTTP/1.1\r\nHost: a\r\nExpect: ${expectation}\r\n${body}`,
        ),
      ),
  )
  await Promise.all(
    texts.map(async text => {
      const { statuses, reason, closed } = await onlyAnswer(text)
      t.deepEqual(statuses, [417], text)
      t.is(reason, 'EXPECTATION_FAILED', text)
      // It may send its body, or not.
      t.true(closed, text)
    }),
  )
})

test('a body that is announced as too large is refused before 100 Continue, any other is asked for', async t => {
  const post = (path: string, expectation: string, length: string) =>
    `POST ${path} HTTP/1.1\r\nHost: a\r\n${jsonHead}Expect: ${expectation}\r\n${length}\r\n\r\n`
  const paths = ['/users/login', '/users/signup', '/users/me', '/auth.v1.Users/Login', '/nowhere']
  const texts = ['65537', '10485760', '99999999999'].flatMap(length =>
    paths.flatMap(path => ['100-continue', '100-Continue'].map(each => post(path, each, `Content-Length: ${length}`))),
  )
  await Promise.all(
    texts.map(async text => {
      const { statuses, reason, closed } = await onlyAnswer(text)
      t.deepEqual(statuses, [413], text)
      t.is(reason, 'PAYLOAD_TOO_LARGE', text)
      t.true(closed, text)
    }),
  )
  const body = JSON.stringify({ username: 'nobody', password: 'not a password' })
  for (const path of ['/users/login', '/auth.v1.Users/Login']) {
    const length = `Content-Length: ${body.length}\r\nConnection: close`
    const { text } = await sendRaw(port(), [post(path, '100-continue', length), body], { pause: 200, patience: 60_000 })
    t.regex(text, /^HTTP\/1\.1 100 Continue\r\n\r\nHTTP\/1\.1 40[14] /)
  }
})

test('paths are compared after their unreserved characters are decoded, and no others', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { username: 'tilde~name.x' })
  const statusOf = async (method: string, path: string, more = '') =>
    (
      await raw(
        `${method} ${path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer ${token}\r\n${more}\r\n`,
      )
    ).statuses[0]
  const login = `username=${encodeURIComponent(username)}&password=${encodeURIComponent(password)}`
  for (const path of [
    '/users/login',
    '/users/%6Cogin',
    '/users/%6c%6F%67%69%6e',
    '/%75sers/login',
    '/%31%2E0%2e2/users/login',
    '/1.0.0/users/logi%6E',
    'http://a/users/%6Cogin',
  ])
    t.is(await statusOf('POST', `${path}?${login}`), 200, path)
  t.is(await statusOf('GET', '/users/%6De'), 200)
  t.is(await statusOf('GET', '/users/tilde%7Ename%2Ex'), 200)
  t.is(await statusOf('GET', '/users/%74ilde~name.x'), 200)
  t.is(await statusOf('GET', '/users/%7Busername%7d?username=tilde~name.x'), 200)
  t.is(await statusOf('GET', '/users/%7Eme'), 403)
  const call = `${jsonHead}Content-Length: 2\r\n`
  t.is(await statusOf('POST', '/auth.v1.Users/%47etMe', `${call}\r\n{}`), 200)
  for (const path of [
    ...['/users%2Flogin', '/%2Fusers/login', '//users/login', '/users/%256Cogin', '/users/login%20'],
    ...['/users/login%00', '/users/%6login', '/users/%6', '/users/login%3F', '/users/login%2F'],
    ...['/users/./login', '/users/%2E/login', '/users/x/%2e%2e/login'],
  ])
    t.true([404, 405].includes((await statusOf('POST', `${path}?${login}`))!), path)
})
