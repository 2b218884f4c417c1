/** Owners at new networks: they sign in despite failures of unknown clients if their account knows the network or device. */
import { randomInt, randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openAdministration, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { anyAddress, from, known } from '../_helpers/crowd.js'
import { assemble, ecdsa, ecdsaDer, hmac, ownKeys } from '../_helpers/forging.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { refused } from '../_helpers/problem.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { type Answer, password, serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, forge, headerOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

// Their clock is stopped, so that no count expires meanwhile.
const replicas = replicasForFile(2, { clocked: true }) as readonly [TestService, TestService]
const [first, second] = replicas

const [hour, day] = [3600, 86_400]

interface Login {
  readonly at?: string
  readonly secret?: string
  readonly token?: string
  readonly authorization?: string
}

/** A login, from a unique address unless one is given. */
function login(
  service: TestService,
  { username }: { username: string },
  { at = anyAddress(), secret = password, token, authorization }: Login = {},
): Promise<Answer> {
  const value = authorization ?? (token && `Bearer ${token}`)
  const headers = { ...from(at), ...(value && { authorization: value }) }
  return service.request('POST', '/users/login', { query: { username, password: secret }, headers })
}

const wrong = 'not the password'

/** Locks an account for unknown addresses and devices. */
async function lock(service: TestService, user: { username: string }): Promise<void> {
  for (let index = 0; index < 11; index++) await login(service, user, { secret: wrong })
  if ((await login(service, user)).status !== 429) throw new Error('The account isn’t locked.')
}

/** How many of parallel wrong logins were evaluated; each of the rest was refused by the limit or by load. */
function evaluated(answers: readonly Answer[]): { evaluated: number; unanswered: number } {
  const times = (status: number) => answers.filter(answer => answer.status === status).length
  const counts = { evaluated: times(404), unanswered: times(503) }
  if (times(404) + times(503) + times(429) !== answers.length) throw new Error(answers.map(a => a.status).join(' '))
  return counts
}

const block = () => `2001:db8:${randomInt(1, 0xffff).toString(16)}`

test('an owner at a new address of a known /24 or /48 still signs in while unknown clients lock the account', async t => {
  const [net, near] = [anyAddress().replace(/\d+$/, ''), block()]
  for (const [home, neighbour, elsewhere] of [
    [`${net}7`, `${net}201`, anyAddress()],
    [`${near}:1::7`, `${near}:ff01::9`, `${block()}:1::7`],
  ] as const) {
    const user = await first.signUp('ROLE_CLIENT')
    t.is((await login(first, user, { at: home })).status, 200)
    await lock(second, user)
    refused(t, await login(second, user, { at: elsewhere }), 429, 'TOO_MANY_ATTEMPTS')
    t.is((await login(second, user, { at: neighbour })).status, 200, neighbour)
    // The network is known to the account that signed in there, not to others.
    const other = await first.signUp('ROLE_CLIENT')
    await lock(first, other)
    refused(t, await login(first, other, { at: neighbour }), 429, 'TOO_MANY_ATTEMPTS')
  }
})

test('the new addresses of a known network share one count, exact under concurrency and separate from all others', async t => {
  const net = anyAddress().replace(/\d+$/, '')
  const user = await first.signUp('ROLE_CLIENT')
  t.is((await login(first, user, { at: `${net}1` })).status, 200)
  const guesses = Array.from({ length: 20 }, (_, index) => {
    const query = { username: user.username, password: wrong }
    const more = { query, headers: from(`${net}${100 + index}`), once: true }
    return replicas[index % 2]!.request('POST', '/users/login', more)
  })
  const counts = evaluated(await Promise.all(guesses))
  t.true(counts.evaluated <= 10 && counts.evaluated + counts.unanswered >= 10, JSON.stringify(counts))
  for (let left = 10 - counts.evaluated; left > 0; left--) await login(first, user, { at: `${net}99`, secret: wrong })
  refused(t, await login(first, user, { at: `${net}200` }), 429, 'TOO_MANY_ATTEMPTS')
  for (const at of [`${net}1`, anyAddress()]) t.is((await login(second, user, { at })).status, 200, at)
  // Neither success cleared it, and an address that is known by now has a separate count.
  refused(t, await login(first, user, { at: `${net}201` }), 429, 'TOO_MANY_ATTEMPTS')
  for (let index = 0; index < 10; index++) await login(first, user, { at: `${net}1`, secret: wrong })
  refused(t, await login(first, user, { at: `${net}1` }), 429, 'TOO_MANY_ATTEMPTS')
  t.is((await login(first, user)).status, 200)
})

test.serial(
  'an address and its network stay known for 30 days after the last success there, and not a day longer',
  async t => {
    const service = await serviceWithClock(t)
    for (const [at, elsewhere] of [
      [1, 1],
      [2, 3],
    ]) {
      const user = await service.signUp('ROLE_CLIENT')
      const net = anyAddress().replace(/\d+$/, '')
      t.is((await login(service, user, { at: `${net}1` })).status, 200)
      await service.clock.pass(30 * day - 1)
      await lock(service, user)
      t.is((await login(service, user, { at: `${net}${at}` })).status, 200)
      await service.clock.pass(30 * day)
      await lock(service, user)
      refused(t, await login(service, user, { at: `${net}${elsewhere}` }), 429, 'TOO_MANY_ATTEMPTS')
    }
  },
)

test.serial(
  'a device that sends an earlier token, expired, revoked or neither, still signs in over HTTP, Connect and gRPC',
  async t => {
    const service = await serviceWithClock(t)
    const client = openGrpc(service.grpc)
    t.teardown(async () => client.close())
    const user = await service.signUp('ROLE_CLIENT')
    await lock(service, user)
    t.is((await login(service, user, { token: user.token })).status, 200)

    await service.clock.pass(2 * hour)
    await lock(service, user)
    const expired = await login(service, user, { token: user.token })
    t.is(expired.status, 200)
    const next = 'tartaruga de couro 7'
    const path = '/forgotpasswords/passwordupdatebyusername'
    const changed = await service.request('POST', path, { token: expired.text, query: { newPassword: next } })
    t.is(changed.status, 200)
    for (const token of [user.token, expired.text]) {
      const body = { username: user.username, password: next }
      const headers = () => ({ ...from(anyAddress()), authorization: `Bearer ${token}` })
      const json = { ...headers(), 'content-type': 'application/json' }
      t.is((await service.request('POST', '/users/login', { body, headers: headers() })).status, 200)
      t.is((await service.request('POST', '/auth.v1.Users/Login', { body, headers: json })).status, 200)
      t.truthy((await client.call(Users.method.login, body, { token, metadata: from(anyAddress()) })).token)
      const call = client.call(Users.method.login, body, { metadata: from(anyAddress()) })
      const { info } = await call.then(() => t.fail() as never, refusalOf)
      t.is(info?.reason, 'TOO_MANY_ATTEMPTS')
    }
  },
)

test('any other Authorization header at a login is ignored: it bypasses no lock and causes no error', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const user = await service.signUp('ROLE_CLIENT')
  const other = await service.signUp('ROLE_CLIENT')
  const { token: administration } = await openAdministration(t, service).signIn({ username: 'admin', password })
  const { token } = user
  const [header, claims] = [headerOf(token), claimsOf(token)]
  const own = ownKeys()
  const [key] = await service.registry.signingKeys.all()
  const later = Math.floor(Date.now() / 1000) + 2 * hour
  const values: Record<string, string> = {
    'another user’s token': `Bearer ${other.token}`,
    'a token of Administration': `Bearer ${administration}`,
    'another key': `Bearer ${assemble(header, claims, ecdsa(own.privateKey))}`,
    'a signature in DER': `Bearer ${assemble(header, claims, ecdsaDer(key!.privateKey))}`,
    'no algorithm': `Bearer ${assemble({ ...header, alg: 'none' }, claims, () => Buffer.alloc(0))}`,
    'the public key as a secret': `Bearer ${assemble({ ...header, alg: 'HS256' }, claims, hmac(JSON.stringify(key!.publicJwk)))}`,
    'another issuer': `Bearer ${await forge(service, token, { iss: 'https://elsewhere.test' })}`,
    'another audience': `Bearer ${await forge(service, token, { aud: 'auth-admin' })}`,
    'another type': `Bearer ${await forge(service, token, {}, { typ: 'JWT' })}`,
    'an unknown key': `Bearer ${await forge(service, token, {}, { kid: 'nowhere' })}`,
    'a session that begins later': `Bearer ${await forge(service, token, { iat: later, auth_time: later, exp: later + 60 })}`,
    'no session': `Bearer ${await forge(service, token, { auth_time: undefined })}`,
    'a lifetime that no key has': `Bearer ${await forge(service, token, { exp: claims.iat + 10 * day })}`,
    'an altered name': `Bearer ${token.replace(/\.[^.]+\./, `.${Buffer.from(JSON.stringify({ ...claims, sub: '1' })).toString('base64url')}.`)}`,
    'another scheme': `Basic ${Buffer.from(`${user.username}:${password}`).toString('base64')}`,
    'a token without its scheme': token,
    'the key of a service': `Bearer ${await serviceKey(service, ['users.read'])}`,
    nonsense: 'Bearer a.b.c',
    nothing: 'Bearer',
    'too much': `Bearer ${'x'.repeat(5000)}`,
  }
  const free = await service.signUp('ROLE_CLIENT')
  await lock(service, user)
  for (const [name, authorization] of Object.entries(values)) {
    t.is((await login(service, user, { authorization })).status, 429, name)
    t.is((await login(service, free, { authorization })).status, 200, name)
  }
  t.is((await login(service, user, { token })).status, 200)
})

test.serial(
  'a device has ten attempts per session: refreshed tokens share them, other sessions and networks don’t',
  async t => {
    const service = await serviceWithClock(t)
    const other = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! }, { clock: service.clock })
    const user = await service.signUp('ROLE_CLIENT')
    const stolen = (await login(service, user)).text
    await service.clock.pass(60)
    const kept = (await login(service, user)).text
    const refreshed = (await service.request('GET', '/users/refresh', { token: stolen })).text
    t.is(claimsOf(refreshed).auth_time, claimsOf(stolen).auth_time)

    const guesses = Array.from({ length: 20 }, (_, index) => {
      const headers = { ...from(anyAddress()), authorization: `Bearer ${index % 3 ? stolen : refreshed}` }
      const query = { username: user.username, password: wrong }
      return [service, other][index % 2]!.request('POST', '/users/login', { query, headers, once: true })
    })
    const counts = evaluated(await Promise.all(guesses))
    t.true(counts.evaluated <= 10 && counts.evaluated + counts.unanswered >= 10, JSON.stringify(counts))
    for (let left = 10 - counts.evaluated; left > 0; left--)
      await login(service, user, { token: stolen, secret: wrong })
    const again = (await service.request('GET', '/users/refresh', { token: refreshed })).text
    for (const token of [stolen, refreshed, again])
      refused(t, await login(other, user, { token }), 429, 'TOO_MANY_ATTEMPTS')
    // They counted neither for other sessions nor for callers without a token: nine more are permitted everywhere.
    for (const token of [kept, undefined]) {
      for (let index = 0; index < 9; index++)
        t.is((await login(service, user, { ...(token && { token }), secret: wrong })).status, 404)
      t.is((await login(service, user, { ...(token && { token }) })).status, 200)
    }
    refused(t, await login(service, user, { token: stolen }), 429, 'TOO_MANY_ATTEMPTS')
    await service.clock.pass(900)
    t.is((await login(service, user, { token: stolen })).status, 200)
  },
)

test('a device keeps its own count when others at a known address or network use up theirs', async t => {
  const net = anyAddress().replace(/\d+$/, '')
  const user = await first.signUp('ROLE_CLIENT')
  const { text: token } = await login(first, user, { at: `${net}1` })
  for (let index = 0; index < 11; index++) {
    await login(first, user, { at: `${net}1`, secret: wrong })
    await login(first, user, { at: `${net}2`, secret: wrong })
  }
  for (const at of [`${net}1`, `${net}2`]) refused(t, await login(second, user, { at }), 429, 'TOO_MANY_ATTEMPTS')
  for (const at of [`${net}1`, `${net}2`]) t.is((await login(second, user, { at, token })).status, 200, at)
})

test('at a blocked address, an active account with its token or in a known network still signs in, and another user’s token doesn’t help', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const net = anyAddress().replace(/\d+$/, '')
  const [at, home] = [`${net}9`, `${net}1`]
  const neighbour = await known(service, home)
  const outsider = await known(service, anyAddress())
  const { text: token } = await login(service, outsider)
  const newcomer = await service.signUp('ROLE_CLIENT')
  await waitForValue(async () => (await login(service, { username: randomUUID() }, { at })).status, 429)
  for (const [user, more, status] of [
    [outsider, {}, 429],
    [outsider, { token: newcomer.token }, 429],
    [newcomer, { token: newcomer.token }, 429],
    [newcomer, { token }, 429],
    [neighbour, {}, 200],
    [outsider, { token }, 200],
  ] as const)
    t.is((await login(service, user, { at, ...more })).status, status, JSON.stringify(more))
})

test.serial('a token doesn’t identify a device after its signing key is dropped', async t => {
  const service = await serviceWithClock(t)
  const user = await service.signUp('ROLE_CLIENT')
  const { database, signingKeys } = service.registry
  await lock(service, user)
  t.is((await login(service, user, { token: user.token })).status, 200)
  await database.transact(transaction => signingKeys.retire(headerOf(user.token).kid, transaction))
  // A process caches its keys for that long.
  await service.clock.pass(61)
  await waitForValue(async () => (await login(service, user, { token: user.token })).status, 429)
  // A token of the current signing key does.
  await service.clock.pass(900)
  const { text: next } = await login(service, user)
  await lock(service, user)
  t.is((await login(service, user, { token: next })).status, 200)
})

test.serial('sign-in by answers and Administration don’t identify a device by token', async t => {
  const service = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const fields = { securityquestion: '1', securityanswer: 'Rex' }
  const user = await service.signUp('ROLE_CLIENT', fields)
  const save = { forgotpasswordquestionsid: 2, answer: 'Rex' }
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  await service.request('POST', path, { token: user.token, body: save })
  const byAnswers = (answer: string) =>
    service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
      query: { username: user.username },
      body: [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer })),
      headers: { ...from(anyAddress()), authorization: `Bearer ${user.token}` },
    })
  for (let index = 0; index < 10; index++) t.is((await byAnswers('Totó')).status, 422)
  refused(t, await byAnswers('Rex'), 429, 'TOO_MANY_ATTEMPTS')

  const shown = openAdministration(t, service, await service.adminToken())
  const signIn = (secret: string) => reasonOf(shown.signIn({ username: 'admin', password: secret }))
  for (let index = 0; index < 10; index++) t.is(await signIn(wrong), 'INVALID_CREDENTIALS')
  t.is(await signIn(password), 'TOO_MANY_ATTEMPTS')
})

test('administrators see the counts of known networks and devices, and unlocking ends them all', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const user = await service.signUp('ROLE_CLIENT')
  const net = anyAddress().replace(/\d+$/, '')
  const [home, near] = [`${net}1`, `${net}2`]
  t.is((await login(service, user, { at: home })).status, 200)
  for (let index = 0; index < 3; index++) await login(service, user, { secret: wrong, token: user.token })
  for (let index = 0; index < 10; index++) await login(service, user, { at: near, secret: wrong })
  await login(service, user, { at: home, secret: wrong })

  const explain = async (address?: string) => {
    const { obstacles, failures } = await api.explainUser({ user: user.username, ...(address && { address }) })
    const counts = failures.filter(({ proof }) => proof === 'password').map(({ scope, count }) => [scope, count])
    return { obstacles: obstacles.filter(({ prevents }) => prevents === 'sign in'), counts: Object.fromEntries(counts) }
  }
  t.deepEqual((await explain()).counts, { account: 0, 'other known': 10 })
  t.deepEqual((await explain(home)).counts, { account: 0, 'known address': 1, 'other known': 10 })
  const { counts, obstacles } = await explain(`${net}3`)
  t.deepEqual(counts, { account: 0, 'known network': 10, 'other known': 3 })
  t.deepEqual(
    obstacles.map(({ reason, command }) => [reason, command]),
    [
      [
        'Too many passwords were wrong from other addresses of this network.',
        `auth-admin users unlock ${idOf(user.token)}`,
      ],
    ],
  )
  refused(t, await login(service, user, { at: near }), 429, 'TOO_MANY_ATTEMPTS')
  t.is((await api.unlockUser({ user: user.username })).cleared, 3)
  // A process caches a lock for a moment.
  await waitForValue(async () => (await login(service, user, { at: near })).status, 200)
  t.deepEqual((await explain(near)).counts, { account: 0, 'known address': 0 })
})
