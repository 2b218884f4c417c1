/** Guessing at accounts: in parallel, over replicas, with unknown names, from many and from forged addresses. */
import { randomInt, randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { usernameKey } from '../../server/rules/names.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { suspend } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { type Answer, password, serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { patience } from '../_helpers/wait.js'

/** A wrong login from an address. */
const guess = (service: TestService, username: string, address: string, wrong = 'not the password') =>
  service.request('POST', '/users/login', { query: { username, password: wrong }, headers: from(address) })

/** The start of an incomplete login. */
function begin({ registry: { attempts } }: TestService, username: string, address: string) {
  return attempts.begin({
    usernameKey: usernameKey(username),
    proof: 'password',
    address,
    device: undefined,
    limits: { max: 10, bucket: { capacity: 300, perSecond: 1 } },
  })
}

/** A response without the parts that differ in each request. */
const gist = ({ status, json }: Answer) => JSON.stringify({ status, ...json, requestId: undefined })

const count = (answers: readonly Answer[]) => {
  const counts: Record<string, number> = {}
  for (const { status, json } of answers) {
    const key = `${status} ${json?.reason ?? ''}`
    counts[key] = (counts[key] ?? 0) + 1
  }
  return counts
}

// Their clock is stopped, so that no count drains or expires meanwhile.
const replicas = replicasForFile(3, { clocked: true }) as readonly [TestService, TestService, TestService]
const [first, second, third] = replicas

/** A service with a tenth of the limits: 30 failures block an address, one locks an account. Its clock is stopped. */
const strict = {} as TestService
const cleanUps: (() => Promise<void>)[] = []
test.serial.before(async () => {
  const hooks = { teardown: (work: () => Promise<void>) => void cleanUps.push(work) }
  Object.assign(strict, await serviceWithClock(hooks, { AUTH_LIMIT_FACTOR: '0.1' }))
})
test.after.always(async () => {
  for (const work of cleanUps.reverse()) await work()
})

/** The responses to 34 consecutive failed attempts that all count for one address. */
const blockedFor = [...Array(30).fill(404), ...Array(4).fill(429)]
async function inARow(one: (index: number) => Promise<number>): Promise<number[]> {
  const answers: number[] = []
  for (let index = 0; index < blockedFor.length; index++) answers.push(await one(index))
  return answers
}

test('of 200 simultaneous guesses over three replicas, 10 are evaluated, whether the account exists or not', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  for (const name of [username, `ninguém ${randomUUID()}`]) {
    const answers = await Promise.all(
      Array.from({ length: 200 }, (_, index) =>
        replicas[index % 3]!.request('POST', '/users/login', {
          query: { username: name, password: 'not the password' },
          headers: from(anyAddress()),
          once: true,
        }),
      ),
    )
    const times = (status: number) => answers.filter(answer => answer.status === status).length
    // A busy machine may leave some of the ten without an answer.
    const [evaluated, unanswered] = [times(404), times(503)]
    t.true(evaluated <= 10 && evaluated + unanswered >= 10, `${evaluated} ${unanswered}`)
    t.is(evaluated + unanswered + times(429), 200)
    for (const { status, headers } of answers) {
      if (status !== 429) continue
      const wait = Number(headers.get('retry-after'))
      t.true(Number.isInteger(wait) && wait >= 1 && wait <= 900, String(wait))
    }
  }
})

test('guesses at an unknown account get the same answers as guesses at an existing one', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const suspended = await first.signUp('ROLE_CLIENT')
  await suspend(first.registry, idOf(suspended.token))
  const ways: Record<string, (name: string, service: TestService) => Promise<Answer>> = {
    login: (name, service) => guess(service, name, anyAddress()),
    'login, suspended': (name, service) =>
      guess(service, name === username ? suspended.username : name, anyAddress(), password),
    'mailed key': (name, service) =>
      service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
        query: { username: name, key: 'ABCD2345' },
        headers: from(anyAddress()),
      }),
  }
  for (const [way, ask] of Object.entries(ways)) {
    // Two of them count for the same account, so each starts with a new one.
    await first.registry.attempts.clear([first.registry.counterKeys.account('password', usernameKey(username))])
    const missing = `ninguém ${randomUUID()}`
    for (let index = 0; index < 13; index++) {
      const service = index % 2 ? first : second
      const [known, unknown] = [await ask(username, service), await ask(missing, service)]
      t.is(gist(known), gist(unknown), `${way} ${index}`)
      // Mailed keys count by key and address.
      t.is(known.status === 429, way !== 'mailed key' && index >= 10, `${way} ${index}`)
    }
  }
})

/** A user with two answers, and its proofs of identity, wrong and right. */
async function withAnswers() {
  const questions: { id: number }[] = (await first.request('GET', '/forgotpasswords/findallforgotpasswordquestions'))
    .json
  const { username, token } = await first.signUp('ROLE_CLIENT')
  const given = (answer: string) => questions.slice(0, 2).map(({ id }) => ({ forgotpasswordquestionsid: id, answer }))
  for (const body of given('azul'))
    await first.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  const byKey = (key: string, service: TestService = first) =>
    service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
      query: { username, key },
      headers: from(anyAddress()),
    })
  const byAnswers = (answer: string, service: TestService = first, address = anyAddress()) =>
    service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
      query: { username },
      body: given(answer),
      headers: from(address),
    })
  return { username, id: idOf(token), byKey, byAnswers }
}

test('passwords and answers have separate counts, each attempt counts before it is compared, and mailed keys count in neither', async t => {
  const { username, id, byKey, byAnswers } = await withAnswers()
  const ask = (index: number): Promise<Answer> => {
    const service = replicas[index % 3]!
    if (index % 4 === 0) return guess(service, username, anyAddress())
    return index % 4 === 1 ? byKey('ABCD2345', service) : byAnswers('verde', service)
  }
  const counts = count(await Promise.all(Array.from({ length: 60 }, (_, index) => ask(index))))
  t.deepEqual(counts, {
    '404 INVALID_CREDENTIALS': 10,
    '422 INVALID_ANSWERS': 10,
    '422 INVALID_KEY': 15,
    '429 TOO_MANY_ATTEMPTS': 25,
  })
  // The mailed key still signs in.
  await first.registry.mailedKeys.replace(id, 'recovery', 'ABCDEFGH')
  t.is((await byKey('ABCDEFGH')).status, 200)
  // Ten wrong ones leave one event, fewer leave none: an attempt costs its caller nothing.
  const recorded = await first.registry.audit.list({ subjectId: id, outcome: 'refused', limit: 100 })
  t.deepEqual(recorded.map(({ action, reason, object }) => `${action} ${reason} ${object ?? ''}`).sort(), [
    'session.login INVALID_CREDENTIALS ',
    'session.login TOO_MANY_ATTEMPTS failures:10',
    'session.login-by-answers INVALID_ANSWERS ',
    'session.login-by-answers TOO_MANY_ATTEMPTS failures:10',
    'session.login-by-key TOO_MANY_ATTEMPTS failures:10',
  ])
})

test('wrong mailed keys block their client address, for existing and unknown users alike', async t => {
  const { username, token } = await strict.signUp('ROLE_CLIENT')
  const address = anyAddress()
  const answers = await inARow(async index => {
    const query = { username: index % 2 ? username : randomUUID(), key: 'ABCD2345' }
    const path = '/forgotpasswords/loginbyusernameandkey'
    return (await strict.request('POST', path, { query, headers: from(address) })).status
  })
  t.deepEqual(
    answers,
    blockedFor.map(status => (status === 404 ? 422 : status)),
  )
  const events = await strict.registry.audit.list({ action: 'session.login-by-key', limit: 1000 })
  const here = events.filter(event => event.address === address)
  // With a tenth of the limits, one wrong key of an account counts as ten.
  t.deepEqual(
    here.map(({ subject_id, reason, object }) => [subject_id, reason, object]),
    [
      [idOf(token), 'TOO_MANY_ATTEMPTS', 'failures:1'],
      [null, 'TOO_MANY_ATTEMPTS', 'failures:30'],
    ],
  )
})

test.serial(
  'any number of failures of an account leaves two events in 15 minutes, and failures of an unknown name leave none',
  async t => {
    const service = await serviceWithClock(t)
    const other = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL! }, { clock: service.clock })
    const { username, token } = await service.signUp('ROLE_CLIENT')
    const before = (await service.registry.audit.list({ limit: 1000 })).length
    const flood = async (name: string) => {
      for (let round = 0; round < 2; round++)
        await Promise.all(
          Array.from({ length: 30 }, (_, index) => guess(index % 2 ? service : other, name, anyAddress())),
        )
    }
    await flood(username)
    await flood(randomUUID())
    await service.clock.pass(900)
    await flood(username)
    const events = (await service.registry.audit.list({ limit: 1000 })).slice(before)
    const two = ['INVALID_CREDENTIALS ', 'TOO_MANY_ATTEMPTS failures:10']
    t.deepEqual(
      events.map(({ reason, object }) => `${reason} ${object ?? ''}`),
      [...two, ...two],
    )
    t.true(events.every(({ subject_id, address }) => subject_id === idOf(token) && address?.startsWith('10.')))
  },
)

test('a success clears only the failures of the same kind of proof, at known and unknown addresses', async t => {
  const home = anyAddress()
  for (const at of [anyAddress, () => home]) {
    const { username, byAnswers } = await withAnswers()
    const login = (secret = password) => guess(first, username, at(), secret)
    t.is((await login()).status, 200)
    for (let index = 0; index < 9; index++) t.is((await byAnswers('verde', first, at())).status, 422)
    t.is((await login()).status, 200)
    t.is((await byAnswers('verde', first, at())).status, 422)
    refused(t, await byAnswers('azul', first, at()), 429, 'TOO_MANY_ATTEMPTS')
    for (const _ of [1, 2]) {
      for (let index = 0; index < 9; index++) t.is((await login('not the password')).status, 404)
      t.is((await login()).status, 200)
    }
    refused(t, await byAnswers('azul', first, at()), 429, 'TOO_MANY_ATTEMPTS')
  }
})

test.serial('an attempt counts even if its counter is pruned while the attempt is in progress', async t => {
  const service = await serviceWithClock(t)
  const { username } = await service.signUp('ROLE_CLIENT')
  const { attempts, counterKeys } = service.registry
  await begin(service, username, anyAddress())
  // So long ago that its process may have ended.
  await service.clock.pass(31)
  await attempts.prune()
  const counter = { subject: counterKeys.account('password', usernameKey(username)), account: null }
  const last = { action: 'session.login', outcome: 'refused', actor: 'anonymous' } as const
  const of = { userId: undefined, address: '192.0.2.1', bucket: { capacity: 300, perSecond: 1 } }
  await attempts.fail(counter, { max: 10, seconds: 900, last }, of)
  for (let index = 0; index < 9; index++) t.is((await guess(service, username, anyAddress())).status, 404)
  refused(t, await guess(service, username, anyAddress(), password), 429, 'TOO_MANY_ATTEMPTS')
})

test('all spellings of a username share the count of one account', async t => {
  const service = first
  await service.signUp('ROLE_CLIENT', { username: '(11)98765-4321' })
  const spellings = [
    '(11)98765-4321',
    '11987654321',
    '+55 11 98765-4321',
    '(11) 98765-4321',
    ' 11 98765 4321 ',
    '11‑98765‑4321',
  ]
  const answers = []
  for (let index = 0; index < 15; index++) answers.push(await guess(service, spellings[index % 6]!, anyAddress()))
  t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 10, '429 TOO_MANY_ATTEMPTS': 5 })
})

/** Fails so often from an address, with any accounts, some concurrently. */
async function fail(services: readonly TestService[], address: string, times: number): Promise<void> {
  for (let left = times; left > 0; left -= 20) {
    const one = (index: number) => guess(services[index % services.length]!, randomUUID(), address)
    const answers = await Promise.all(Array.from({ length: Math.min(20, left) }, (_, index) => one(index)))
    for (const { status, text } of answers) if (status !== 404) throw new Error(`${status} ${text}`)
  }
}

test('a client address is blocked after 300 failures on any accounts, on all replicas', async t => {
  const address = anyAddress()
  const { username } = await first.signUp('ROLE_CLIENT')
  await fail(replicas, address, 280)
  for (let index = 0; index < 20; index++) t.is((await guess(second, randomUUID(), address)).status, 404)
  for (const service of replicas) {
    const answer = await guess(service, username, address, password)
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    // One failure drains every 3 seconds.
    t.is(answer.headers.get('retry-after'), '3')
  }
  t.is((await guess(first, username, anyAddress(), password)).status, 200)
})

test('an attempt that arrives while others are in progress gets a short Retry-After, regardless of earlier failures', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const address = anyAddress()
  t.is((await guess(first, username, address)).status, 404)
  for (let index = 0; index < 9; index++) await begin(second, username, address)
  const answer = await guess(third, username, address, password)
  refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
  t.is(answer.headers.get('retry-after'), '1')
})

test('an attacker can’t lock the owner out: a known address has its own count, and the attacker stays blocked when the owner signs in', async t => {
  const { username } = await first.signUp('ROLE_CLIENT')
  const home = anyAddress()
  const owner = (service: TestService, secret = password) =>
    service.request('POST', '/users/login', { query: { username, password: secret }, headers: from(home) })
  t.is((await owner(first)).status, 200)
  for (let index = 0; index < 30; index++) await guess(index % 2 ? first : second, username, anyAddress())
  t.is((await guess(first, username, anyAddress(), password)).status, 429)
  for (let round = 0; round < 3; round++) {
    t.is((await owner(second)).status, 200)
    t.is((await guess(second, username, anyAddress(), password)).status, 429)
  }
  // A known address is limited as well: it has a separate count for this account.
  const answers = []
  for (let index = 0; index < 12; index++) answers.push(await owner(first, 'not the password'))
  t.deepEqual(count(answers), { '404 INVALID_CREDENTIALS': 10, '429 TOO_MANY_ATTEMPTS': 2 })
  // An address is known to the account that signed in from it, not to others.
  const other = await first.signUp('ROLE_CLIENT')
  for (let index = 0; index < 11; index++) await guess(first, other.username, anyAddress())
  t.is((await guess(first, other.username, home, password)).status, 429)
})

test.serial('a lock ends when Retry-After says, and further attempts don’t change that', async t => {
  const service = await serviceWithClock(t)
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const { username } = await service.signUp('ROLE_CLIENT')
  const login = () => guess(service, username, anyAddress(), password)
  const wait = async () => {
    const answer = await login()
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    return Number(answer.headers.get('retry-after'))
  }
  for (let index = 0; index < 9; index++) t.is((await guess(service, username, anyAddress())).status, 404)
  await service.clock.pass(300)
  t.is((await guess(service, username, anyAddress())).status, 404)
  // The time started with the first failure.
  t.is(await wait(), 600)
  await service.clock.pass(300)
  for (let index = 0; index < 30; index++) await guess(service, username, anyAddress())
  t.is(await wait(), 300)
  // In its last moments Retry-After isn't 0.
  await service.clock.pass(299.9)
  t.is(await wait(), 1)
  const call = client.call(Users.method.login, { username, password }, { metadata: from(anyAddress()) })
  const { info, retryInfo } = await call.then(() => t.fail() as never, refusalOf)
  t.is(info?.reason, 'TOO_MANY_ATTEMPTS')
  t.is(Number(retryInfo?.retryDelay?.seconds), 1)
  await service.clock.pass(0.1)
  t.is((await login()).status, 200)
})

test.serial(
  'a blocked client address is unblocked gradually as its failures drain, completely within 15 minutes',
  async t => {
    const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
    const address = anyAddress()
    const one = async () => (await guess(service, randomUUID(), address)).status
    t.deepEqual(await inARow(one), blockedFor)
    await service.clock.pass(60)
    t.deepEqual([await one(), await one(), await one()], [404, 404, 429])
    await service.clock.pass(901)
    t.deepEqual(await inARow(one), blockedFor)
  },
)

/** Headers that claim another client address. */
const addressClaims = (index: number): Record<string, string>[] => [
  { 'x-forwarded-for': `203.0.113.${index}` },
  { 'x-forwarded-for': `127.0.0.1, 198.51.100.${index}` },
  { 'X-Forwarded-For': `2001:db8:${index}::1` },
  { 'x-forwarded-for': `'; DROP TABLE attempts --${index}` },
  { 'x-real-ip': `203.0.113.${index}` },
  { forwarded: `for=203.0.113.${index}` },
  { 'x-client-ip': `203.0.113.${index}` },
  { 'true-client-ip': `203.0.113.${index}` },
  { 'cf-connecting-ip': `203.0.113.${index}` },
  { via: `1.1 proxy${index}` },
]

test.serial('a client that isn’t a trusted proxy can’t claim another address, over HTTP or gRPC', async t => {
  const service = await serviceWithClock(t, { AUTH_TRUSTED_PROXIES: '192.0.2.1', AUTH_LIMIT_FACTOR: '0.1' })
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const answers = await inARow(async index => {
    const headers = addressClaims(index)[index % 10]!
    const query = { username: randomUUID(), password: 'wrong' }
    if (index % 3) return (await service.request('POST', '/users/login', { query, headers })).status
    const call = client.call(Users.method.login, query, { metadata: headers })
    const { info, retryInfo } = await call.then(() => t.fail() as never, refusalOf)
    if (info?.reason === 'INVALID_CREDENTIALS') return 404
    t.is(info?.reason, 'TOO_MANY_ATTEMPTS')
    t.is(Number(retryInfo?.retryDelay?.seconds), 30)
    return 429
  })
  t.deepEqual(answers, blockedFor)
})

const block = () => `2001:db8:${randomInt(1, 0xffff).toString(16)}:a`
const host = () => randomInt(0xffff).toString(16)

/** Forwarded addresses that count as one: how a client or its proxy may write `base` at the n-th attempt. */
const sameAddress: Record<string, { base: () => string; written: (base: string, index: number) => string }> = {
  'what a trusted proxy adds to a list of its client': {
    base: anyAddress,
    written: (base, index) =>
      [`198.51.100.${index}, ${base}`, `127.0.0.1, 198.51.100.${index},${base}`, `garbage, ${base}:${1000 + index}`][
        index % 3
      ]!,
  },
  'an IPv6 /64 in every notation': {
    base: block,
    written: (base, index) =>
      [
        `${base}::${host()}`,
        `${base}:${host()}:0:0:1`,
        `[${base.toUpperCase()}::${host()}]:4711`,
        base.replace('2001:db8', '2001:0db8').concat(`:0:0:0:${host()}`),
      ][index % 4]!,
  },
  'an IPv4 address and its IPv4-mapped IPv6 address': {
    base: anyAddress,
    written: (base, index) => (index % 2 ? base : `::ffff:${base}`),
  },
}

test('behind a trusted proxy one address counts, however it is written, over HTTP and gRPC', async t => {
  const client = openGrpc(strict.grpc)
  t.teardown(async () => client.close())
  for (const [what, { base, written }] of Object.entries(sameAddress)) {
    const [one, other] = [base(), base()]
    const answers = await inARow(async index => {
      const address = written(one, index)
      if (index % 3) return (await guess(strict, randomUUID(), address)).status
      const values = { username: randomUUID(), key: 'ABCD2345' }
      const call = client.call(ForgotPasswords.method.loginByUsernameAndKey, values, { metadata: from(address) })
      const reason = (await call.then(() => t.fail() as never, refusalOf)).info?.reason
      return reason === 'INVALID_KEY' ? 404 : reason === 'TOO_MANY_ATTEMPTS' ? 429 : t.fail(reason) && 0
    })
    t.deepEqual(answers, blockedFor, what)
    t.is((await guess(strict, randomUUID(), written(other, 0))).status, 404, what)
  }
})

test('an attempt that its caller cancels is neither compared nor counted', async t => {
  // Twelve failures would block the address, one would lock the account.
  const service = await startTestService(t, { AUTH_BCRYPT_COST: '11', AUTH_LIMIT_FACTOR: '0.04' })
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = anyAddress()
  for (let cut = 0, times = 0; cut < 12; times++) {
    t.true(times < 12 * patience, `cut ${cut} of ${times}`)
    const headers = { 'connect-timeout-ms': '40', ...from(address) }
    const body = { username, password: cut % 2 ? password : 'not the password' }
    const { status, text } = await service.request('POST', '/auth.v1.Users/Login', { body, headers })
    // 429 comes from a busy service, which starts nothing that it can't finish in time.
    t.true([504, 429].includes(status), text)
    if (status === 504) cut++
    // The thread still works on it.
    await sleep(150)
  }
  t.is((await guess(service, username, address, password)).status, 200)
})
