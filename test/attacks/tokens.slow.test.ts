/** Forged, stale and revoked tokens at every endpoint of two replicas, and signing keys in rotation and at rest. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { createMasterKey, randomDataKeys } from '../../server/models/master-key.js'
import { createSigningKeys } from '../../server/models/signing-key.js'
import { createClock } from '../_helpers/clock.js'
import { freshDatabase } from '../_helpers/database.js'
import {
  assemble,
  constant,
  ecdsa,
  ecdsaDer,
  hmac,
  ownKeys,
  ownRsaKeys,
  rsa,
  type Signer,
} from '../_helpers/forging.js'
import { type GrpcClient, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { changeTokens, suspend } from '../_helpers/models.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, forge, headerOf, idOf, nowInSeconds } from '../_helpers/tokens.js'

const replicas = replicasForFile(2) as readonly [TestService, TestService]
const [first, second] = replicas

/** Each replica with a gRPC client. */
const endpoints: Endpoints[] = []
test.before(() => {
  for (const service of replicas) endpoints.push({ service, client: openGrpc(service.grpc) })
})
test.after.always(() => {
  for (const { client } of endpoints) client.close()
})

type Endpoints = { service: TestService; client: GrpcClient }

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

test('no endpoint accepts a forged token', async t => {
  const { token } = await first.signUp('ROLE_CLIENT')
  const admin = await first.adminToken()
  const [key] = await first.registry.signingKeys.all()
  const { kid, privateKey, publicKey, publicJwk } = key!
  const now = nowInSeconds()
  const head = headerOf(token)
  const claims = claimsOf(token)
  const genuine = ecdsa(privateKey)
  const mine = ownKeys()
  const mineJwk = mine.publicKey.export({ format: 'jwk' })
  const myRsa = ownRsaKeys()
  const spki = publicKey.export({ format: 'pem', type: 'spki' }) as string
  const empty = constant(Buffer.alloc(0))

  const without = (name: string) => Object.fromEntries(Object.entries(claims).filter(([each]) => each !== name))
  const signed = (header: object, changed: unknown = claims, signer: Signer = genuine) =>
    assemble(header, changed, signer)
  const asAdmin = { ...claims, sub: claimsOf(admin).sub, roles: ['ROLE_ADMIN'], username: 'admin', active: true }

  const forgeries: Record<string, string> = {}
  for (const alg of ['none', 'None', 'NONE', 'nOnE', '']) {
    forgeries[`alg ${alg || 'empty'}, no signature`] = signed({ ...head, alg }, asAdmin, empty)
    forgeries[`alg ${alg || 'empty'}, a signature of ours`] = signed({ ...head, alg }, asAdmin)
  }
  forgeries['no signature'] = signed(head, asAdmin, empty)
  forgeries['nothing but dots'] = '..'
  forgeries['a signature cut short'] = token.slice(0, -4)
  forgeries['no last part'] = token.slice(0, token.lastIndexOf('.'))
  forgeries['a signature of nothing but zeros'] = signed(head, asAdmin, constant(Buffer.alloc(64)))
  forgeries['a signature in DER'] = signed(head, claims, ecdsaDer(privateKey))
  forgeries['claims altered under a genuine signature'] = [
    token.split('.')[0],
    Buffer.from(JSON.stringify(asAdmin)).toString('base64url'),
    token.split('.')[2],
  ].join('.')
  const guesses = { PEM: spki, 'PEM without its end': spki.trim(), JWK: JSON.stringify(publicJwk), kid, nothing: '' }
  for (const [name, secret] of Object.entries({ ...guesses, DER: publicKey.export({ format: 'der', type: 'spki' }) })) {
    forgeries[`HS256 with ${name} as its secret`] = signed({ ...head, alg: 'HS256' }, asAdmin, hmac(secret))
  }
  forgeries['ES256 with an attacker’s key'] = signed(head, asAdmin, ecdsa(mine.privateKey))
  forgeries['RS256 with an attacker’s key'] = signed({ ...head, alg: 'RS256' }, asAdmin, rsa(myRsa.privateKey))
  for (const [alg, curve, hash] of [
    ['ES384', 'P-384', 'sha384'],
    ['ES512', 'P-521', 'sha512'],
    ['ES256K', 'secp256k1', 'sha256'],
    ['ES256', 'P-384', 'sha256'],
  ] as const) {
    const other = ownKeys(curve)
    forgeries[`${alg} on ${curve}`] = signed({ ...head, alg }, asAdmin, ecdsa(other.privateKey, hash))
  }
  forgeries['ES384 with the right key'] = signed({ ...head, alg: 'ES384' }, claims, ecdsa(privateKey, 'sha384'))
  const remote = 'https://attacker.example/jwks.json'
  for (const [name, more] of Object.entries({
    jwk: { jwk: mineJwk },
    'jwk under an unknown kid': { jwk: mineJwk, kid: 'mine' },
    jku: { jku: remote },
    'jku under an unknown kid': { jku: remote, kid: 'mine' },
    x5u: { x5u: remote },
    x5c: { x5c: [mine.publicKey.export({ format: 'der', type: 'spki' }).toString('base64')] },
  })) {
    forgeries[`a key that the header brings along: ${name}`] = signed(
      { ...head, ...more },
      asAdmin,
      ecdsa(mine.privateKey),
    )
  }

  // From here on signed with the right key: only the contents are wrong.
  for (const typ of ['JWT', 'jwt', 'id+jwt', 'dpop+jwt', '', undefined, 1, ['at+jwt']]) {
    forgeries[`typ ${JSON.stringify(typ)}`] = signed({ ...head, typ })
  }
  // A list of one value equals that value as text, but isn't a type of RFC 9068.
  for (const crit of [['exp'], [], ['b64'], ['http://attacker.example'], 'exp', null]) {
    forgeries[`crit ${JSON.stringify(crit)}`] = signed({ ...head, crit, b64: true })
  }
  const kids = [
    '',
    'unknown',
    "' OR 1=1 --",
    "x' UNION SELECT kid FROM signing_keys --",
    '../../../../dev/null',
    '/dev/null',
  ]
  for (const odd of [
    ...kids,
    '__proto__',
    'constructor',
    'a\u0000b',
    'x'.repeat(2000),
    1,
    null,
    undefined,
    [kid],
    { kid },
  ]) {
    forgeries[`kid ${JSON.stringify(odd)?.slice(0, 40)}`] = signed({ ...head, kid: odd })
  }
  for (const iss of ['https://attacker.example', '', [claims.iss], null, `${claims.iss}/`, 1]) {
    forgeries[`iss ${JSON.stringify(iss)}`] = signed(head, { ...claims, iss })
  }
  for (const aud of ['others', '', [], ['others'], null, { aud: claims.aud }]) {
    forgeries[`aud ${JSON.stringify(aud)}`] = signed(head, { ...claims, aud })
  }
  for (const exp of [now - 1, now - 86_400, 0, -1, `${now + 60}`, null, true, 'never']) {
    forgeries[`exp ${exp}`] = signed(head, { ...claims, exp, iat: now - 90_000, auth_time: now - 90_000 })
  }
  forgeries['not valid yet'] = signed(head, { ...claims, nbf: now + 3600 })
  forgeries['issued in the future'] = signed(head, { ...claims, iat: now + 3600, exp: now + 7200 })
  for (const sub of ['0', '-1', '999999999', '', ' 1', '1 OR 1=1', '1.0', '1e0', '0x1', 'admin', null, { id: 1 }]) {
    forgeries[`sub ${JSON.stringify(sub)}`] = signed(head, { ...claims, sub })
  }
  for (const ver of [-1, 1, '0', null, 0.5, true]) {
    forgeries[`ver ${JSON.stringify(ver)}`] = signed(head, { ...claims, ver })
  }
  for (const amr of [[], null, ['root'], ['constructor'], 'p']) {
    forgeries[`amr ${JSON.stringify(amr)}`] = signed(head, { ...claims, amr })
  }
  for (const name of ['iss', 'aud', 'exp', 'sub', 'ver', 'iat', 'auth_time', 'amr']) {
    forgeries[`no ${name}`] = signed(head, without(name))
  }
  forgeries['claims that are a list'] = signed(head, [claims])
  forgeries['claims that are a text'] = signed(head, 'claims')
  forgeries['longer than any of ours'] = signed(head, { ...claims, more: 'x'.repeat(5000) })
  forgeries['four parts'] = `${token}.${token.split('.')[2]}`
  forgeries['five parts, as if encrypted'] = `${token}.a.b`
  forgeries.padded = `${token}=`
  forgeries['two at once'] = `${token},${token}`
  forgeries['no JSON in it'] = 'YQ.YQ.YQ'
  forgeries['half a million levels of JSON'] = `${Buffer.from('['.repeat(2500)).toString('base64url')}.YQ.YQ`

  t.deepEqual(await accepting(signed(head, { ...claims, jti: randomUUID() })).then(found => found.length), 8)
  const opened: Record<string, string[]> = {}
  for (const [name, forgery] of Object.entries(forgeries)) {
    // One replica after the other: each has a separate cache of verified tokens.
    const found = await accepting(forgery)
    if (found.length > 0) opened[name] = found
  }
  t.deepEqual(opened, {})
  t.true(Object.keys(forgeries).length > 90)
})

test('a token in the wrong place or form is treated as no token', async t => {
  const { token } = await first.signUp('ROLE_CLIENT')
  const said: Record<string, number> = {}
  for (const authorization of [
    `Basic ${token}`,
    token,
    'Bearer',
    'Bearer ',
    '',
    `bear ${token}`,
    `Token ${token}`,
    `Bearer${token}`,
    `X Bearer ${token}`,
  ]) {
    const { status } = await first.request('GET', '/users/me', { headers: { authorization } })
    said[authorization.replace(token, '…')] = status
  }
  t.deepEqual([...new Set(Object.values(said))], [403])
  const { status } = await first.request('GET', '/users/me', {
    query: { access_token: token, authorization: `Bearer ${token}` },
  })
  t.is(status, 403)
})

test('a password update, a suspension or a revocation voids every token on every replica', async t => {
  const { registry } = first
  const acts: Record<string, (token: string) => Promise<unknown>> = {
    'password update': token =>
      second.request('POST', '/forgotpasswords/passwordupdatebyusername', {
        token,
        query: { newPassword: 'tartaruga de couro 7' },
      }),
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
    ['pwd', 30 * 86_400],
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
  const [tables] = await registry.database.sequelize.query(
    `SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'public'`,
  )
  for (const { name } of tables as { name: string }[]) {
    const [rows] = await registry.database.sequelize.query(`SELECT row_to_json(x)::text AS row FROM "${name}" x`)
    const dump = (rows as { row: string }[]).map(({ row }) => row).join('\n')
    for (const form of [d!, pem.split('\n')[1]!, 'PRIVATE KEY', secret.toString('hex'), secret.toString('base64')]) {
      t.false(dump.includes(form), name)
    }
  }
  const other = createSigningKeys(registry.database, createMasterKey(randomDataKeys))
  await t.throwsAsync(other.all(), { message: /authenticate/ })
  // A sealed key is bound to its id.
  await registry.database.sequelize.query(`UPDATE signing_keys SET kid = 'other'`)
  await t.throwsAsync(registry.signingKeys.all(), { message: /authenticate/ })
})

test('a token signed by a stolen key is refused if it starts in the future or lasts longer than its key allows', async t => {
  const { token } = await first.signUp('ROLE_CLIENT')
  const now = nowInSeconds()
  const opened: Record<string, string[]> = {}
  for (const [name, claims] of Object.entries({
    'auth_time in the future': { auth_time: now + 10 * 365 * 86_400 },
    'auth_time after iat': { iat: now - 100, auth_time: now - 50, exp: now + 100 },
    'iat in the future': { iat: now + 120, auth_time: now, exp: now + 200 },
    'both in the future': { iat: now + 120, auth_time: now + 120, exp: now + 200 },
    'a second too long': { iat: now - 10, auth_time: now - 10, exp: now + 3591 },
    'ten years': { exp: now + 10 * 365 * 86_400 },
    'iat before 1970': { iat: -1, auth_time: -1, exp: now + 60 },
  })) {
    const found = await accepting(await forge(first, token, claims))
    if (found.length > 0) opened[name] = found
  }
  t.deepEqual(opened, {})
  // Times within the limits are valid, including clocks that differ by less than a minute.
  for (const claims of [
    { iat: now + 30, auth_time: now, exp: now + 3600 },
    { iat: now - 10, auth_time: now - 86_400, exp: now + 3590 },
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
  const retired = await database.transact(transaction => signingKeys.retire(headerOf(token).kid, transaction))
  t.is(typeof (retired as { successor?: string }).successor, 'string')
  for (const service of [one, other]) {
    t.is((await me(service, token)).json.reason, 'INVALID_TOKEN')
    t.is((await service.request('GET', '/users/refresh', { token })).status, 500)
    const verdict = await service.request('POST', '/auth.v1.Users/VerifyToken', { body: { token } })
    t.not(verdict.json.active, true)
    const fresh = await service.login(username)
    t.not(headerOf(fresh).kid, headerOf(token).kid)
    t.is((await me(service, fresh)).status, 200)
  }
})

test('keys rotated by a process with shorter token lifetimes log out no user whose token lasts longer', async t => {
  const url = await freshDatabase(t)
  const clock = await createClock(url)
  const short = await startTestService(t, { DATABASE_URL: url, AUTH_TOKEN_TTL: '1h' }, { clock })
  const long = await startTestService(t, { DATABASE_URL: url, AUTH_TOKEN_TTL: '2h' }, { clock })
  const me = (service: TestService, token: string) => service.request('GET', '/users/me', { token })
  const { username } = await short.signUp('ROLE_CLIENT')
  // After the time in which a process reads its keys at most once.
  await clock.pass(10)
  const token = await long.login(username)
  t.is(claimsOf(token).exp - claimsOf(token).iat, 7200)
  // Also if the keys were read before tokens lasted that long.
  for (const service of [short, long]) t.is((await me(service, token)).status, 200)
  const { database, signingKeys } = short.registry
  const { tokenTtl } = short.settings
  await database.transact(transaction => signingKeys.rotate({ force: true, lead: 0, tokenTtl }, transaction))
  await clock.pass(90 * 60)
  for (const service of [short, long]) {
    t.is((await me(service, token)).status, 200)
    t.not(headerOf(await service.login(username)).kid, headerOf(token).kid)
  }
  await clock.pass(35 * 60)
  for (const service of [short, long]) t.is((await me(service, token)).status, 500)
})
