/** Introspection (RFC 7662) and metadata (RFC 8414) for clients of OAuth 2.0. */
import test from 'ava'
import { newServiceKey } from '../../server/models/service.js'
import { spawnGateway } from '../_helpers/apart.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf } from '../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_ISSUER: 'https://auth.example.org' }))
let key: string
test.before(async () => {
  key = await serviceKey(service, ['tokens.verify'])
})

const form = (fields: Record<string, string>) => ({
  method: 'POST',
  body: new URLSearchParams(fields),
})

/** Introspects a token with a form, as in RFC 7662. */
const introspect = (token: string, authorization?: string, http = service.http) =>
  fetch(`${http}/introspect`, {
    ...form({ token, token_type_hint: 'access_token' }),
    headers: authorization === undefined ? {} : { authorization },
  })

const basic = (secret: string) => `Basic ${Buffer.from(`grades:${secret}`).toString('base64')}`

test('a service introspects a token with its key as bearer token or as client secret', async t => {
  const user = await service.institution(await service.organization())
  const token = await service.login(user.username)
  const { username, ver, active, ...claims } = claimsOf(token)
  t.true(typeof ver === 'number' && active)
  for (const authorization of [`Bearer ${key}`, basic(key)]) {
    const response = await introspect(token, authorization)
    t.is(response.status, 200)
    t.is(response.headers.get('content-type'), 'application/json')
    t.is(response.headers.get('cache-control'), 'no-store')
    t.deepEqual(await response.json(), { ...claims, active: true, username, token_type: 'Bearer', user_active: true })
  }
})

test('for an invalid token the response is `active: false`, without other claims', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  await service.request('POST', '/users/revokemytokens', { token })
  const { token: inactive, username } = await service.signUp('ROLE_CLIENT')
  for (const each of [token, 'nonsense', key, `${inactive}x`, inactive.split('.').slice(0, 2).join('.'), username]) {
    t.is(await (await introspect(each, `Bearer ${key}`)).text(), '{"active":false}', each)
  }
  t.like(await (await introspect(inactive, `Bearer ${key}`)).json(), { active: true, user_active: false })
})

test('a client without a valid key gets a challenge', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
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
  const reader = await serviceKey(service, ['users.read'])
  t.deepEqual(await outcome(`Bearer ${reader}`), [403, 'ACCESS_DENIED', insufficient])
  t.deepEqual(await outcome(`Bearer ${token}`), [403, 'ACCESS_DENIED', insufficient])
})

test('at other endpoints a client secret isn’t a key, and the contract’s statuses apply', async t => {
  const headers = { authorization: basic(await serviceKey(service, ['users.read'])) }
  refused(t, await service.request('GET', '/users/admin', { headers }), 403, 'ACCESS_DENIED')
  const bad = await service.request('GET', '/users/admin', { token: newServiceKey() })
  refused(t, bad, 500, 'INVALID_TOKEN')
  t.is(bad.headers.get('www-authenticate'), null)
})

test('a request without a token is refused', async t => {
  const response = await fetch(`${service.http}/introspect`, {
    ...form({ other: 'x' }),
    headers: { authorization: `Bearer ${key}` },
  })
  t.is(response.status, 400)
  t.like(await response.json(), { reason: 'MISSING_PARAMETER' })
})

test('a separate gateway also introspects tokens', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const gateway = await spawnGateway(t, service.grpc)
  t.like(await (await introspect(token, basic(key), gateway.http)).json(), { active: true })
  t.is((await introspect(token, undefined, gateway.http)).status, 401)
})

test('the metadata names the issuer, its keys and the introspection endpoint', async t => {
  const response = await fetch(`${service.http}/.well-known/oauth-authorization-server`)
  t.is(response.headers.get('content-type'), 'application/json')
  t.is(response.headers.get('cache-control'), 'public, max-age=300')
  t.deepEqual(await response.json(), {
    issuer: 'https://auth.example.org',
    jwks_uri: 'https://auth.example.org/.well-known/jwks.json',
    introspection_endpoint: 'https://auth.example.org/introspect',
    introspection_endpoint_auth_methods_supported: ['Bearer', 'client_secret_basic'],
    response_types_supported: [],
    grant_types_supported: [],
  })
  const { status } = await fetch(`${service.http}/1.0.2/.well-known/oauth-authorization-server`)
  t.is(status, 404)
})
