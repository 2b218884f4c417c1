/** Tokens: claims, verification, refusals, session lifetime, and revocation. */
import { createHash, createPublicKey, verify } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import test from 'ava'
import { createKeyring } from '../../server/access/keyring.js'
import { createTokens } from '../../server/access/tokens.js'
import { publishLead } from '../../server/models/signing-key.js'
import { Refusal } from '../../server/requests/refusal.js'
import { refused } from '../_helpers/problem.js'
import { serviceForFile, serviceWithClock, startTestService } from '../_helpers/service.js'
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
    amr: ['pwd'],
    roles: ['ROLE_INSTITUTION'],
    username,
    active: true,
    org: organization.id,
    ver: 0,
  })
})

test('a user without an organization has no claim org, and every token has a unique id', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.false('org' in claimsOf(token))
  t.not(claimsOf(await service.login(username)).jti, claimsOf(token).jti)
})

test('login compares the username as sign-up does, and the token shows it as signed up', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.is(claimsOf(await service.login(` ${username.replace(/\D/g, '')} `)).username, username)
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
  const check = (text: string) =>
    verify(
      'sha256',
      Buffer.from(text),
      { key: publicKey, dsaEncoding: 'ieee-p1363' },
      Buffer.from(signature, 'base64url'),
    )
  t.true(check(`${header}.${payload}`))
  t.false(check(`${header}.${payload}x`))
  // The key id is the thumbprint of RFC 7638.
  const { crv, kty, x, y } = key
  t.is(key.kid, createHash('sha256').update(JSON.stringify({ crv, kty, x, y })).digest('base64url'))
})

/** Tokens and keys of this service at a time that the test sets. */
function timed() {
  let reads = 0
  let time = Date.now()
  const { signingKeys } = service.registry
  const all = () => {
    reads++
    return signingKeys.all()
  }
  const keyring = createKeyring({ all, signer: signingKeys.signer }, () => time)
  const tokens = createTokens({ keyring, issuer: 'http://a', audience: 'b', ttl: 3600, now: () => time })
  return {
    keyring,
    tokens,
    reads: () => reads,
    advance(seconds: number) {
      time += seconds * 1000
    },
  }
}
const holder = { id: 1, username: 'ana', role: 'ROLE_CLIENT', active: true, organizationId: null, tokenGeneration: 0 }

test('a token that was verified before is refused once it has expired', async t => {
  const { tokens, advance } = timed()
  const token = await tokens.issue(holder, 'pwd')
  await tokens.verify(token)
  advance(3599)
  t.is((await tokens.verify(token)).sub, '1')
  advance(1)
  await t.throwsAsync(tokens.verify(token), { instanceOf: Refusal })
})

test('unknown key ids make a process read the keys at most once in 5 seconds', async t => {
  const { keyring, reads, advance } = timed()
  const { kid } = await keyring.signer()
  for (const seconds of [0, 5.001, 4.999]) {
    advance(seconds)
    await Promise.all(Array.from({ length: 20 }, (_, index) => keyring.find(`unknown ${index}`, 3600)))
    for (let index = 0; index < 20; index++) t.is(await keyring.find(`strange ${index}`, 3600), undefined)
    t.is((await keyring.find(kid, 3600))?.kid, kid)
  }
  t.is(reads(), 3)
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
  const { signingKeys } = service.registry
  let time = Date.now()
  let reads = 0
  let away = false
  const all = () => {
    reads++
    return away ? Promise.reject(new Error('away')) : signingKeys.all()
  }
  const keyring = createKeyring({ ...signingKeys, all }, () => time)
  const ask = () => Promise.all(Array.from({ length: 20 }, () => keyring.published()))
  const [set] = await ask()
  t.true(set!.length > 0)
  t.is(reads, 1)
  time += 5000
  await ask()
  t.is(reads, 1)
  time += 1
  await ask()
  t.is(reads, 2)
  away = true
  time += 300_000
  t.deepEqual(await keyring.published(), set)
  time += 1
  await t.throwsAsync(keyring.published(), { message: 'away' })
  away = false
  t.deepEqual(await keyring.published(), set)
})

test('concurrent calls with a token of a key that the process doesn’t know yet are not refused', async t => {
  const { registry } = await startTestService(t)
  const { database, signingKeys } = registry
  const keyring = createKeyring(signingKeys)
  await keyring.signer()
  const kid = await database.transact(at => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, at))
  const found = await Promise.all(Array.from({ length: 5 }, () => keyring.find(kid!, 3600)))
  t.deepEqual(
    found.map(key => key?.kid),
    Array(5).fill(kid),
  )
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
