/** Forged, stale and revoked tokens at every endpoint of two replicas, and signing keys in rotation and at rest. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createDataKeys, randomDataKeys } from '../../server/models/data-key.js'
import { createSigningKeys } from '../../server/models/signing-key.js'
import { ask } from '../_helpers/database.js'
import { assemble, constant, ecdsa, ecdsaDer, hmac, ownKeys, ownRsaKeys, rsa } from '../_helpers/forging.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { changeTokens, suspend } from '../_helpers/models.js'
import { updatePassword } from '../_helpers/recovery.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, forge, headerOf, idOf, nowInSeconds } from '../_helpers/tokens.js'

const replicas = replicasForFile(2) as readonly [TestService, TestService]
const [first, second] = replicas

/** Each replica with a gRPC client. */
const endpoints: { service: TestService; client: GrpcClient }[] = []
test.before(() => {
  for (const service of replicas) endpoints.push({ service, client: openGrpc(service.grpc) })
})
test.after.always(() => {
  for (const { client } of endpoints) client.close()
})

/** The endpoints that accept a token; none if all refuse it as expected. */
async function accepting(token: string): Promise<string[]> {
  const found: string[] = []
  for (const [index, { service, client }] of endpoints.entries()) {
    const me = await service.request('GET', '/users/me', { token })
    if (me.status !== 500 || me.json.reason !== 'INVALID_TOKEN') found.push(`replica ${index + 1} HTTP ${me.status}`)
    const refresh = await service.request('GET', '/users/refresh', { token })
    if (refresh.status !== 500) found.push(`replica ${index + 1} refresh ${refresh.status}`)
    const call = await client.call(Users.method.getMe, {}, { token }).then(
      () => 'OK',
      error => refusalOf(error).info?.reason,
    )
    if (call !== 'INVALID_TOKEN') found.push(`replica ${index + 1} gRPC`)
    const verdict = await client.call(Users.method.verifyToken, { token })
    if (verdict.active || verdict.sub !== undefined) found.push(`replica ${index + 1} VerifyToken`)
  }
  return found
}

/** The forged tokens that an endpoint accepts, and where. */
async function opened(forgeries: Readonly<Record<string, string>>): Promise<Record<string, string[]>> {
  const found: Record<string, string[]> = {}
  for (const [name, forgery] of Object.entries(forgeries)) {
    const where = await accepting(forgery)
    if (where.length > 0) found[name] = where
  }
  return found
}

test('no endpoint accepts a forged token', async t => {
  const { token } = await first.institution(await first.organization())
  const admin = await first.adminToken()
  const [key] = await first.registry.signingKeys.all()
  const { kid, privateKey, publicKey, publicJwk } = key!
  const now = nowInSeconds()
  const [head, claims] = [headerOf(token), claimsOf(token)]
  const [start, , end] = token.split('.') as [string, string, string]
  const genuine = ecdsa(privateKey)
  const mine = ownKeys()
  const attacker = ecdsa(mine.privateKey)
  const jwk = mine.publicKey.export({ format: 'jwk' })
  const x5c = [mine.publicKey.export({ format: 'der', type: 'spki' }).toString('base64')]
  const jku = 'https://attacker.example/jwks.json'
  const spki = publicKey.export({ format: 'pem', type: 'spki' }) as string
  const empty = constant(Buffer.alloc(0))
  const asAdmin = { ...claims, sub: claimsOf(admin).sub, roles: ['ROLE_ADMIN'], username: 'admin', active: true }
  const base64 = (text: string) => Buffer.from(text).toString('base64url')
  const signed = (header: object, changed: unknown = claims, signer = genuine) => assemble(header, changed, signer)

  const forgeries: Record<string, string> = {
    'no signature': signed(head, asAdmin, empty),
    'nothing but dots': '..',
    'a signature cut short': token.slice(0, -4),
    'no last part': token.slice(0, token.lastIndexOf('.')),
    'a signature of nothing but zeros': signed(head, asAdmin, constant(Buffer.alloc(64))),
    'a signature in DER': signed(head, claims, ecdsaDer(privateKey)),
    'claims altered under a genuine signature': [start, base64(JSON.stringify(asAdmin)), end].join('.'),
    'ES256 with an attacker’s key': signed(head, asAdmin, attacker),
    'RS256 with an attacker’s key': signed({ ...head, alg: 'RS256' }, asAdmin, rsa(ownRsaKeys().privateKey)),
    'ES384 with the right key': signed({ ...head, alg: 'ES384' }, claims, ecdsa(privateKey, 'sha384')),
    'not valid yet': signed(head, { ...claims, nbf: now + 3600 }),
    'claims that are a list': signed(head, [claims]),
    'claims that are a text': signed(head, 'claims'),
    'longer than any of ours': signed(head, { ...claims, more: 'x'.repeat(5000) }),
    'four parts': `${token}.${end}`,
    'five parts, as if encrypted': `${token}.a.b`,
    padded: `${token}=`,
    'two at once': `${token},${token}`,
    'no JSON in it': 'YQ.YQ.YQ',
    'half a million levels of JSON': `${base64('['.repeat(2500))}.YQ.YQ`,
  }
  for (const alg of ['none', 'None', 'NONE', 'nOnE', '']) {
    forgeries[`alg ${alg || 'empty'}, no signature`] = signed({ ...head, alg }, asAdmin, empty)
    forgeries[`alg ${alg || 'empty'}, a signature of ours`] = signed({ ...head, alg }, asAdmin)
  }
  const der = publicKey.export({ format: 'der', type: 'spki' })
  for (const secret of [spki, spki.trim(), JSON.stringify(publicJwk), kid, '', der])
    forgeries[`HS256 with the secret ${secret}`] = signed({ ...head, alg: 'HS256' }, asAdmin, hmac(secret))
  for (const [alg, curve, hash] of [
    ['ES384', 'P-384', 'sha384'],
    ['ES512', 'P-521', 'sha512'],
    ['ES256K', 'secp256k1', 'sha256'],
    ['ES256', 'P-384', 'sha256'],
  ] as const)
    forgeries[`${alg} on ${curve}`] = signed({ ...head, alg }, asAdmin, ecdsa(ownKeys(curve).privateKey, hash))
  for (const more of [{ jwk }, { jwk, kid: 'mine' }, { jku }, { jku, kid: 'mine' }, { x5u: jku }, { x5c }])
    forgeries[`a key in the header: ${JSON.stringify(more)}`] = signed({ ...head, ...more }, asAdmin, attacker)

  // From here on signed with the right key: only the contents are wrong. A list of one value isn't that value.
  const headers: Record<string, readonly unknown[]> = {
    typ: ['JWT', 'jwt', 'id+jwt', 'dpop+jwt', '', undefined, 1, ['at+jwt']],
    crit: [['exp'], [], ['b64'], ['http://attacker.example'], 'exp', null],
    kid: [
      ...['', 'unknown', "' OR 1=1 --", "x' UNION SELECT kid FROM signing_keys --", '../../../../dev/null'],
      ...['__proto__', 'constructor', 'a\u0000b', 'x'.repeat(2000), 1, null, undefined, [kid], { kid }],
    ],
  }
  for (const [name, values] of Object.entries(headers))
    for (const value of values)
      forgeries[`${name} ${JSON.stringify(value)?.slice(0, 40)}`] = signed({ ...head, b64: true, [name]: value })
  const past = { iat: now - 90_000, auth_time: now - 90_000 }
  const wrong: Record<string, readonly unknown[]> = {
    iss: ['https://attacker.example', '', [claims.iss], null, `${claims.iss}/`, 1, undefined],
    aud: ['others', '', [], ['others'], null, { aud: claims.aud }, undefined],
    exp: [now - 1, now - 86_400, 0, -1, `${now + 60}`, null, true, 'never', undefined],
    sub: ['0', '-1', '999999999', '', ' 1', '1 OR 1=1', '1.0', '1e0', '0x1', 'admin', null, { id: 1 }, undefined],
    ver: [-1, 1, '0', null, 0.5, true, undefined],
    amr: [[], null, ['root'], ['constructor'], 'p', undefined],
    iat: [undefined],
    auth_time: [undefined],
  }
  for (const [name, values] of Object.entries(wrong))
    for (const value of values)
      forgeries[`${name} ${JSON.stringify(value)}`] = signed(head, {
        ...claims,
        ...(name === 'exp' && value !== undefined && past),
        [name]: value,
      })

  t.is((await accepting(signed(head, { ...claims, jti: randomUUID() }))).length, 8)
  t.is((await accepting(signed({ ...head, b64: true }, { ...claims, jti: randomUUID() }))).length, 8)
  t.deepEqual(await opened(forgeries), {})
  t.true(Object.keys(forgeries).length > 90)
})

test('a token in the wrong place or form is treated as no token', async t => {
  const { token } = await first.signUp('ROLE_CLIENT')
  const forms = [
    ...[`Basic ${token}`, token, 'Bearer', 'Bearer ', '', `Token ${token}`, `Bearer${token}`, `X Bearer ${token}`],
  ]
  const query = { access_token: token, authorization: `Bearer ${token}` }
  for (const options of [...forms.map(authorization => ({ headers: { authorization } })), { query }])
    t.is((await first.request('GET', '/users/me', options)).status, 403, JSON.stringify(options))
})

test('a password update, a suspension or a revocation voids every token on every replica', async t => {
  const { registry } = first
  const acts: Record<string, (token: string) => Promise<unknown>> = {
    'password update': token => updatePassword(second, token),
    suspension: token => suspend(registry, idOf(token)),
    revocation: token => changeTokens(registry, idOf(token), t => registry.users.revokeTokens(idOf(token), t)),
    'suspension by hand': token =>
      registry.database.sequelize.query(`UPDATE users SET suspended = true WHERE id = ${idOf(token)}`),
    deletion: token => registry.database.sequelize.query(`DELETE FROM users WHERE id = ${idOf(token)}`),
  }
  for (const [name, act] of Object.entries(acts)) {
    const { token } = await first.signUp('ROLE_CLIENT')
    // Every replica has verified and cached it.
    for (const { service } of endpoints) t.is((await service.request('GET', '/users/me', { token })).status, 200)
    const { text: fresh } = await second.request('GET', '/users/refresh', { token })
    await act(token)
    t.deepEqual(await accepting(token), [], name)
    t.deepEqual(await accepting(fresh), [], `${name}, refreshed before`)
  }
})

test('a session ends at its time, however often it is refreshed', async t => {
  const { token } = await first.signUp('ROLE_CLIENT')
  const [key] = await first.registry.signingKeys.all()
  const now = nowInSeconds()
  const aged = (method: string, age: number) => {
    const claims = { ...claimsOf(token), amr: [method], auth_time: now - age, jti: randomUUID() }
    return assemble(headerOf(token), claims, ecdsa(key!.privateKey))
  }
  for (const [method, length] of [
    ['pwd', 86_400],
    ['kba', 3600],
    ['otp', 3600],
  ] as const) {
    for (const { service } of endpoints) {
      const soon = await service.request('GET', '/users/refresh', { token: aged(method, length - 30) })
      t.is(soon.status, 200)
      t.true(claimsOf(soon.text).exp <= now + 31, method)
      t.is((await service.request('GET', '/users/refresh', { token: aged(method, length + 1) })).status, 500, method)
    }
  }
})

test('signing keys are stored sealed: the database alone can’t sign, and another master key opens nothing', async t => {
  const first = await startTestService(t)
  const { registry } = first
  const [key] = await registry.signingKeys.all()
  const { d } = key!.privateKey.export({ format: 'jwk' })
  const pem = key!.privateKey.export({ format: 'pem', type: 'pkcs8' }) as string
  const secret = Buffer.from(d!, 'base64url')
  const forms = [d!, pem.split('\n')[1]!, 'PRIVATE KEY', secret.toString('hex'), secret.toString('base64')]
  const sql = (text: string) => ask(first.env.DATABASE_URL!, text)
  const tables = await sql(`SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'`)
  for (const { name } of tables) {
    const dump = JSON.stringify(await sql(`SELECT row_to_json(x)::text AS row FROM "${name}" x`))
    for (const form of forms) t.false(dump.includes(form), String(name))
  }
  const other = createSigningKeys(registry.database, createDataKeys(randomDataKeys))
  await t.throwsAsync(other.all(), { message: /authenticate/ })
  // A sealed key is bound to its id.
  await sql(`UPDATE signing_keys SET kid = 'other'`)
  await t.throwsAsync(registry.signingKeys.all(), { message: /authenticate/ })
})

test('a token signed by a stolen key is refused if it starts in the future or lasts longer than its key allows', async t => {
  const { token } = await first.institution(await first.organization())
  const now = nowInSeconds()
  const times: Record<string, { iat?: number; auth_time?: number; exp?: number }> = {
    'auth_time in the future': { auth_time: now + 10 * 365 * 86_400 },
    'auth_time after iat': { iat: now - 100, auth_time: now - 50, exp: now + 100 },
    'iat in the future': { iat: now + 120, auth_time: now, exp: now + 200 },
    'a second too long': { iat: now - 10, auth_time: now - 10, exp: now + 3591 },
    'ten years': { exp: now + 10 * 365 * 86_400 },
    'iat before 1970': { iat: -1, auth_time: -1, exp: now + 60 },
  }
  const forgeries: Record<string, string> = {}
  for (const [name, claims] of Object.entries(times)) forgeries[name] = await forge(first, token, claims)
  t.deepEqual(await opened(forgeries), {})
  // Times within the limits are valid, including clocks that differ by less than a minute.
  for (const claims of [
    { iat: now + 30, auth_time: now, exp: now + 3600 },
    { iat: now - 10, auth_time: now - 86_000, exp: now + 3590 },
  ]) {
    t.is((await accepting(await forge(first, token, claims))).length, 8)
  }
})

test('retiring a key on another replica ends its tokens at once, also those that a process has verified', async t => {
  const one = await startTestService(t)
  const other = await startTestService(t, { DATABASE_URL: one.env.DATABASE_URL! })
  const { token, username } = await one.signUp('ROLE_CLIENT')
  const me = (service: TestService, bearer: string) => service.request('GET', '/users/me', { token: bearer })
  for (const service of [one, other]) t.is((await me(service, token)).status, 200)
  const { database, signingKeys } = one.registry
  await database.transact(transaction => signingKeys.retire(headerOf(token).kid, transaction))
  for (const service of [one, other]) {
    t.is((await me(service, token)).json.reason, 'INVALID_TOKEN')
    t.is((await me(service, await service.login(username))).status, 200)
  }
})

test('keys rotated by a process with shorter token lifetimes log out no user whose token lasts longer', async t => {
  const { clock, ...short } = await serviceWithClock(t, { AUTH_TOKEN_TTL: '1h' })
  const { database, signingKeys } = short.registry
  const { tokenTtl } = short.settings
  const rotate = (lead: number) =>
    database.transact(transaction => signingKeys.rotate({ force: true, lead, tokenTtl }, transaction))
  // The former key signs for ten minutes more.
  await rotate(600)
  const env = { DATABASE_URL: short.env.DATABASE_URL!, AUTH_TOKEN_TTL: '24h' }
  const long = await startTestService(t, env, { clock })
  const me = (service: TestService, token: string) => service.request('GET', '/users/me', { token })
  const { username } = await short.signUp('ROLE_CLIENT')
  // After the time in which a process reads its keys at most once.
  await clock.pass(10)
  const tokens = [await long.login(username)]
  await clock.pass(600)
  tokens.push(await long.login(username))
  const statuses = async () => {
    const all = tokens.flatMap(token => [short, long].map(service => me(service, token)))
    return (await Promise.all(all)).map(({ status }) => status)
  }
  for (const token of tokens) t.is(claimsOf(token).exp - claimsOf(token).iat, 86_400)
  // Also if the keys were read before tokens lasted that long.
  t.deepEqual(await statuses(), [200, 200, 200, 200])
  await rotate(0)
  // Each key verifies for the 12 hours of tokens of administrators in any case.
  await clock.pass(23 * 3600)
  t.deepEqual(await statuses(), [200, 200, 200, 200])
  const kids = [...tokens, await short.login(username), await long.login(username)].map(token => headerOf(token).kid)
  t.is(new Set(kids).size, 3)
  await clock.pass(3600)
  t.deepEqual(await statuses(), [500, 500, 500, 500])
  // Nor is a former key published for longer than its tokens need.
  await clock.pass(120)
  const { keys } = (await long.request('GET', '/.well-known/jwks.json')).json
  t.deepEqual(
    keys.map(({ kid }: { kid: string }) => kid),
    [kids[2]],
  )
})
