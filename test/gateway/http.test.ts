/** The form of requests and answers over HTTP, common to all operations. */
import { randomUUID } from 'node:crypto'
import { readdir, readFile } from 'node:fs/promises'
import { request as open } from 'node:http'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import test from 'ava'
import pg from 'pg'
import { routes } from '../../gateway/operations.js'
import { toPortuguese } from '../../server/requests/portuguese.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import {
  type Answer,
  password,
  type RequestOptions,
  retryWhileBusy,
  serviceForFile,
  signUpForm,
  startTestService,
} from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { forge, nowInSeconds } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()
const request: typeof service.request = (...all) => service.request(...all)

/** An unmodified request, which fetch would normalize. It is retried after the Retry-After of a busy service. */
function raw(
  method: string,
  path: string,
  headers: Record<string, string> = {},
  body?: string | Buffer,
  to: string = service.http,
): Promise<Answer> {
  const send = (): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const outgoing = open(to, { method, path, headers }, async response => {
        const chunks: Buffer[] = []
        for await (const chunk of response) chunks.push(chunk)
        const text = Buffer.concat(chunks).toString()
        const all = new Headers()
        for (const [name, value] of Object.entries(response.headers)) all.set(name, String(value))
        const json = /json/.test(all.get('content-type') ?? '') && text ? JSON.parse(text) : undefined
        resolve({ status: response.statusCode ?? 0, headers: all, text, json })
      })
      outgoing.on('error', reject)
      outgoing.end(body)
    })
  return retryWhileBusy(send)
}

const credentials = async () => ({ username: (await service.signUp('ROLE_CLIENT')).username, password })

for (const [accept, type] of [
  [undefined, 'text/plain; charset=utf-8'],
  ['*/*', 'text/plain; charset=utf-8'],
  ['text/plain', 'text/plain; charset=utf-8'],
  ['application/json, text/plain, */*', 'text/plain; charset=utf-8'],
  ['application/json, text/*;q=0.5', 'text/plain; charset=utf-8'],
  ['application/json;q=0.9, */*;q=0.1', 'text/plain; charset=utf-8'],
  ['application/json;q=0', 'text/plain; charset=utf-8'],
  ['application/json; q=0.0, application/xml', 'text/plain; charset=utf-8'],
  ['application/json', 'application/json'],
  ['application/json, text/plain;q=0', 'application/json'],
  ['application/json, text/plain; q=0.00, */*; q=0', 'application/json'],
  ['Application/JSON; charset=utf-8', 'application/json'],
  ['application/json, application/problem+json', 'application/json'],
] as const) {
  test(`a string result is sent as ${type} if Accept is ${accept ?? 'missing'}`, async t => {
    const query = new URLSearchParams(await credentials())
    const answer = await raw('POST', `/users/login?${query}`, accept === undefined ? {} : { accept })
    t.is(answer.status, 200)
    t.is(answer.headers.get('content-type'), type)
    const token = type === 'application/json' ? answer.json : answer.text
    t.is((await request('GET', '/users/me', { token })).status, 200)
  })
}

for (const type of ['application/x-www-form-urlencoded', 'application/json', 'application/json; charset=UTF-8']) {
  test(`parameters are accepted in a body of ${type} instead of the query`, async t => {
    const fields = await credentials()
    const body = type.includes('json') ? JSON.stringify(fields) : String(new URLSearchParams(fields))
    const send = (path: string) => request('POST', path, { body, headers: { 'content-type': type } })
    t.is((await send('/users/login')).status, 200)
    t.is((await send('/users/existsByUsername')).text, 'true')
  })
}

test('in a form and in the query, plus is space and percent escapes are UTF-8 bytes', async t => {
  const username = `João +${randomUUID()} &=`
  await service.signUp('ROLE_CLIENT', { username })
  const written = encodeURIComponent(username).replaceAll('%20', '+')
  const headers = { 'content-type': 'application/x-www-form-urlencoded' }
  t.is((await request('POST', '/users/existsByUsername', { body: `username=${written}`, headers })).text, 'true')
  t.is((await raw('POST', `/users/existsByUsername?username=${written}`)).text, 'true')
})

test('names that mean something to JavaScript are unknown fields like others', async t => {
  const { username } = await credentials()
  const body = `{"__proto__":{"password":"${password}"},"constructor":{"prototype":{"polluted":1}},"username":"${username}"}`
  refused(t, await request('POST', '/users/login', { body }), 400, 'MISSING_PARAMETER')
  const query = { username, password, __proto__: 'x', constructor: 'x', 'toString[polluted]': '1' }
  t.is((await request('POST', '/users/login', { query })).status, 200)
  t.false('polluted' in {})
})

test('unknown parameters and unknown JSON fields are ignored', async t => {
  const body = { ...(await credentials()), other: 'x' }
  t.is((await request('POST', '/users/login', { query: { more: '1' }, body })).status, 200)
})

test('a parameter given twice is answered with 400 if the values differ, and counts once if they are equal', async t => {
  const { username } = await credentials()
  const again = await request('POST', '/users/login', { query: { username, password }, body: { username: 'other' } })
  refused(t, again, 400, 'MALFORMED_REQUEST')
  t.is((await request('POST', '/users/login', { query: { username, password }, body: { username } })).status, 200)
})

for (const segment of ['{username}', '%7Busername%7D', '%7busername%7d']) {
  test(`GET /users/${segment} looks up the user named in the query`, async t => {
    const { username, token } = await service.signUp('ROLE_CLIENT')
    const headers = { authorization: `Bearer ${token}` }
    for (const base of ['', '/1.0.0', '/1.0.2']) {
      const answer = await raw('GET', `${base}/users/${segment}?username=${encodeURIComponent(username)}`, headers)
      t.is(answer.status, 200, answer.text)
      t.is(answer.json.username, username)
    }
    t.not((await raw('GET', `/users/${segment}`, headers)).status, 200)
  })
}

test('GET /users/{username} accepts the name in path and query if they agree, and answers 400 otherwise', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const path = `/users/${encodeURIComponent(username)}`
  t.is((await request('GET', path, { token })).json.username, username)
  t.is((await request('GET', path, { token, query: { username } })).json.username, username)
  refused(t, await request('GET', path, { token, query: { username: 'other' } }), 400, 'MALFORMED_REQUEST')
})

test('a username with any character can be looked up', async t => {
  const username = `a/b?c#d%e&f+g é ${randomUUID()}`
  const { token } = await service.signUp('ROLE_CLIENT', { username })
  t.is((await request('GET', `/users/${encodeURIComponent(username)}`, { token })).json.username, username)
})

for (const [method, path, allow] of [
  ['PUT', '/users/me', 'GET, HEAD, PATCH, OPTIONS'],
  ['PATCH', '/1.0.0/users/me', 'GET, HEAD, OPTIONS'],
  ['POST', '/1.0.2/users/me', 'GET, HEAD, OPTIONS'],
  ['PUT', '/users/ana', 'GET, HEAD, OPTIONS'],
  ['GET', '/users/login', 'POST, OPTIONS'],
  ['PATCH', '/1.0.0/users/signup', 'POST, OPTIONS'],
  ['GET', '/1.0.0/users/sendadminkeybyemailpartner', 'POST, OPTIONS'],
  ['POST', '/1.0.2/forgotpasswords/findallforgotpasswordquestions', 'GET, HEAD, OPTIONS'],
  ['POST', '/.well-known/jwks.json', 'GET, HEAD, OPTIONS'],
  ['GET', '/users/me/delete', 'POST, OPTIONS'],
] as const) {
  test(`${method} ${path} is answered with 405 and the allowed methods, and OPTIONS with these`, async t => {
    const answer = await request(method, path)
    refused(t, answer, 405, 'METHOD_NOT_ALLOWED')
    t.is(answer.headers.get('allow'), allow)
    const { status, headers, text } = await request('OPTIONS', path)
    t.is(`${status} ${headers.get('allow')}${text}`, `204 ${allow}`)
  })
}

for (const path of [
  ...['/user', '/users', '/users/', '/users/a/b', '/1.0.1/users/me', '/1.0.0', '/Users/Me', '/%'],
  // What is beyond the contract is below no revision.
  ...['/1.0.2/users/me/members', '/1.0.0/users/me/export', '/1.0.2/users/me/events', '/1.0.2/openapi/1.0.2.json'],
  ...['/auth.v1.Users/Nothing', '/1.0.2/.well-known/oauth-authorization-server', '/openapi/1.0.1.json'],
]) {
  test(`${path} is answered with 404`, async t => {
    for (const method of ['GET', 'POST', 'OPTIONS']) refused(t, await raw(method, path), 404, 'NOT_FOUND')
  })
}

for (const type of [
  ...['text/plain', 'multipart/form-data; boundary=x', 'application/xml', 'application/json; charset=latin1', ''],
]) {
  test(`a body of ${type || 'no media type'} is answered with 415 where it isn’t read`, async t => {
    const headers: Record<string, string> = type ? { 'content-type': type } : {}
    for (const path of ['/users/login', '/users/signup'])
      refused(t, await raw('POST', path, headers, '{"username":"a"}'), 415, 'UNSUPPORTED_MEDIA_TYPE')
  })
}

for (const [what, body] of [
  ['no JSON', '{"username": ana}'],
  ['no object', '["username"]'],
  ['not UTF-8', Buffer.from('7b22757365726e616d65223a22ff227d', 'hex')],
  ['half a character', '{"username":"\\ud800"}'],
  ['a number where a string must be', '{"username":7}'],
  ['null', 'null'],
  ['empty', ''],
] as const) {
  test(`a body that is ${what} is answered with 400`, async t => {
    const headers = { 'content-type': 'application/json' }
    refused(t, await raw('POST', '/users/login', headers, body), 400)
    if (!what.startsWith('a number'))
      refused(t, await raw('POST', '/users/signup', headers, body), 400, 'MALFORMED_REQUEST')
  })
}

test('JSON may be nested 32 levels deep', async t => {
  // The object is also a level.
  const nested = (levels: number) => `{"x":${'['.repeat(levels - 1)}${']'.repeat(levels - 1)}}`
  const objects = (levels: number) => `${'{"x":'.repeat(levels)}1${'}'.repeat(levels)}`
  for (const make of [nested, objects]) {
    refused(t, await request('POST', '/users/signup', { body: make(32) }), 422, 'INVALID_SIGN_UP')
    refused(t, await request('POST', '/users/signup', { body: make(33) }), 400, 'MALFORMED_REQUEST')
  }
})

test('a compressed body is answered with 415', async t => {
  const type = { 'content-type': 'application/json' }
  const body = JSON.stringify(await credentials())
  for (const [coding, bytes] of [
    ['gzip', gzipSync(body)],
    ['deflate', deflateSync(body)],
    ['br', brotliCompressSync(body)],
    // Nor is one accepted that isn't compressed but claims to be.
    ['gzip', Buffer.from(body)],
  ] as const) {
    const headers = { ...type, 'content-encoding': coding }
    refused(t, await raw('POST', '/users/login', headers, bytes), 415, 'UNSUPPORTED_MEDIA_TYPE')
  }
  t.is((await raw('POST', '/users/login', { ...type, 'content-encoding': 'identity' }, body)).status, 200)
})

test('HEAD is GET without the body', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const headers = { authorization: `Bearer ${token}` }
  for (const path of [
    '/users/me',
    '/1.0.0/users/me',
    '/forgotpasswords/findallforgotpasswordquestions',
    '/.well-known/jwks.json',
  ]) {
    const [get, head] = [await raw('GET', path, headers), await raw('HEAD', path, headers)]
    t.is(`${head.status}${head.text}`, '200')
    for (const name of ['content-type', 'content-length', 'cache-control'])
      t.is(head.headers.get(name), get.headers.get(name), `${path} ${name}`)
  }
  const denied = await raw('HEAD', '/users/me')
  t.is(`${denied.status}${denied.text}`, '403')
})

test('responses with a token or a user carry Cache-Control: no-store', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const login = await request('POST', '/users/login', { query: { username, password } })
  const reads = ['/users/me', '/users/refresh', `/users/${encodeURIComponent(username)}`]
  const answers = await Promise.all(reads.map(path => request('GET', path, { token })))
  for (const { status, headers } of [login, ...answers])
    t.is(`${status} ${headers.get('cache-control')}`, '200 no-store')
})

test('every response has a unique request id; a trusted proxy may set it', async t => {
  const [first, second] = [await request('GET', '/nothing'), await request('GET', '/healthz')]
  t.regex(first.headers.get('x-request-id') ?? '', /^[\w-]{36}$/)
  t.not(first.headers.get('x-request-id'), second.headers.get('x-request-id'))
  const given = await request('GET', '/users/me', { headers: { 'x-request-id': 'from-the-proxy_1' } })
  refused(t, given, 403)
  t.is(given.json.requestId, 'from-the-proxy_1')
  const wild = await request('GET', '/nothing', { headers: { 'x-request-id': 'a b<c>' } })
  t.regex(wild.json.requestId, /^[\w-]{36}$/)
})

test('wrong percent-encoding is answered with 400', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const headers = { authorization: `Bearer ${token}` }
  for (const path of ['/users/%E0', '/users/me?a=%', '/users/ana?username=%zz']) {
    refused(t, await raw('GET', path, headers), 400, 'MALFORMED_REQUEST')
  }
})

test('every response carries security headers, and grants no other origin access', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const rpc = { body: {}, headers: { origin: 'https://app.example.org' } }
  for (const [method, path, options, status] of [
    ['GET', '/users/me', { token }, 200],
    ['GET', '/healthz', {}, 200],
    ['GET', '/readyz', {}, 200],
    ['GET', '/.well-known/jwks.json', {}, 200],
    ['OPTIONS', '/users/me', {}, 204],
    ['POST', '/users/signup', { body: '{' }, 400],
    ['GET', '/users/me', {}, 403],
    ['GET', '/nothing', {}, 404],
    ['POST', '/users/me', {}, 405],
    ['POST', '/users/signup', { body: 'x'.repeat(70_000) }, 413],
    ['POST', '/auth.v1.Users/GetKeys', rpc, 200],
    ['POST', '/auth.v1.Users/GetMe', rpc, 403],
    ['POST', '/auth.v1.Users/GetMe', { body: '{}', headers: { 'content-type': 'text/plain' } }, 415],
    ['GET', '/auth.v1.Users/GetMe', {}, 405],
  ] as const) {
    const { headers: more, ...rest } = options as { headers?: Record<string, string> }
    const answer = await request(method, path, { ...rest, headers: { origin: 'https://app.example.org', ...more } })
    const name = `${method} ${path}`
    t.is(answer.status, status, name)
    t.is(answer.headers.get('x-content-type-options'), 'nosniff', name)
    const policy = "default-src 'none'; base-uri 'none'; frame-ancestors 'none'"
    t.is(answer.headers.get('content-security-policy'), policy, name)
    t.is(answer.headers.get('referrer-policy'), 'no-referrer', name)
    t.regex(answer.headers.get('x-request-id') ?? '', /^[\w-]{36}$/, name)
    t.is(answer.headers.get('access-control-allow-origin'), null, name)
  }
})

test('of what browsers send for pages of other sites, only that of allowed origins changes anything', async t => {
  const app = 'https://app.example.org'
  const other = await startTestService(t, { AUTH_CORS_ORIGINS: app })
  const form = 'application/x-www-form-urlencoded'
  const signUp = async (site: string | undefined, origin: string | undefined, type = form, inQuery = false) => {
    const { roles, ...fields } = signUpForm()
    const pairs = String(new URLSearchParams({ ...fields, termsofusage: 'true', roles: roles[0]! }))
    const headers = {
      ...(site && { 'sec-fetch-site': site }),
      ...(origin && { origin }),
      ...(!inQuery && { 'content-type': type }),
    }
    const answer = await other.request('POST', `/users/signup${inQuery ? `?${pairs}` : ''}`, {
      headers,
      ...(!inQuery && { body: type === form ? pairs : JSON.stringify({ ...fields, roles }) }),
    })
    const { json: exists } = await other.request('POST', '/users/existsByUsername', {
      body: { username: fields.username },
    })
    t.is(exists, answer.status === 200)
    return answer
  }
  for (const origin of ['https://attacker.example', 'null', undefined, 'https://app.example.org.attacker.example'])
    for (const [type, inQuery] of [[form], ['application/json'], ['text/plain'], [undefined, true]] as const)
      refused(t, await signUp('cross-site', origin, type, inQuery), 403, 'ACCESS_DENIED')
  t.is((await signUp('cross-site', app)).status, 200)
  for (const site of ['same-origin', 'same-site', 'none', undefined])
    t.is((await signUp(site, 'https://attacker.example')).status, 200, site)
  // Before the caller is known, and whatever the method.
  const foreign = { 'sec-fetch-site': 'cross-site', origin: 'https://attacker.example' }
  for (const { method, path, revisions, rpc } of routes.filter(
    each => each.rpc && !each.challenges && !each.credentials,
  )) {
    const { status } = await other.request(method, `${revisions?.[0] ? `/${revisions[0]}` : ''}${path}`, {
      headers: { ...foreign, 'content-type': form, 'accept-language': 'pt-BR' },
      token: 'x',
    })
    t.is(status === 403, method !== 'GET', `${rpc?.name} ${status}`)
  }
})

test('at a loopback address, taken names and metrics are for callers that know the service by its own name', async t => {
  const { http, service: running } = await startTestService(t, {
    AUTH_TRUSTED_PROXIES: '',
    AUTH_ISSUER: 'https://registry.example',
    AUTH_CORS_ORIGINS: 'https://app.example.org',
    AUTH_METRICS_ADDRESS: '127.0.0.1:0',
  })
  const metrics = `http://127.0.0.1:${running.addresses.metrics?.port}`
  for (const [host, isOwn] of [
    ...['127.0.0.1:8080', '[::1]:8080', 'LOCALHOST:1', 'registry.example', 'app.example.org'].map(own => [own, true]),
    ...['attacker.example', 'attacker.example:8080', 'localhost.attacker.example'].map(other => [other, false]),
    ...['127.0.0.1.attacker.example', 'sub.registry.example', 'user@127.0.0.1:x'].map(other => [other, false]),
  ] as [string, boolean][]) {
    const as = { host }
    for (const path of ['/users/existsByUsername?username=x', '/1.0.0/users/existsByNickname?nickname=x']) {
      const answer = await raw('POST', path, as, undefined, http)
      if (isOwn) t.is(answer.text, 'false', host)
      else refused(t, answer, 421, 'MISDIRECTED_REQUEST')
    }
    t.is((await raw('POST', '/users/signup', as, undefined, http)).status, isOwn ? 400 : 421, host)
    const json = { ...as, 'content-type': 'application/json' }
    const overConnect = await raw('POST', '/auth.v1.Users/ExistsByUsername', json, '{"username":"x"}', http)
    t.is(overConnect.status, isOwn ? 200 : 421, host)
    const isMetricsOwn = isOwn && !host.includes('example')
    t.is((await raw('GET', '/metrics', as, undefined, metrics)).status, isMetricsOwn ? 200 : 421, host)
    // They tell nothing, or ask for a token.
    for (const path of ['/healthz', '/docs']) t.is((await raw('GET', path, as, undefined, http)).status, 200)
    t.is((await raw('GET', '/users/me', as, undefined, http)).status, 403)
    t.is((await raw('GET', '/healthz', as, undefined, metrics)).status, 200)
  }
})

test('a trusted proxy may name any host', async t => {
  const other = await startTestService(t, { AUTH_TRUSTED_PROXIES: '127.0.0.1' })
  const answer = await raw('POST', '/users/existsByUsername?username=x', { host: 'any.example' }, undefined, other.http)
  t.is(answer.status, 200)
})

test('pages of allowed origins can read responses, and others can’t', async t => {
  const apps = ['capacitor://localhost', 'ionic://localhost', 'tauri://localhost']
  const other = await startTestService(t, { AUTH_CORS_ORIGINS: ['https://app.example.org', ...apps].join(',') })
  const ask = (origin: string, path = '/users/me') => other.request('GET', path, { headers: { origin } })
  for (const app of apps) t.is((await ask(app)).headers.get('access-control-allow-origin'), app)
  for (const path of ['/users/me', '/nothing', '/auth.v1.Users/Login']) {
    const { headers } = await ask('https://app.example.org', path)
    t.is(headers.get('access-control-allow-origin'), 'https://app.example.org')
    t.regex(headers.get('vary') ?? '', /origin/i)
    for (const name of ['retry-after', 'x-request-id', 'grpc-status', 'grpc-message'])
      t.true(listOf(headers, 'access-control-expose-headers').includes(name), `${path} ${name}`)
    t.is(headers.get('access-control-allow-credentials'), null)
  }
  for (const origin of [
    ...['https://attacker.example', 'https://app.example.org.attacker.example'],
    ...['https://attacker-app.example.org', 'http://app.example.org', 'https://app.example.org:8443', 'null'],
    ...['file://', 'capacitor://other', 'capacitor://localhost:1', 'http://localhost'],
    ...['https://APP.example.org', '*', 'https://app.example.org/', 'https://sub.app.example.org'],
  ])
    for (const [method, path] of [
      ['GET', '/users/me'],
      ['OPTIONS', '/users/me'],
      ['OPTIONS', '/auth.v1.Users/Login'],
      ['GET', '/.well-known/jwks.json'],
    ] as const) {
      const asked = { 'access-control-request-method': 'GET', 'access-control-request-headers': 'authorization' }
      const { headers } = await other.request(method, path, { headers: { origin, ...asked } })
      const granted = [...headers.keys()].filter(name => name.startsWith('access-control-'))
      t.deepEqual(granted, [], `${origin} ${method} ${path}`)
      // A cache doesn't give it to a permitted page.
      t.regex(headers.get('vary') ?? '', /origin/)
    }
  for (const path of ['/users/me', '/1.0.0/users/login', '/auth.v1.Users/Login', '/nothing']) {
    const { status, headers } = await other.request('OPTIONS', path, {
      headers: { origin: 'https://app.example.org', 'access-control-request-method': 'POST' },
    })
    t.is(status, 204, path)
    t.is(headers.get('access-control-allow-origin'), 'https://app.example.org')
    for (const method of ['get', 'head', 'post', 'patch'])
      t.true(listOf(headers, 'access-control-allow-methods').includes(method), `${path} ${method}`)
    for (const name of [
      ...['authorization', 'content-type', 'x-requested-with', 'traceparent', 'connect-protocol-version'],
      ...['connect-timeout-ms', 'x-grpc-web', 'x-user-agent', 'grpc-timeout'],
    ])
      t.true(listOf(headers, 'access-control-allow-headers').includes(name), `${path} ${name}`)
  }
  const asking = async (names: string) => {
    const preflight = { 'access-control-request-method': 'GET', 'access-control-request-headers': names }
    const headers = { origin: 'https://app.example.org', ...preflight }
    return (await other.request('OPTIONS', '/users/me', { headers })).headers.get('access-control-allow-headers')
  }
  // Tracing and caching add headers to the calls of an app.
  for (const names of ['authorization,baggage,sentry-trace', 'x-datadog-trace-id, cache-control', "x-!#$%&'*+.^`|~"])
    t.is(await asking(names), names)
  for (const names of ['a;b', 'a\u00e9', `a${',b'.repeat(500)}`]) t.regex((await asking(names))!, /^authorization, /)
})

const listOf = (headers: Headers, name: string) => headers.get(name)?.toLowerCase().split(', ') ?? []

test('AUTH_DEFAULT_REVISION selects the revision of the base path; the versioned paths don’t change', async t => {
  const other = await startTestService(t, { AUTH_DEFAULT_REVISION: '1.0.0' })
  const status = async (base: string) =>
    (await other.request('POST', `${base}/users/sendadminkeybyemailpartner`)).status
  t.deepEqual([await status(''), await status('/1.0.0'), await status('/1.0.2')], [403, 403, 404])
  const { token } = await other.institution(await other.organization())
  const organization = async (base: string) =>
    Object.keys((await other.request('GET', `${base}/users/me`, { token })).json.partnerOrganization)
  t.true((await organization('')).includes('email'))
  t.false((await organization('')).includes('activationkey'))
  t.false((await organization('/1.0.2')).includes('email'))
})

test('a refusal names a missing required parameter, and asks for a missing required body', async t => {
  const admin = await service.adminToken()
  const verifier = await serviceKey(service, ['tokens.verify'])
  const institution = await service.institution(await service.organization())
  let asked = 0
  // Clients of OAuth 2.0 get its errors.
  for (const { method, path, parameters = {}, body, revisions } of routes.filter(each => !each.credentials)) {
    const token = path === '/introspect' ? verifier : path.startsWith('/users/me/members') ? institution.token : admin
    const target = `${revisions?.length ? `/${revisions[0]}` : ''}${path.replace('{username}', '%20')}`
    const { username } = await service.signUp('ROLE_INSTITUTION')
    const all = Object.fromEntries(
      Object.keys(parameters).map(name => [name, name === 'username' ? username : name === 'stay' ? 'true' : 'x']),
    )
    for (const [name, kind] of Object.entries(parameters)) {
      if (kind === 'optional') continue
      const { [name]: _, ...query } = all
      const answer = await request(method, target, { token, query })
      refused(t, answer, 400, 'MISSING_PARAMETER')
      t.deepEqual(wrongFields(answer), [name], path)
      asked++
    }
    if (!body) continue
    const answer = await request(method, target, { token })
    t.is(answer.json.reason === 'MALFORMED_REQUEST', body.required, path)
    asked++
  }
  t.is(asked, 21)
})

test('while the database is unavailable answers are 503 with Retry-After, and afterwards calls succeed', async t => {
  const other = await startTestService(t)
  const { token } = await other.signUp('ROLE_CLIENT')
  const name = new URL(other.env.DATABASE_URL!).pathname.slice(1)
  const client = new pg.Client({ connectionString: process.env.TEST_DATABASE_URL })
  await client.connect()
  t.teardown(() => client.end())
  await client.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS false`)
  await client.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name])
  const calls: [string, string, object][] = [
    ['GET', '/users/me', { token }],
    ['POST', '/users/login', { query: { username: 'admin', password } }],
    ['GET', '/forgotpasswords/findallforgotpasswordquestions', {}],
  ]
  for (const [method, path, options] of calls) {
    const answer = await other.request(method, path, { ...options, once: true })
    refused(t, answer, 503, 'UNAVAILABLE')
    t.regex(answer.headers.get('retry-after') ?? '', /^[1-9]\d*$/)
  }
  t.is((await other.request('GET', '/healthz')).status, 200)
  // The result of one caller is cached for others for a moment.
  await waitForValue(async () => (await other.request('GET', '/readyz', { once: true })).status, 503)
  await client.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS true`)
  t.is((await other.request('GET', '/users/me', { token })).status, 200)
  t.is((await other.request('GET', '/readyz')).status, 200)
})

// Which of several faults of a request is answered.

/** The callers: an inactive ROLE_INSTITUTION, a ROLE_CLIENT and an administrator. */
type Caller = 'self' | 'other' | 'admin'

const nobody = { username: 'nobody' }
const saveAnswer = 'POST /forgotpasswords/saveforgotpasswordquestionsusersanswers'
const update = 'POST /forgotpasswords/passwordupdatebyusername'
const send = 'POST /1.0.0/users/sendadminkeybyemailpartner'

/** Requests with several faults, and the status and reason of the response; `{other}` is the name of a caller. */
const rows: [operation: string, faults: string, expected: string, caller: Caller, rest?: object][] = [
  ['GET /users/me?a=%E0', 'unreadable query', '400 MALFORMED_REQUEST', 'self'],
  ['GET /users/refresh?a=%E0', 'unreadable query', '400 MALFORMED_REQUEST', 'self'],
  ['GET /users/ana', 'not its own, unknown', '403 ACCESS_DENIED', 'self'],
  ['POST /users/activate', 'not its own, key missing', '403 ACCESS_DENIED', 'self', { query: { username: '{other}' } }],
  ['POST /users/activate', 'key missing, unknown user', '400 MISSING_PARAMETER', 'admin', { query: nobody }],
  ['POST /users/activate', 'no JSON', '400 MALFORMED_REQUEST', 'self', { body: '{' }],
  [update, 'not its own, too short', '403 ACCESS_DENIED', 'self', { query: { username: '{other}', newPassword: 'x' } }],
  [update, 'too short, unknown user', '400 INVALID_PASSWORD', 'admin', { query: { ...nobody, newPassword: 'x' } }],
  [saveAnswer, 'not its own, answer empty', '403 ACCESS_DENIED', 'self', { body: { usersid: 1, answer: '' } }],
  [saveAnswer, 'answer empty, unknown', '400 MISSING_PARAMETER', 'self', { body: { forgotpasswordquestionsid: 9999 } }],
  [saveAnswer, 'no answer, unknown user', '400 MISSING_PARAMETER', 'admin', { body: { usersid: 2_000_000_000 } }],
  [saveAnswer, 'a list', '400 MALFORMED_REQUEST', 'self', { body: [] }],
  [send, 'not its own, address missing', '403 ACCESS_DENIED', 'self', { query: { username: '{other}' } }],
  [send, 'wrong role, address missing', '403 ACCESS_DENIED', 'other', { query: { username: '{other}' } }],
  [send, 'address missing, unknown user', '400 MISSING_PARAMETER', 'admin', { query: nobody }],
  [send, 'unknown user and address', '404 USER_NOT_FOUND', 'admin', { query: { ...nobody, emailpartner: 'x' } }],
]

const callers = {} as Record<Caller, { readonly username: string; readonly token: string }>
test.before(async () => {
  callers.self = await service.signUp('ROLE_INSTITUTION')
  callers.other = await service.signUp('ROLE_CLIENT')
  callers.admin = { username: 'admin', token: await service.adminToken() }
})

for (const [operation, faults, expected, caller, rest = {}] of rows) {
  const [method = '', path = ''] = operation.split(' ')
  const [status = '', reason] = expected.split(' ')
  test(`${operation} with ${faults}: ${status}; without a token 403, with a bad one 500`, async t => {
    const named = JSON.stringify(rest).replace(/\{(self|other)\}/g, (_, name: Caller) => callers[name].username)
    const send = (more: RequestOptions) => service.request(method, path, { ...JSON.parse(named), ...more })
    refused(t, await send({ token: callers[caller].token }), Number(status), reason)
    refused(t, await send({}), 403, 'ACCESS_DENIED')
    refused(t, await send({ headers: { authorization: 'Basic YTpi' } }), 403, 'ACCESS_DENIED')
    refused(t, await send({ token: 'malformed' }), 500, 'INVALID_TOKEN')
    const now = nowInSeconds()
    const expired = await forge(service, callers.self.token, { iat: now - 7200, exp: now - 3600 })
    refused(t, await send({ token: expired }), 500, 'INVALID_TOKEN')
  })
}

test('every operation with a body takes it as a form, too', async t => {
  const form = (path: string, token: string | undefined, fields: Record<string, string>, method = 'POST') =>
    service.request(method, path, {
      ...(token && { token }),
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: String(new URLSearchParams(fields)),
    })
  const username = randomUUID()
  const {
    roles: [role],
    termsofusage,
    ...texts
  } = signUpForm({ username, roles: ['ROLE_CLIENT'] })
  const signedUp = await form('/users/signup', undefined, {
    ...texts,
    roles: role!,
    termsofusage: String(termsofusage),
  } as never)
  t.is(signedUp.status, 200, signedUp.text)
  const token = signedUp.text
  const answer = { forgotpasswordquestionsid: '1', answer: 'Rex', password }
  t.is((await form('/forgotpasswords/saveforgotpasswordquestionsusersanswers', token, answer)).status, 200)
  t.is((await form('/users/setemail', token, { email: 'ana@example.org', password })).status, 200)
  refused(t, await form('/users/confirmemail', token, { code: 'ABCDEFGH' }), 422, 'INVALID_KEY')
  const changed = await form('/users/me', token, { record: '{"city":"Olinda"}', updateMask: 'city' }, 'PATCH')
  t.is(changed.json?.city, 'Olinda', changed.text)
  t.is((await form('/users/me/username', token, { username: randomUUID(), password })).status, 200)
  t.is((await form('/users/me/answers/delete', token, { password })).status, 200)
  t.is((await form('/users/me/delete', token, { password })).status, 200)
})

test('a caller without permission is refused before the media type of the body is checked', async t => {
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  const send = (token?: string) =>
    service.request('POST', path, { ...(token && { token }), body: 'x', headers: { 'content-type': 'text/plain' } })
  refused(t, await send(), 403, 'ACCESS_DENIED')
  refused(t, await send('malformed'), 500, 'INVALID_TOKEN')
  refused(t, await send(callers.self.token), 415, 'UNSUPPORTED_MEDIA_TYPE')
})

// Problem documents in the language of `Accept-Language`.

const portuguese = { headers: { 'accept-language': 'pt-BR,pt;q=0.9,en;q=0.5' } }

test('a refusal is in Portuguese where the client prefers it, with the same reason and title', async t => {
  const path = `/users/login?username=nobody&password=${password}`
  const english = await service.request('POST', path)
  const answer = await service.request('POST', path, portuguese)
  refused(t, answer, 404, 'INVALID_CREDENTIALS')
  t.is(answer.headers.get('content-language'), 'pt-BR')
  t.is(answer.json.detail, 'Nome de usuário ou senha inválidos.')
  t.is(answer.json.title, english.json.title)
  t.is(english.headers.get('content-language'), 'en')
  t.is(english.json.detail, 'Invalid username or password.')
})

test('messages of wrong fields are in Portuguese, values included', async t => {
  const form = { username: 'login', nickname: '', password: 'short', state: 'SPX', city: 'a\nb', gender: 'X' }
  const body = { ...form, roles: [], termsofusage: 'no' }
  const answer = await service.request('POST', '/users/signup', { ...portuguese, body })
  refused(t, answer, 422, 'INVALID_SIGN_UP')
  const pairs = answer.json.errors.map(({ field, message }: Record<string, string>) => [field, message])
  const messages: Record<string, string> = Object.fromEntries(pairs)
  t.like(messages, {
    username: 'Escolha outro nome de usuário: este é reservado.',
    nickname: 'Preencha este campo.',
    password: 'Use pelo menos 8 caracteres.',
    state: 'Informe a sigla do estado, exatamente 2 caracteres.',
    city: 'Retire quebras de linha e outros caracteres de controle.',
    gender: 'Deixe vazio, ou use M, F ou N.',
    termsofusage: 'Deve ser true ou false.',
    roles: 'Informe exatamente um destes valores: ROLE_ADMIN, ROLE_INSTITUTION, ROLE_CLIENT.',
  })
})

test('refusals with a value, and those of the gateway itself, are in Portuguese', async t => {
  const { nickname } = await service.signUp('ROLE_CLIENT')
  const answer = await service.request('POST', '/users/signup', { ...portuguese, body: signUpForm({ nickname }) })
  t.regex(answer.json.errors[0].message, /^Escolha outro apelido: este já está em uso; .+ está livre\.$/)
  for (const [method, path, detail] of [
    ['GET', '/nowhere', 'O caminho não existe.'],
    ['GET', '/users/login', 'Métodos permitidos: POST, OPTIONS.'],
    ['POST', '/users/login', 'Informe username e password.'],
  ] as const)
    t.is((await service.request(method, path, portuguese)).json.detail, detail, path)
})

for (const [header, locale] of [
  [undefined, 'en'],
  ['', 'en'],
  ['*', 'en'],
  ['fr', 'en'],
  ['pt', 'pt-BR'],
  ['PT-pt', 'pt-BR'],
  ['en-US,pt;q=0.9', 'en'],
  ['en;q=0.5, pt-BR;q=0.6', 'pt-BR'],
  ['pt;q=0', 'en'],
] as const) {
  test(`Accept-Language ${header} selects ${locale}`, async t => {
    const headers: Record<string, string> = header === undefined ? {} : { 'accept-language': header }
    t.is((await service.request('GET', '/users/me', { headers })).headers.get('content-language'), locale)
  })
}

/** Sentences that problem documents don’t have, or not in this form. */
const exempt = [
  'The policy of this RPC doesn’t list the event a or b.',
  'Only an attempt that passed the gate can succeed.',
  'No signing key is active: run a or b.',
  // Of calls that only `auth-admin` makes.
  'Use in the future.',
  'It signs in here with a one-time code, or from a or b on.',
  // Answers to requests whose headers can't be read.
  'The headers have more than a or b bytes.',
  'The request took too long to arrive.',
  'This is not an HTTP request.',
  // Translated for each of the two names; a test above has one.
  'Choose another a or b: this one a or b.',
]

test('every sentence that a problem document or an administrator can get is translated', async t => {
  const rooms = ['users', 'forgotpasswords', 'access', 'registration', 'requests', 'rules', 'passwords']
  rooms.push('administration', 'administration/imports', 'administration/users')
  const sentences: string[] = []
  for (const folder of [...rooms.map(room => `server/${room}`), 'gateway', 'cli/files']) {
    // The gateway has further texts, in pages and metrics.
    const before = folder === 'gateway' ? /new HttpError\(\s*'\w+',\s*/ : /(?<=[\s(,:])/
    const sentence = new RegExp(`${before.source}(['\`])([A-Z][^'\`\\n]*\\.)\\1`, 'g')
    for (const name of (await readdir(folder)).filter(each => each.endsWith('.ts'))) {
      // Without their expressions first: these have quotes, too.
      const found = (await readFile(`${folder}/${name}`, 'utf8')).replace(/\$\{[^}]*\}/g, 'a or b').matchAll(sentence)
      sentences.push(...[...found].map(([, , text = '']) => text))
    }
  }
  t.true(sentences.length > 80)
  t.deepEqual(
    sentences.filter(each => !exempt.includes(each) && toPortuguese(each) === each),
    [],
  )
})
