/** Callers beyond a limit: refused at almost no cost, at no other caller's expense, and no longer than Retry-After says. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { type Clock, createClock } from '../_helpers/clock.js'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { databaseFor } from '../_helpers/installed.js'
import {
  password,
  type SignedUp,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
} from '../_helpers/service.js'
import { patience, waitForValue } from '../_helpers/wait.js'

/** A service whose clock the test moves, with limits of that percentage. */
async function withClock(t: ExecutionContext, percent: number): Promise<[TestService, Clock]> {
  const url = await databaseFor(t)
  const clock = await createClock(url)
  const env = { DATABASE_URL: url, AUTH_LIMIT_FACTOR: String(percent / 100) }
  return [await startTestService(t, env, { clock }), clock]
}

/** Fails at an address until it is blocked. */
const block = (service: TestService, address: string) =>
  waitForValue(async () => (await login(service, randomUUID(), address)).status, 429)

test('an address signs up 600 users at once, then one every 12 seconds, over all replicas, and invalid forms don’t count', async t => {
  const [service, clock] = await withClock(t, 5)
  const other = await startTestService(t, { ...service.env, AUTH_DATA_DIR: service.settings.dataDir }, { clock })
  const [address, elsewhere] = [anyAddress(), anyAddress()]
  const signUp = (at: string, fields?: Record<string, unknown>, where = service) =>
    where.request('POST', '/users/signup', { body: signUpForm(fields), headers: from(at) })
  const wrong = await Promise.all(Array.from({ length: 40 }, () => signUp(address, { state: 'São Paulo' })))
  t.deepEqual(statuses(wrong), { 422: 40 })
  const both = await Promise.all(
    Array.from({ length: 40 }, (_, index) => signUp(address, {}, index % 2 ? service : other)),
  )
  t.deepEqual(statuses(both), { 200: 30, 429: 10 })
  for (const where of [service, other]) {
    const { status, headers, json } = await signUp(address, {}, where)
    t.is(status, 429)
    t.is(json.reason, 'TOO_MANY_ATTEMPTS')
    const wait = Number(headers.get('retry-after'))
    t.true(wait > 220 && wait <= 240, `${wait}`)
  }
  t.is((await signUp(elsewhere)).status, 200)
  await clock.pass(240)
  t.is((await signUp(address)).status, 200)
  t.is((await signUp(address)).status, 429)
})

test('a process answers 300 look-ups from an address at once, then one per second', async t => {
  const [service, clock] = await withClock(t, 5)
  const address = anyAddress()
  const ask = (at = address, path = 'existsByUsername') =>
    service.request('POST', `/users/${path}`, { query: { username: 'ana', nickname: 'ana' }, headers: from(at) })
  const answers = await Promise.all(
    Array.from({ length: 20 }, (_, index) => ask(address, index % 2 ? 'existsByUsername' : 'existsByNickname')),
  )
  t.deepEqual(statuses(answers), { 200: 15, 429: 5 })
  t.regex((await ask()).headers.get('retry-after') ?? '', /^[1-9]\d*$/)
  t.is((await ask(anyAddress())).status, 200)
  await clock.pass(20)
  t.is((await ask()).status, 200)
  t.is((await ask()).status, 429)
})

// Serial: it counts every statement of the process.
test.serial('a blocked caller costs no statement, no hash and no row, and counts against no account', async t => {
  // On a stopped clock no bucket drains meanwhile.
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const address = anyAddress()
  const owners: SignedUp[] = []
  for (let index = 0; index < 30; index++) owners.push(await service.signUp('ROLE_CLIENT'))
  await block(service, address)
  const rows = async () => {
    const tables = ['attempts', 'buckets', 'emails', 'known_addresses']
    const counts = tables.map(name => `(SELECT count(*)::int FROM ${name}) AS ${name}`)
    const events = (await service.registry.audit.list({ limit: 100_000 })).length
    return [events, (await service.registry.database.sequelize.query(`SELECT ${counts.join()}`))[0]]
  }
  const before = await rows()

  const statements: string[] = []
  const own = pg.Client.prototype.query
  pg.Client.prototype.query = function (this: pg.Client, ...given: unknown[]) {
    statements.push(String((given[0] as { name?: string })?.name))
    return Reflect.apply(own, this, given)
  } as typeof own
  const startedAt = Date.now()
  try {
    for (let index = 0; index < 90; index++) {
      const { username } = owners[index % 30]!
      const ways: Record<string, [object, string?]> = {
        '/users/login': [{ username, password }],
        '/forgotpasswords/loginbyusernameandkey': [{ username, key: 'ABCD2345' }],
        '/forgotpasswords/loginbyusernameandanswers': [[{ forgotpasswordquestionsid: 1, answer: 'azul' }], username],
      }
      const [path, [body, name]] = Object.entries(ways)[index % 3]!
      const query = name === undefined ? {} : { query: { username: name } }
      // It identifies no device: its account is inactive, and in two of three cases another one.
      const { token } = owners[(index + (index % 3)) % 30]!
      const { status } = await service.request('POST', path, { ...query, token, body, headers: from(address) })
      t.is(status, 429)
    }
  } finally {
    pg.Client.prototype.query = own
  }
  // Jobs that prune, and search for imported answers to hash.
  const asked = statements.filter(name => /^(attempt|bucket|answers|user|mailed)(?!.*(prune|keyed))/.test(name))
  // Unlocks are read four times a second, the accounts that know the address once a minute.
  const most = (Date.now() - startedAt) / 250 + 2
  t.true(asked.length <= most, `${asked.length} of ${most}`)
  t.deepEqual(
    [...new Set(asked)].filter(name => !['bucket-read', 'attempt-accounts-knowing'].includes(name)),
    [],
  )
  t.deepEqual(await rows(), before)

  for (const { username } of owners) t.is((await login(service, username, anyAddress())).status, 200)
})

test.serial('a blocked caller uses no more processor time than a request for an unknown path', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const address = anyAddress()
  await block(service, address)
  const cost = async (path: string, expected: number) => {
    const all: number[] = []
    for (let round = 0; round < 5; round++) {
      const before = process.cpuUsage()
      for (let index = 0; index < 30; index++) {
        const body = { username: `x${index}`, password }
        t.is((await service.request('POST', path, { body, headers: from(address) })).status, expected)
      }
      const { user, system } = process.cpuUsage(before)
      all.push(user + system)
    }
    return Math.min(...all)
  }
  const nothing = await cost('/users/nothing/there', 404)
  const refused = await cost('/users/login', 429)
  t.true(refused < 3 * nothing, `${refused} µs, ${nothing} µs`)
})

test('attempts in progress aren’t failures: 40 users behind one address with a limit of 30 failures all sign in by following Retry-After', async t => {
  // The hashes take long enough that the attempts are in progress at the same time.
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.1', AUTH_BCRYPT_COST: '8' })
  const address = anyAddress()
  const users: SignedUp[] = []
  for (let index = 0; index < 40; index++) users.push(await service.signUp('ROLE_CLIENT'))
  let waited = 0
  const enter = async (username: string) => {
    for (let left = 2 * patience; ; left--) {
      const { status, headers, text } = await login(service, username, address)
      if (status === 200) return
      // 503 on a busy machine, whose hash queue is full.
      if ((status !== 429 && status !== 503) || left === 0) throw new Error(text)
      if (status === 429) {
        t.is(headers.get('retry-after'), '1')
        waited++
      }
      await sleep(1000 * Number(headers.get('retry-after')))
    }
  }
  // Again, where a busy machine spread the first attempts over time. One attempt of an account may be in progress: some wait.
  for (let rounds = 5; rounds > 0 && waited === 0; rounds--)
    await Promise.all([...users, users[0]!, users[0]!].map(({ username }) => enter(username)))
  t.true(waited > 0)
  for (const { username } of users) t.is((await login(service, username, anyAddress())).status, 200)
})

test('a pupil’s wrong passwords block unknown accounts at a school, but no account that knows the school’s address', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const school = anyAddress()
  const [ana, bia, pupil] = [await known(service, school), await known(service, school), await known(service, school)]
  const newcomer = await service.signUp('ROLE_CLIENT')
  const inactive = await service.signUp('ROLE_CLIENT')
  t.is((await login(service, inactive.username, school)).status, 200)
  await login(service, pupil.username, school, 'wrong')
  await block(service, school)
  for (const { username } of [ana, bia, ana, bia]) t.is((await login(service, username, school)).status, 200)
  for (const { username } of [newcomer, inactive, pupil]) t.is((await login(service, username, school)).status, 429)
  for (const { username } of [newcomer, inactive, pupil])
    t.is((await login(service, username, anyAddress())).status, 200)
  // Nor does it block users who are already signed in.
  t.is((await service.request('GET', '/users/me', { token: newcomer.token, headers: from(school) })).status, 200)
})

test('limits stay whole numbers for any AUTH_LIMIT_FACTOR', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.25' })
  const { username } = await service.signUp('ROLE_CLIENT')
  const wrong: number[] = []
  for (let index = 0; index < 4; index++) wrong.push((await login(service, username, anyAddress(), 'wrong')).status)
  t.deepEqual(wrong, [404, 404, 404, 429])
  const events = await service.registry.audit.list({ limit: 1000 })
  t.is(events.filter(({ reason }) => reason === 'TOO_MANY_ATTEMPTS').length, 1)
  // The minimum is one: otherwise a bucket would be full for ever.
  const least = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.001' })
  const { username: only } = await least.signUp('ROLE_CLIENT')
  for (let times = 0; times < 2; times++) t.is((await login(least, only, anyAddress())).status, 200)
})
