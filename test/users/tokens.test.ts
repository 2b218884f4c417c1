/** Tokens: what they say, who can verify them, what is refused, how long a session lasts, what revokes them. */
import { createHash, createPublicKey, generateKeyPairSync, verify } from 'node:crypto'
import test from 'ava'
import jwt from 'jsonwebtoken'
import { refused } from '../_helpers/problem.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { claimsOf, forge, headerOf, idOf, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile()
const me = (token: string) => service.request('GET', '/users/me', { token })
const refresh = (token: string) => service.request('GET', '/users/refresh', { token })
const day = 86_400

test('a login’s token has the claims of RFC 9068 and our own, and no others', async t => {
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

test('a user without an organization has no claim org, and every token its own id', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.false('org' in claimsOf(token))
  t.not(claimsOf(await service.login(username)).jti, claimsOf(token).jti)
})

test('login compares the username as sign-up does, and the token shows it as signed up', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  t.is(claimsOf(await service.login(` ${username.replace(/\D/g, '')} `)).username, username)
})

test('others verify tokens with the published key set and nothing but node:crypto', async t => {
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

test('a key rotation logs nobody out, and the new key is published before it signs', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const { database, signingKeys } = service.registry
  const rotation = { force: true, lead: 600, tokenTtl: 3600 }
  const kid = await database.transact(transaction => signingKeys.rotate(rotation, transaction))
  t.is((await me(token)).status, 200)
  t.not(headerOf(await service.login(username)).kid, kid)
  const keys = (await signingKeys.all()).map(key => key.kid)
  t.true(keys.includes(kid!) && keys.includes(headerOf(token).kid))
})

type Forged = (genuine: string) => Promise<string> | string
const bad: Record<string, Forged> = {
  'that is no JWT': () => 'abc',
  'with three empty parts': () => '..',
  'whose signature is cut': genuine => genuine.slice(0, -4),
  'whose signature is another’s': genuine => `${genuine.split('.').slice(0, 2).join('.')}.${'A'.repeat(86)}`,
  'whose claims were changed': genuine => {
    const [header, , signature] = genuine.split('.')
    const claims = { ...claimsOf(genuine), roles: ['ROLE_ADMIN'] }
    return `${header}.${Buffer.from(JSON.stringify(claims)).toString('base64url')}.${signature}`
  },
  'with the algorithm none': genuine => {
    const header = Buffer.from(JSON.stringify({ ...headerOf(genuine), alg: 'none' })).toString('base64url')
    return `${header}.${genuine.split('.')[1]}.`
  },
  'signed HS256 with the public key': async genuine => {
    const [key] = await service.registry.signingKeys.all()
    const pem = key!.publicKey.export({ format: 'pem', type: 'spki' }).toString()
    const { createHmac } = await import('node:crypto')
    const header = Buffer.from(JSON.stringify({ ...headerOf(genuine), alg: 'HS256' })).toString('base64url')
    const text = `${header}.${genuine.split('.')[1]}`
    return `${text}.${createHmac('sha256', pem).update(text).digest('base64url')}`
  },
  'signed with a key of one’s own under our key id': genuine => {
    const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
    return jwt.sign(claimsOf(genuine), privateKey, { algorithm: 'ES256', header: headerOf(genuine) })
  },
  'with an unknown key id': genuine => forge(service, genuine, {}, { kid: 'unknown' }),
  'without a key id': genuine => forge(service, genuine, {}, { kid: undefined }),
  'of another type': genuine => forge(service, genuine, {}, { typ: 'JWT' }),
  'with an extension nobody knows': genuine => forge(service, genuine, {}, { crit: ['exp2'], exp2: 1 }),
  'of another issuer': genuine => forge(service, genuine, { iss: 'http://other.test' }),
  'for another audience': genuine => forge(service, genuine, { aud: 'others' }),
  'that has expired': genuine => forge(service, genuine, { exp: nowInSeconds() - 1 }),
  'without an end': genuine => forge(service, genuine, { exp: undefined }),
  'without a session start': genuine => forge(service, genuine, { auth_time: undefined }),
  'without a token generation': genuine => forge(service, genuine, { ver: undefined }),
  'of another token generation': genuine => forge(service, genuine, { ver: 1 }),
  'of a user who is gone': genuine => forge(service, genuine, { sub: '2147483647' }),
  'of nobody': genuine => forge(service, genuine, { sub: undefined }),
  'that goes on for ever': () => 'a'.repeat(5000),
}
for (const [what, make] of Object.entries(bad)) {
  test(`a token ${what} is answered with 500`, async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    t.is((await me(token)).status, 200)
    const forged = await make(token)
    for (const path of ['/users/me', '/users/refresh', '/users/ana']) {
      refused(t, await service.request('GET', path, { token: forged }), 500, 'INVALID_TOKEN')
    }
  })
}

test('a token forged right but for nothing is accepted', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  t.is((await me(await forge(service, token, {}))).status, 200)
})

for (const header of ['', 'Basic YTpi', 'Bearer', 'Bearer ', 'Token x', 'bear x']) {
  test(`the header "Authorization: ${header}" is no token: 403`, async t => {
    refused(t, await service.request('GET', '/users/me', { headers: { authorization: header } }), 403, 'ACCESS_DENIED')
  })
}

test('refresh keeps session start and method, and gives a new id and end', async t => {
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

for (const [method, length, name] of [
  ['pwd', 30 * day, '30 days'],
  ['kba', 3600, '1 hour'],
  ['otp', 3600, '1 hour'],
] as const) {
  test(`a session that began with ${method} lasts ${name}, however often it is refreshed`, async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const now = nowInSeconds()
    const session = { amr: [method], iat: now - 60, exp: now + 600 }
    const near = await refresh(await forge(service, token, { ...session, auth_time: now - length + 300 }))
    t.is(near.status, 200)
    t.is(claimsOf(near.text).exp, now + 300)
    const over = await refresh(await forge(service, token, { ...session, auth_time: now - length - 1 }))
    refused(t, over, 500, 'INVALID_TOKEN')
  })
}

test('a password update revokes every earlier token, and only that user’s', async t => {
  const other = await service.signUp('ROLE_CLIENT')
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const second = await service.login(username)
  const query = { newPassword: 'jabuti-piranga-55' }
  t.is((await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })).status, 200)
  for (const old of [token, second]) {
    refused(t, await me(old), 500, 'INVALID_TOKEN')
    refused(t, await refresh(old), 500, 'INVALID_TOKEN')
  }
  const fresh = await service.login(username, query.newPassword)
  t.is(claimsOf(fresh).ver, 1)
  t.is((await me(fresh)).status, 200)
  t.is((await me(other.token)).status, 200)
})

test('"log out everywhere" revokes every earlier token', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { database, users } = service.registry
  await database.transact(transaction => users.revokeTokens(idOf(token), transaction))
  refused(t, await me(token), 500, 'INVALID_TOKEN')
  t.is((await me(await service.login(username))).status, 200)
})

test('a suspension revokes every token, and the login looks like a wrong password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { database, users } = service.registry
  await database.transact(transaction => users.suspend(idOf(token), transaction))
  refused(t, await me(token), 500, 'INVALID_TOKEN')
  const login = (secret: string, name = username) =>
    service.request('POST', '/users/login', { query: { username: name, password: secret } })
  const answers = [await login(password), await login('wrong password'), await login(password, 'nobody at all')]
  for (const answer of answers) refused(t, answer, 404, 'INVALID_CREDENTIALS')
  t.is(new Set(answers.map(({ json }) => json.detail)).size, 1)
})

test('a suspended user’s forged token of the newest generation is refused, too', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const { database, users } = service.registry
  await database.transact(transaction => users.suspend(idOf(token), transaction))
  refused(t, await me(await forge(service, token, { ver: 1 })), 500, 'INVALID_TOKEN')
})

test('role and state are read from the registry, not from the token', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const other = await service.signUp('ROLE_CLIENT')
  const boasting = await forge(service, token, { roles: ['ROLE_ADMIN'], active: true })
  refused(t, await service.request('GET', `/users/${other.username}`, { token: boasting }), 403, 'ACCESS_DENIED')
})
