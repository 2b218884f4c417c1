/** Tokens: claims, verification, refusals, session lifetime, and revocation. */
import { createHash, createPublicKey, verify } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import test from 'ava'
import { pass } from '../../server/access/gate.js'
import { createKeyring } from '../../server/access/keyring.js'
import { createTokens } from '../../server/access/tokens.js'
import { newServiceKey } from '../../server/models/service.js'
import { publishLead } from '../../server/models/signing-key.js'
import { Refusal } from '../../server/requests/refusal.js'
import { spawnGateway } from '../_helpers/apart.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, forge, headerOf, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile()
const me = (token: string) => service.request('GET', '/users/me', { token })
const refresh = (token: string) => service.request('GET', '/users/refresh', { token })

test('a login’s token has the claims of RFC 9068 and those of the project, and no others', async t => {
  const organization = await service.organization()
  const { username } = await service.institution(organization)
  const before = nowInSeconds()
  const token = await service.login(username)
  const { alg, typ, kid, ...more } = headerOf(token)
  t.deepEqual({ alg, typ, more }, { alg: 'ES256', typ: 'at+jwt', more: {} })
  t.is(typeof kid, 'string')
  const { sub, iat, exp, jti, auth_time, ...claims } = claimsOf(token)
  t.regex(sub, /^[1-9]\d*$/)
  t.true(iat >= before && iat <= nowInSeconds())
  t.is(exp - iat, 3600)
  t.is(auth_time, iat)
  t.regex(jti, /^[\w-]{20,}$/)
  t.deepEqual(claims, {
    iss: 'http://auth.test',
    aud: 'work-packages',
    client_id: 'registry',
    amr: ['pwd'],
    roles: ['ROLE_INSTITUTION'],
    username,
    active: true,
    org: organization.id,
    ver: 0,
  })
})

test('login compares the username as sign-up does, and the token shows it as signed up', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { username: shown, jti } = claimsOf(await service.login(` ${username.replace(/\D/g, '')} `))
  t.is(shown, username)
  t.not(jti, claimsOf(token).jti)
  t.false('org' in claimsOf(token))
})

test('tokens verify with the published key set and node:crypto only', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const { status, headers, json } = await service.request('GET', '/.well-known/jwks.json')
  t.is(status, 200)
  t.regex(headers.get('content-type') ?? '', /^application\/(jwk-set\+)?json/)
  t.regex(headers.get('cache-control') ?? '', /max-age=\d+/)
  const key = json.keys.find(({ kid }: { kid: string }) => kid === headerOf(token).kid)
  t.deepEqual(Object.keys(key).sort(), ['alg', 'crv', 'kid', 'kty', 'use', 'x', 'y'])
  t.deepEqual([key.kty, key.use, key.alg, key.crv], ['EC', 'sig', 'ES256', 'P-256'])
  const [header, payload, signature = ''] = token.split('.')
  const publicKey = createPublicKey({ key, format: 'jwk' })
  const by = { key: publicKey, dsaEncoding: 'ieee-p1363' } as const
  const check = (text: string) => verify('sha256', Buffer.from(text), by, Buffer.from(signature, 'base64url'))
  t.true(check(`${header}.${payload}`))
  t.false(check(`${header}.${payload}x`))
  // The key id is the thumbprint of RFC 7638.
  const { crv, kty, x, y } = key
  t.is(key.kid, createHash('sha256').update(JSON.stringify({ crv, kty, x, y })).digest('base64url'))
})

/** Tokens and keys of this service at a time that the test sets. */
function timed() {
  const state = { reads: 0, away: false, time: Date.now() }
  const { signingKeys } = service.registry
  const all = () => {
    state.reads++
    return state.away ? Promise.reject(new Error('away')) : signingKeys.all()
  }
  const now = () => state.time
  const keyring = createKeyring({ ...signingKeys, all }, now)
  const tokens = createTokens({ keyring, issuer: 'http://a', audience: 'b', ttl: 3600, now })
  return Object.assign(state, { keyring, tokens })
}
const state = { active: true, suspended: false, organizationId: null, tokenGeneration: 0 }
const holder = pass({ id: 1, username: 'ana', role: 'ROLE_CLIENT', ...state }, 'sign in')!

test('a token that was verified before is refused once it has expired', async t => {
  const at = timed()
  const token = await at.tokens.issue(holder, 'pwd')
  await at.tokens.verify(token)
  at.time += 3_599_000
  t.is((await at.tokens.verify(token)).sub, '1')
  at.time += 1_000
  await t.throwsAsync(at.tokens.verify(token), { instanceOf: Refusal })
})

test('unknown key ids make a process read the keys at most once in 5 seconds', async t => {
  const at = timed()
  const { kid } = await at.keyring.signer()
  for (const seconds of [0, 5.001, 4.999]) {
    at.time += seconds * 1000
    await Promise.all(Array.from({ length: 20 }, (_, index) => at.keyring.find(`unknown ${index}`, 3600)))
    for (let index = 0; index < 20; index++) t.is(await at.keyring.find(`strange ${index}`, 3600), undefined)
    t.is((await at.keyring.find(kid, 3600))?.kid, kid)
  }
  t.is(at.reads, 3)
})

test('clients may cache the key set for at most half of the time between its publishing and the first signature', async t => {
  const { headers } = await service.request('GET', '/.well-known/jwks.json')
  const age = Number(/max-age=(\d+)/.exec(headers.get('cache-control') ?? '')?.[1])
  // The other half is for processes that had the old set at that time and couldn't refresh it.
  t.true(age > 0 && age <= publishLead / 2, String(age))
})

test('a key rotation logs no user out, and the new key is published before it signs', async t => {
  const { registry, clock } = await serviceWithClock(t)
  const { database, signingKeys } = registry
  const keyring = createKeyring(signingKeys, clock.now)
  const tokens = createTokens({ keyring, issuer: 'http://a', audience: 'b', ttl: 3600, now: clock.now })
  const session = { method: 'pwd', startedAt: Math.floor(clock.now() / 1000) } as const
  const old = await tokens.issue(holder, session)
  const rotation = { force: true, lead: publishLead, tokenTtl: 3600 }
  const kid = await database.transact(transaction => signingKeys.rotate(rotation, transaction))
  const published = async () => (await keyring.published()).map(key => key.kid)
  await clock.pass(5.001)
  t.deepEqual(await published(), [kid, headerOf(old).kid])
  t.is(headerOf(await tokens.issue(holder, session)).kid, headerOf(old).kid)
  await clock.pass(publishLead)
  t.is(headerOf(await tokens.issue(holder, session)).kid, kid)
  t.is((await tokens.verify(old)).sub, '1')
})

test('a login right after an immediate rotation succeeds, even if a read of the keys was in progress', async t => {
  const { registry } = await startTestService(t)
  const { database, signingKeys } = registry
  const events = new EventEmitter()
  const [read, asked, delivered] = ['read', 'asked', 'delivered'].map(name => once(events, name))
  const keyring = createKeyring({
    async all() {
      const keys = await signingKeys.all()
      events.emit('read')
      await delivered
      return keys
    },
    async signer() {
      const kid = await signingKeys.signer()
      setImmediate(() => events.emit('asked'))
      return kid
    },
  })
  const began = keyring.published()
  await read
  const kid = await database.transact(at => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, at))
  const signer = keyring.signer()
  await asked
  events.emit('delivered')
  await began
  t.is((await signer).kid, kid!)
})

test('the published key set of an idle replica is at most 5 seconds old, after a rotation and a retirement', async t => {
  const one = await serviceWithClock(t)
  const { clock, registry } = one
  const other = await startTestService(t, { DATABASE_URL: one.env.DATABASE_URL! }, { clock })
  const { database, signingKeys } = registry
  const kids = async () =>
    (await other.request('GET', '/.well-known/jwks.json')).json.keys.map(({ kid }: { kid: string }) => kid)
  const [first] = await kids()
  const second = await database.transact(at => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, at))
  await clock.pass(5.001)
  t.deepEqual(await kids(), [second, first])
  for (const idle of [5.001, 150]) {
    const [{ kid } = { kid: '' }] = await signingKeys.all()
    const retired = await database.transact(at => signingKeys.retire(kid, at))
    await clock.pass(idle)
    t.deepEqual(await kids(), [(retired as { successor: string }).successor, first])
  }
})

test('concurrent requests for the key set share one read, and if it fails the last set serves for 5 minutes', async t => {
  const at = timed()
  const ask = () => Promise.all(Array.from({ length: 20 }, () => at.keyring.published()))
  const [set] = await ask()
  t.true(set!.length > 0)
  for (const [seconds, reads] of [
    [5, 1],
    [0.001, 2],
  ] as const) {
    at.time += seconds * 1000
    await ask()
    t.is(at.reads, reads)
  }
  at.away = true
  at.time += 300_000
  t.deepEqual(await at.keyring.published(), set)
  at.time += 1
  await t.throwsAsync(at.keyring.published(), { message: 'away' })
  at.away = false
  t.deepEqual(await at.keyring.published(), set)
})

test('concurrent calls with a token of a key that the process doesn’t know yet are not refused', async t => {
  const { registry } = await startTestService(t)
  const { database, signingKeys } = registry
  const keyring = createKeyring(signingKeys)
  await keyring.signer()
  const kid = await database.transact(at => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, at))
  const found = await Promise.all(Array.from({ length: 5 }, () => keyring.find(kid!, 3600)))
  t.true(found.every(key => key?.kid === kid))
})

test('a refresh keeps session start and method, and sets a new id and expiry', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const then = nowInSeconds() - 1000
  const old = await forge(service, token, { iat: then, auth_time: then, exp: then + 3600 })
  const { status, text, headers } = await refresh(old)
  t.is(status, 200)
  t.is(headers.get('cache-control'), 'no-store')
  const { auth_time, amr, iat, exp, jti } = claimsOf(text)
  t.deepEqual({ auth_time, amr }, { auth_time: then, amr: ['pwd'] })
  t.true(iat > then && exp - iat === 3600)
  t.not(jti, claimsOf(old).jti)
  t.is((await me(text)).status, 200)
})

test('role and state are read from the registry, not from the token', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const other = await service.signUp('ROLE_CLIENT')
  const boasting = await forge(service, token, { roles: ['ROLE_ADMIN'], active: true })
  refused(t, await service.request('GET', `/users/${other.username}`, { token: boasting }), 403, 'ACCESS_DENIED')
})

test('until it is activated, a user has a token for the registry alone', async t => {
  for (const role of ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT']) {
    const { username, token } = await service.signUp(role)
    for (const each of [token, await service.login(username), (await refresh(token)).text]) {
      t.like(claimsOf(each), { aud: 'http://auth.test', roles: [], active: false, client_id: 'registry' })
      t.is((await me(each)).status, 200)
    }
  }
})

// Introspection (RFC 7662) and metadata (RFC 8414) for clients of OAuth 2.0.

const https = serviceForFile(() => ({ AUTH_ISSUER: 'https://auth.example.org' }))
let key: string
test.before(async () => {
  key = await serviceKey(https, ['tokens.verify'])
})

/** Introspects a token with a form, as in RFC 7662. */
const introspect = (token: string, authorization?: string, http = https.http) =>
  fetch(`${http}/introspect`, {
    method: 'POST',
    body: new URLSearchParams({ token, token_type_hint: 'access_token' }),
    headers: authorization === undefined ? {} : { authorization },
  })

const basic = (secret: string) => `Basic ${Buffer.from(`grades:${secret}`).toString('base64')}`

test('a service introspects a token with its key as bearer token or as client secret', async t => {
  const user = await https.institution(await https.organization())
  const token = await https.login(user.username)
  const { username, ver, active, ...claims } = claimsOf(token)
  t.true(typeof ver === 'number' && active)
  // RFC 6749, 2.3.1: id and secret are encoded as in a form.
  const encoded = [...key].map(each => `%${each.charCodeAt(0).toString(16)}`).join('')
  for (const authorization of [`Bearer ${key}`, basic(key), basic(encoded)]) {
    const response = await introspect(token, authorization)
    t.is(response.status, 200)
    t.is(response.headers.get('content-type'), 'application/json')
    t.is(response.headers.get('cache-control'), 'no-store')
    t.deepEqual(await response.json(), { ...claims, active: true, username, token_type: 'Bearer', user_active: true })
  }
})

test('for an invalid token the response is `active: false`, without other claims', async t => {
  const { token } = await https.signUp('ROLE_CLIENT')
  await https.request('POST', '/users/revokemytokens', { token })
  const { token: inactive, username } = await https.signUp('ROLE_INSTITUTION')
  const { activationkey } = await https.organization()
  await https.request('POST', '/users/activate', { token: inactive, query: { username, activationkey } })
  for (const each of [
    token,
    'nonsense',
    key,
    inactive,
    `${inactive}x`,
    inactive.split('.').slice(0, 2).join('.'),
    username,
  ]) {
    t.is(await (await introspect(each, `Bearer ${key}`)).text(), '{"active":false}', each)
  }
  t.is((await https.request('GET', '/users/me', { token: inactive })).json.active, 1)
})

test('a client without a valid key gets a challenge', async t => {
  const { token } = await https.signUp('ROLE_CLIENT')
  const outcome = async (authorization?: string) => {
    const response = await introspect(token, authorization)
    const { reason, status } = (await response.json()) as { reason: string; status: number }
    t.is(status, response.status)
    return [response.status, reason, response.headers.get('www-authenticate')]
  }
  const bearer = 'Bearer realm="services"'
  const invalid = `${bearer}, error="invalid_token"`
  t.deepEqual(await outcome(), [401, 'ACCESS_DENIED', bearer])
  t.deepEqual(await outcome(`Bearer ${newServiceKey()}`), [401, 'INVALID_TOKEN', invalid])
  t.deepEqual(await outcome('Bearer x.y.z'), [401, 'INVALID_TOKEN', invalid])
  t.deepEqual(await outcome(basic(newServiceKey())), [401, 'INVALID_TOKEN', 'Basic realm="services"'])
  const insufficient = `${bearer}, error="insufficient_scope"`
  const reader = await serviceKey(https, ['users.read'])
  t.deepEqual(await outcome(`Bearer ${reader}`), [403, 'ACCESS_DENIED', insufficient])
  t.deepEqual(await outcome(`Bearer ${token}`), [403, 'ACCESS_DENIED', insufficient])
})

test('at other endpoints a client secret isn’t a key, and the contract’s statuses apply', async t => {
  const headers = { authorization: basic(await serviceKey(https, ['users.read'])) }
  refused(t, await https.request('GET', '/users/admin', { headers }), 403, 'ACCESS_DENIED')
  const bad = await https.request('GET', '/users/admin', { token: newServiceKey() })
  refused(t, bad, 500, 'INVALID_TOKEN')
  t.is(bad.headers.get('www-authenticate'), null)
})

test('a separate gateway also introspects tokens', async t => {
  const token = await https.login('admin')
  const gateway = await spawnGateway(t, https.grpc)
  t.like(await (await introspect(token, basic(key), gateway.http)).json(), { active: true })
  t.is((await introspect(token, undefined, gateway.http)).status, 401)
})

test('the metadata names the issuer, its keys and its endpoints', async t => {
  const response = await fetch(`${https.http}/.well-known/oauth-authorization-server`)
  t.is(response.headers.get('content-type'), 'application/json')
  t.is(response.headers.get('cache-control'), 'public, max-age=300')
  t.deepEqual(await response.json(), {
    issuer: 'https://auth.example.org',
    jwks_uri: 'https://auth.example.org/.well-known/jwks.json',
    introspection_endpoint: 'https://auth.example.org/introspect',
    introspection_endpoint_auth_methods_supported: ['Bearer', 'client_secret_basic'],
    authorization_endpoint: 'https://auth.example.org/oauth/authorize',
    authorization_response_iss_parameter_supported: true,
    code_challenge_methods_supported: ['S256'],
    end_session_endpoint: 'https://auth.example.org/oauth/logout',
    grant_types_supported: ['authorization_code', 'refresh_token'],
    response_modes_supported: ['query'],
    response_types_supported: ['code'],
    revocation_endpoint: 'https://auth.example.org/oauth/revoke',
    revocation_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post', 'none'],
    token_endpoint: 'https://auth.example.org/oauth/token',
    token_endpoint_auth_methods_supported: ['client_secret_basic', 'client_secret_post', 'none'],
    userinfo_endpoint: 'https://auth.example.org/oauth/userinfo',
  })
})
