/** Guessing at accounts: in parallel, over replicas, from many and from forged addresses, and beside owners at new networks. */
import { randomInt, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { usernameKey } from '../../server/rules/names.js'
import { openAdministration, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { assemble, ecdsa, hmac, ownKeys } from '../_helpers/forging.js'
import { grpcOf, refusalOf } from '../_helpers/grpc.js'
import { suspend } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { enterByAnswers, enterByKey, saveAnswer, updatePassword } from '../_helpers/recovery.js'
import { replicasForFile } from '../_helpers/replicas.js'
import type { TestService } from '../_helpers/service.js'
import { type Answer, password, type SignedUp, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, forge, headerOf, idOf } from '../_helpers/tokens.js'
import { patience, waitForValue } from '../_helpers/wait.js'

// Their clock is stopped, so that no count drains or expires meanwhile.
const replicas = replicasForFile(3, { clocked: true }) as readonly [TestService, TestService, TestService]
const [first, second, third] = replicas
const [hour, day] = [3600, 86_400]

/** A wrong login, at a unique address unless one is given. */
const guess = (service: TestService, username: string, address?: string, more?: Parameters<typeof login>[4]) =>
  login(service, username, address, 'not the password', more)

async function times<T>(count: number, work: (index: number) => Promise<T>): Promise<T[]> {
  const all: T[] = []
  for (let index = 0; index < count; index++) all.push(await work(index))
  return all
}
const atOnce = <T>(count: number, work: (index: number) => Promise<T>) =>
  Promise.all(Array.from({ length: count }, (_, index) => work(index)))

const isLocked = (t: ExecutionContext, answer: Answer) => refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')

/** Asserts that of parallel guesses ten were compared, and returns how many. A busy machine may leave some unanswered. */
function tenCompared(t: ExecutionContext, answers: readonly Answer[]): number {
  const { 404: compared = 0, 429: locked = 0, 503: unanswered = 0 } = statuses(answers)
  t.is(compared + locked + unanswered, answers.length)
  t.true(compared <= 10 && compared + unanswered >= 10, `${compared} ${unanswered}`)
  return compared
}

/** Locks an account for addresses and devices that it doesn't know. */
async function lock(service: TestService, { username }: { username: string }): Promise<void> {
  await times(11, () => guess(service, username))
  if ((await login(service, username)).status !== 429) throw new Error('The account isn’t locked.')
}

/** Two addresses of a /24. */
const neighbours = () => {
  const net = anyAddress().replace(/\d+$/, '')
  return [`${net}1`, `${net}201`] as const
}

test('of 200 guesses at once over three replicas, in any spelling of the name, 10 are compared, even if there is no account', async t => {
  await first.signUp('ROLE_CLIENT', { username: '(11)98765-4321' })
  const spellings = ['(11)98765-4321', '11987654321', '+55 11 98765-4321', ' 11 98765 4321 ', '11‑98765‑4321']
  for (const names of [spellings, [randomUUID()]]) {
    const one = (index: number) =>
      guess(replicas[index % 3]!, names[index % names.length]!, anyAddress(), { once: true })
    tenCompared(t, await atOnce(200, one))
  }
})

test('guesses at an unknown account get the same answers as guesses at an existing one', async t => {
  const gist = ({ status, json }: Answer) => JSON.stringify({ status, ...json, requestId: undefined })
  const { username } = await first.signUp('ROLE_CLIENT')
  const suspended = await first.signUp('ROLE_CLIENT')
  await suspend(first.registry, idOf(suspended.token))
  const ways: Record<string, (name: string, service: TestService) => Promise<Answer>> = {
    login: (name, service) => guess(service, name),
    suspended: (name, service) => login(service, name === username ? suspended.username : name),
    'mailed key': (name, service) => enterByKey(service, name, 'ABCD2345'),
  }
  for (const [way, ask] of Object.entries(ways)) {
    // Two of them count for the same account.
    await first.registry.attempts.clear([first.registry.counterKeys.account('password', usernameKey(username))])
    const missing = randomUUID()
    for (let index = 0; index < 13; index++) {
      const service = index % 2 ? first : second
      const [existing, unknown] = [await ask(username, service), await ask(missing, service)]
      t.is(gist(existing), gist(unknown), `${way} ${index}`)
      // Mailed keys count by key and address.
      t.is(existing.status === 429, way !== 'mailed key' && index >= 10, `${way} ${index}`)
    }
  }
})

/** A user with two answers. */
async function withAnswers(): Promise<SignedUp> {
  const user = await first.signUp('ROLE_CLIENT')
  for (const question of [1, 2]) await saveAnswer(first, user.token, question, 'azul')
  return user
}

test('passwords and answers have separate counts, each attempt counts before it is compared, and mailed keys count in neither', async t => {
  const { username, token } = await withAnswers()
  const answers = await atOnce(60, index => {
    const service = replicas[index % 3]!
    if (index % 4 === 0) return guess(service, username)
    return index % 4 === 1 ? enterByKey(service, username, 'ABCD2345') : enterByAnswers(service, username, 'verde')
  })
  const reasons = answers.map(({ json }) => json.reason as string)
  t.deepEqual(reasons.toSorted(), [
    ...Array(10).fill('INVALID_ANSWERS'),
    ...Array(10).fill('INVALID_CREDENTIALS'),
    ...Array(15).fill('INVALID_KEY'),
    ...Array(25).fill('TOO_MANY_ATTEMPTS'),
  ])
  await first.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCDEFGH')
  t.is((await enterByKey(first, username, 'ABCDEFGH')).status, 200)
  // Ten wrong ones leave one event, fewer leave none: an attempt costs its caller nothing.
  const recorded = await first.registry.audit.list({ subjectId: idOf(token), outcome: 'refused', limit: 100 })
  t.deepEqual(recorded.map(({ action, reason, object }) => `${action} ${reason} ${object ?? ''}`).sort(), [
    ...['session.login INVALID_CREDENTIALS ', 'session.login TOO_MANY_ATTEMPTS failures:10'],
    ...['session.login-by-answers INVALID_ANSWERS ', 'session.login-by-answers TOO_MANY_ATTEMPTS failures:10'],
    ...['session.login-by-key TOO_MANY_ATTEMPTS failures:10'],
  ])
})

/** Two replicas with a tenth of the limits, on one clock: 30 failures block an address, one locks an account. */
async function strict(t: ExecutionContext) {
  const one = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const env = { AUTH_LIMIT_FACTOR: '0.1', DATABASE_URL: one.env.DATABASE_URL! }
  return [one, await startTestService(t, env, { clock: one.clock })] as const
}

test('30 wrong passwords or mailed keys block a client address on all replicas, until they drain within 15 minutes', async t => {
  const services = await strict(t)
  const [{ clock, registry }] = services
  const user = await services[0].signUp('ROLE_CLIENT')
  const other = await services[0].signUp('ROLE_CLIENT')
  for (const kind of ['password', 'key']) {
    const address = anyAddress()
    const one = (index: number) => {
      const name = index === 0 ? user.username : randomUUID()
      const service = services[index % 2]!
      return kind === 'key' ? enterByKey(service, name, 'ABCD2345', address) : guess(service, name, address)
    }
    const fails = kind === 'key' ? 422 : 404
    const blocked = [...Array(30).fill(fails), ...Array(4).fill(429)]
    const answers = await times(34, one)
    const seen = answers.map(({ status }) => status)
    t.deepEqual(seen, blocked)
    // One drains every 30 seconds.
    t.is(answers.at(-1)!.headers.get('retry-after'), '30')
    t.is((await login(services[1], other.username, address)).status, 429)
    const events = await registry.audit.list({ action: 'session.login*', limit: 1000 })
    t.deepEqual(
      events
        .filter(event => event.address === address && event.reason === 'TOO_MANY_ATTEMPTS')
        .map(event => [event.subject_id, event.object]),
      [
        [idOf(user.token), 'failures:1'],
        [null, 'failures:30'],
      ],
    )
    await clock.pass(60)
    const next = (index: number) => one(1 + index)
    t.deepEqual(statuses(await times(3, next)), { [fails]: 2, 429: 1 })
    await clock.pass(901)
    t.deepEqual(statuses(await times(34, next)), { [fails]: 30, 429: 4 })
    await clock.pass(901)
  }
})

test('any number of failures of an account leaves two events in 15 minutes, and failures of an unknown name leave none', async t => {
  const service = await serviceWithClock(t)
  const other = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! }, { clock: service.clock })
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const before = (await service.registry.audit.list({ limit: 1000 })).length
  const flood = (name: string) => times(2, () => atOnce(30, index => guess(index % 2 ? service : other, name)))
  await flood(username)
  await flood(randomUUID())
  await service.clock.pass(900)
  await flood(username)
  const events = (await service.registry.audit.list({ limit: 1000 })).slice(before)
  const two = ['INVALID_CREDENTIALS ', 'TOO_MANY_ATTEMPTS failures:10']
  const seen = events.map(({ reason, object }) => `${reason} ${object ?? ''}`)
  t.deepEqual(seen, [...two, ...two])
  t.true(events.every(({ subject_id, address }) => subject_id === idOf(token) && address?.startsWith('10.')))
})

test('a success clears only the failures of the same kind of proof, at known and unknown addresses', async t => {
  const home = anyAddress()
  for (const at of [anyAddress, () => home]) {
    const { username } = await withAnswers()
    const enter = (answer: string) => enterByAnswers(first, username, answer, { address: at() })
    t.is((await login(first, username, at())).status, 200)
    t.deepEqual(statuses(await times(9, () => enter('verde'))), { 422: 9 })
    t.is((await login(first, username, at())).status, 200)
    t.is((await enter('verde')).status, 422)
    isLocked(t, await enter('azul'))
    for (const _ of [1, 2]) {
      t.deepEqual(statuses(await times(9, () => guess(first, username, at()))), { 404: 9 })
      t.is((await login(first, username, at())).status, 200)
    }
    isLocked(t, await enter('azul'))
  }
})

/** The start of an incomplete login. */
const begin = ({ registry: { attempts } }: TestService, username: string, address = anyAddress()) =>
  attempts.begin({
    usernameKey: usernameKey(username),
    proof: 'password',
    address,
    device: undefined,
    limits: { max: 10, bucket: { capacity: 300, perSecond: 1 } },
  })

test('an attempt counts even if its counter is pruned while the attempt is in progress', async t => {
  const service = await serviceWithClock(t)
  const { username } = await service.signUp('ROLE_CLIENT')
  const { attempts, counterKeys } = service.registry
  await begin(service, username)
  // So long ago that its process may have ended.
  await service.clock.pass(31)
  await attempts.prune()
  const counter = { subject: counterKeys.account('password', usernameKey(username)), account: null }
  const last = { action: 'session.login', outcome: 'refused', actor: 'anonymous' } as const
  const of = { userId: undefined, address: '192.0.2.1', bucket: { capacity: 300, perSecond: 1 } }
  await attempts.fail(counter, { max: 10, seconds: 900, last }, of)
  t.deepEqual(statuses(await times(9, () => guess(service, username))), { 404: 9 })
  isLocked(t, await login(service, username))
})

test('an attempt that arrives while others are in progress gets a short Retry-After, regardless of earlier failures', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const address = anyAddress()
  t.is((await guess(first, username, address)).status, 404)
  await times(9, () => begin(second, username, address))
  const answer = await login(third, username, address)
  isLocked(t, answer)
  t.is(answer.headers.get('retry-after'), '1')
})

test('a lock ends when Retry-After says, and further attempts don’t change that', async t => {
  const service = await serviceWithClock(t)
  const client = grpcOf(t, service.grpc)
  const { username } = await service.signUp('ROLE_CLIENT')
  const wait = async () => {
    const answer = await login(service, username)
    isLocked(t, answer)
    return Number(answer.headers.get('retry-after'))
  }
  await times(9, () => guess(service, username))
  await service.clock.pass(300)
  t.is((await guess(service, username)).status, 404)
  // The time started with the first failure.
  t.is(await wait(), 600)
  await service.clock.pass(300)
  await times(30, () => guess(service, username))
  t.is(await wait(), 300)
  // In its last moments Retry-After isn't 0.
  await service.clock.pass(299.9)
  t.is(await wait(), 1)
  const call = client.call(Users.method.login, { username, password }, { metadata: from(anyAddress()) })
  const { info, retryInfo } = await call.then(() => t.fail() as never, refusalOf)
  t.is(`${info?.reason} ${retryInfo?.retryDelay?.seconds}`, 'TOO_MANY_ATTEMPTS 1')
  await service.clock.pass(0.1)
  t.is((await login(service, username)).status, 200)
})

test('an attempt that its caller cancels is neither compared nor counted', async t => {
  // Twelve failures would block the address, one would lock the account.
  const service = await startTestService(t, { AUTH_BCRYPT_COST: '11', AUTH_LIMIT_FACTOR: '0.04' })
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = anyAddress()
  for (let cut = 0, asked = 0; cut < 12; asked++) {
    t.true(asked < 12 * patience, `cut ${cut} of ${asked}`)
    const given = { username, password: cut % 2 ? password : 'not the password' }
    const outcome = await fetch(`${service.http}/users/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...from(address) },
      body: JSON.stringify(given),
      signal: AbortSignal.timeout(40),
    }).then(
      ({ status }) => status,
      () => 'cancelled',
    )
    // A busy service refuses what it can't finish in time.
    t.true(['cancelled', 429, 503].includes(outcome), `${outcome}`)
    if (outcome === 'cancelled') cut++
    // The thread still works on it.
    await sleep(150)
  }
  // The last one may still be in progress. One that counted would lock for a quarter of an hour.
  await t.notThrowsAsync(waitForValue(async () => (await login(service, username, address)).status, 200))
})

// Owners, whose account knows their address, network or device.

test('strangers can’t lock an owner out: a known address, /24 or /48 has its own count, for the account that signed in there', async t => {
  const [home, near] = neighbours()
  const site = randomInt(1, 0xffff)
  const [own, foreign] = [site, site - 1].map(each => `2001:db8:${each.toString(16)}`)
  for (const [place, at, elsewhere] of [
    [home, home, anyAddress()],
    [home, near, anyAddress()],
    [`${own}:1::7`, `${own}:ff01::9`, `${foreign}:1::7`],
  ] as const) {
    const [user, other] = [await first.signUp('ROLE_CLIENT'), await first.signUp('ROLE_CLIENT')]
    t.is((await login(first, user.username, place)).status, 200)
    await lock(second, user)
    for (const _ of [1, 2]) {
      t.is((await login(second, user.username, at)).status, 200, at)
      isLocked(t, await login(first, user.username, elsewhere))
    }
    t.deepEqual(statuses(await times(12, () => guess(first, user.username, at))), { 404: 10, 429: 2 })
    await lock(first, other)
    isLocked(t, await login(first, other.username, at))
  }
})

test('the new addresses of a known network share one count, exact under concurrency and separate from all others', async t => {
  const [home] = neighbours()
  const at = (host: number) => home.replace(/\d+$/, String(host))
  const { username } = await first.signUp('ROLE_CLIENT')
  t.is((await login(first, username, home)).status, 200)
  const compared = tenCompared(
    t,
    await atOnce(20, index => guess(replicas[index % 2]!, username, at(100 + index), { once: true })),
  )
  await times(10 - compared, () => guess(first, username, at(99)))
  isLocked(t, await login(first, username, at(200)))
  for (const place of [home, anyAddress()]) t.is((await login(second, username, place)).status, 200, place)
  // Neither success cleared it.
  isLocked(t, await login(first, username, at(201)))
  await times(10, () => guess(first, username, home))
  isLocked(t, await login(first, username, home))
  t.is((await login(first, username)).status, 200)
})

test('an address and its network stay known for 30 days after the last success there, and not a day longer', async t => {
  const service = await serviceWithClock(t)
  for (const [at, elsewhere] of [
    [1, 1],
    [2, 3],
  ]) {
    const user = await service.signUp('ROLE_CLIENT')
    const [home] = neighbours()
    t.is((await login(service, user.username, home)).status, 200)
    await service.clock.pass(30 * day - 1)
    await lock(service, user)
    t.is((await login(service, user.username, home.replace(/1$/, `${at}`))).status, 200)
    await service.clock.pass(30 * day)
    await lock(service, user)
    isLocked(t, await login(service, user.username, home.replace(/1$/, `${elsewhere}`)))
  }
})

/** A login of a device, which sends an earlier token. */
const byDevice = (service: TestService, username: string, token: string, secret = password, address = anyAddress()) =>
  login(service, username, address, secret, { token })

test('a device that sends an earlier token, expired or not, still signs in over HTTP, Connect and gRPC', async t => {
  const service = await serviceWithClock(t)
  const client = grpcOf(t, service.grpc)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await lock(service, { username })
  t.is((await byDevice(service, username, token)).status, 200)

  await service.clock.pass(2 * hour)
  await lock(service, { username })
  const later = await byDevice(service, username, token)
  t.is(later.status, 200)
  const body = { username, password }
  for (const device of [token, later.text]) {
    const options = { token: device, body, headers: from(anyAddress()) }
    t.is((await service.request('POST', '/auth.v1.Users/Login', options)).status, 200)
    t.truthy((await client.call(Users.method.login, body, { token: device, metadata: from(anyAddress()) })).token)
    // A success clears the count of the device.
    for (const _ of [1, 2]) {
      t.deepEqual(statuses(await times(9, () => guess(service, username, anyAddress(), { token: device }))), { 404: 9 })
      t.is((await byDevice(service, username, device)).status, 200)
    }
  }
  isLocked(t, await login(service, username))
})

test('a revoked token is no device: who has a copy locks the owner out nowhere, and bypasses no lock', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const next = 'tartaruga de couro 7'
  const ends: Record<string, (token: string, user: string) => Promise<unknown>> = {
    'signed out everywhere': token => service.request('POST', '/users/revokemytokens', { token }),
    'another password': token => updatePassword(service, token, next),
    async 'suspended and resumed'(_, user) {
      await api.suspendUser({ user })
      await api.resumeUser({ user })
    },
    'another role': (_, user) => api.setRole({ user, role: 'ROLE_INSTITUTION' }),
  }
  for (const [name, end] of Object.entries(ends)) {
    const { username } = await service.signUp('ROLE_CLIENT')
    const [home] = neighbours()
    const token = (await login(service, username, home)).text
    await end(token, username)
    const secret = name === 'another password' ? next : password
    t.deepEqual(statuses(await times(12, () => guess(service, username, anyAddress(), { token }))), { 404: 10, 429: 2 })
    t.is((await byDevice(service, username, token, secret, home)).status, 200, name)
    isLocked(t, await byDevice(service, username, token, secret))
  }
})

test('any other Authorization header at a login is ignored: it bypasses no lock and causes no error', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const { token, username } = user
  const [header, claims] = [headerOf(token), claimsOf(token)]
  const [key] = await service.registry.signingKeys.all()
  const later = Math.floor(Date.now() / 1000) + 2 * hour
  const tokens: Record<string, string> = {
    'another user’s token': other.token,
    'a token of Administration': (await openAdministration(t, service).signIn({ username: 'admin', password })).token,
    'another key': assemble(header, claims, ecdsa(ownKeys().privateKey)),
    'no algorithm': assemble({ ...header, alg: 'none' }, claims, () => Buffer.alloc(0)),
    'the public key as a secret': assemble({ ...header, alg: 'HS256' }, claims, hmac(JSON.stringify(key!.publicJwk))),
    'another issuer': await forge(service, token, { iss: 'https://elsewhere.test' }),
    'another audience': await forge(service, token, { aud: 'auth-admin' }),
    'another type': await forge(service, token, {}, { typ: 'JWT' }),
    'an unknown key': await forge(service, token, {}, { kid: 'nowhere' }),
    'a session that begins later': await forge(service, token, { iat: later, auth_time: later, exp: later + 60 }),
    'no session': await forge(service, token, { auth_time: undefined }),
    'a lifetime that no key has': await forge(service, token, { exp: claims.iat + 10 * day }),
    'the key of a service': await serviceKey(service, ['users.read']),
    nonsense: 'a.b.c',
    'too much': 'x'.repeat(5000),
  }
  const basic = `Basic ${Buffer.from(`${username}:${password}`).toString('base64')}`
  const free = await service.signUp('ROLE_CLIENT')
  await lock(service, user)
  for (const authorization of [...Object.values(tokens).map(each => `Bearer ${each}`), basic, token, 'Bearer']) {
    const more = { headers: { authorization } }
    t.is((await login(service, username, anyAddress(), password, more)).status, 429, authorization)
    t.is((await login(service, free.username, anyAddress(), password, more)).status, 200, authorization)
  }
  t.is((await byDevice(service, username, token)).status, 200)
})

test('a device has ten attempts per session: refreshed tokens share them, other sessions and networks don’t', async t => {
  const service = await serviceWithClock(t)
  const other = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! }, { clock: service.clock })
  const { username } = await service.signUp('ROLE_CLIENT')
  const stolen = (await login(service, username)).text
  await service.clock.pass(60)
  const [home, near] = neighbours()
  const kept = (await login(service, username, home)).text
  const refreshed = (await service.request('GET', '/users/refresh', { token: stolen })).text
  t.is(claimsOf(refreshed).auth_time, claimsOf(stolen).auth_time)
  const compared = tenCompared(
    t,
    await atOnce(20, index =>
      guess([service, other][index % 2]!, username, anyAddress(), {
        token: index % 3 ? stolen : refreshed,
        once: true,
      }),
    ),
  )
  await times(10 - compared, () => guess(service, username, anyAddress(), { token: stolen }))
  const again = (await service.request('GET', '/users/refresh', { token: refreshed })).text
  for (const token of [stolen, refreshed, again]) isLocked(t, await byDevice(other, username, token))
  // They counted neither for other sessions nor for callers without a token: nine more are permitted everywhere.
  for (const more of [{ token: kept }, {}]) {
    t.deepEqual(statuses(await times(9, () => guess(service, username, anyAddress(), more))), { 404: 9 })
    t.is((await login(service, username, anyAddress(), password, more)).status, 200)
  }
  isLocked(t, await byDevice(service, username, stolen))
  // Nor do failures of others at its address and network count for a device.
  for (const at of [home, near]) await times(10, () => guess(service, username, at))
  for (const at of [home, near]) isLocked(t, await login(service, username, at))
  for (const at of [home, near]) t.is((await byDevice(service, username, kept, password, at)).status, 200, at)
  await service.clock.pass(900)
  t.is((await byDevice(service, username, stolen)).status, 200)
})

test('at a blocked address, an active account with its token or in a known network still signs in, and another user’s token doesn’t help', async t => {
  const [service] = await strict(t)
  const [home, at] = neighbours()
  const neighbour = await known(service, home)
  const outsider = await known(service, anyAddress())
  const { text: token } = await login(service, outsider.username)
  const newcomer = await service.signUp('ROLE_CLIENT')
  await waitForValue(async () => (await guess(service, randomUUID(), at)).status, 429)
  for (const [{ username }, more, status] of [
    [outsider, {}, 429],
    [outsider, { token: newcomer.token }, 429],
    [newcomer, { token: newcomer.token }, 429],
    [newcomer, { token }, 429],
    [neighbour, {}, 200],
    [outsider, { token }, 200],
  ] as const)
    t.is((await login(service, username, at, password, more)).status, status, JSON.stringify(more))
})

test('sign-in by answers and Administration don’t identify a device by token', async t => {
  const service = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const { username, token } = await service.signUp('ROLE_CLIENT', { securityquestion: '1', securityanswer: 'Rex' })
  await saveAnswer(service, token, 2, 'Rex')
  t.deepEqual(statuses(await times(10, () => enterByAnswers(service, username, 'Totó', { token }))), { 422: 10 })
  isLocked(t, await enterByAnswers(service, username, 'Rex', { token }))
  const shown = openAdministration(t, service, await service.adminToken())
  const signIn = (secret: string) => reasonOf(shown.signIn({ username: 'admin', password: secret }))
  t.deepEqual(await times(10, () => signIn('not the password')), Array(10).fill('INVALID_CREDENTIALS'))
  t.is(await signIn(password), 'TOO_MANY_ATTEMPTS')
})

test('administrators see the counts of known networks and devices, and unlocking ends them all', async t => {
  const service = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(t, service)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const [home, near] = neighbours()
  t.is((await login(service, username, home)).status, 200)
  await times(3, () => guess(service, username, anyAddress(), { token }))
  await times(10, () => guess(service, username, near))
  await guess(service, username, home)
  const counts = async (address?: string) => {
    const { failures } = await api.explainUser({ user: username, ...(address && { address }) })
    return failures.filter(({ proof }) => proof === 'password').map(({ scope, count }) => `${scope}: ${count}`)
  }
  t.deepEqual(await counts(), ['account: 0', 'other known: 10'])
  t.deepEqual(await counts(home), ['account: 0', 'known address: 1', 'other known: 10'])
  const another = near.replace(/\d+$/, '3')
  t.deepEqual((await counts(another)).toSorted(), ['account: 0', 'known network: 10', 'other known: 3'])
  const { obstacles } = await api.explainUser({ user: username, address: another })
  t.like(
    obstacles.find(({ prevents }) => prevents === 'sign in'),
    {
      reason: 'Locked after 10 wrong passwords from other addresses of this network.',
      command: `auth-admin users unlock ${idOf(token)}`,
    },
  )
  isLocked(t, await login(service, username, near))
  t.is((await api.unlockUser({ user: username })).cleared, 3)
  // A process caches a lock for a moment.
  await waitForValue(async () => (await login(service, username, near)).status, 200)
  t.deepEqual(await counts(near), ['account: 0', 'known address: 0'])
})
