/** Callers beyond a limit: refused at almost no cost, at no other caller's expense, and no longer than Retry-After says. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { ask, recordStatements } from '../_helpers/database.js'
import { scrape } from '../_helpers/metrics.js'
import { enterByAnswers, enterByKey } from '../_helpers/recovery.js'
import type { TestService } from '../_helpers/service.js'
import { password, type SignedUp, serviceWithClock, signUpForm, startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'

/** Fails at an address until it is blocked. */
const block = (service: TestService, address: string) =>
  waitForValue(async () => (await login(service, randomUUID(), address)).status, 429)

const atOnce = <T>(count: number, work: (index: number) => Promise<T>) =>
  Promise.all(Array.from({ length: count }, (_, index) => work(index)))

async function signUpTimes(service: TestService, times: number): Promise<SignedUp[]> {
  const users: SignedUp[] = []
  while (users.length < times) users.push(await service.signUp('ROLE_CLIENT'))
  return users
}

test('an address signs up 600 users at once, then one every 12 seconds, over all replicas, and invalid forms don’t count', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.05' })
  const { clock } = service
  const shared = { AUTH_LIMIT_FACTOR: '0.05', DATABASE_URL: service.env.DATABASE_URL! }
  const other = await startTestService(t, shared, { clock })
  const [address, elsewhere] = [anyAddress(), anyAddress()]
  const signUp = (at: string, where: TestService = service, fields = {}) =>
    where.request('POST', '/users/signup', { body: signUpForm(fields), headers: from(at) })
  const wrong = await atOnce(40, () => signUp(address, service, { state: 'São Paulo' }))
  t.deepEqual(statuses(wrong), { 422: 40 })
  const both = await atOnce(40, index => signUp(address, index % 2 ? service : other))
  t.deepEqual(statuses(both), { 200: 30, 429: 10 })
  for (const where of [service, other]) {
    const { status, headers, json } = await signUp(address, where)
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
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.05' })
  const address = anyAddress()
  const ask = (index = 0, at = address) => {
    const path = `/users/existsBy${index % 2 ? 'Username' : 'Nickname'}`
    return service.request('POST', path, { query: { username: 'ana', nickname: 'ana' }, headers: from(at) })
  }
  t.deepEqual(statuses(await atOnce(20, ask)), { 200: 15, 429: 5 })
  t.regex((await ask()).headers.get('retry-after') ?? '', /^[1-9]\d*$/)
  t.is((await ask(0, anyAddress())).status, 200)
  await service.clock.pass(20)
  t.is((await ask()).status, 200)
  t.is((await ask()).status, 429)
})

// Serial: it counts every statement of the process.
test.serial('a blocked caller costs no statement, no hash and no row, and counts against no account', async t => {
  // On a stopped clock no bucket drains meanwhile.
  const env = { AUTH_LIMIT_FACTOR: '0.1', AUTH_METRICS_ADDRESS: '127.0.0.1:0' }
  const service = await serviceWithClock(t, env)
  const address = anyAddress()
  const owners = await signUpTimes(service, 30)
  await block(service, address)
  const tables = ['attempts', 'buckets', 'emails', 'known_addresses', 'audit_events', 'audit_staged']
  const counts = tables.map(name => `(SELECT count(*)::int FROM ${name}) AS ${name}`)
  const state = async () => {
    const { audit_events, audit_staged, ...rows } = (await ask(service.env.DATABASE_URL!, `SELECT ${counts}`))[0]!
    const hashes = (await scrape(service)).value('auth_hash_wait_seconds_count')
    return { ...rows, hashes, events: Number(audit_events) + Number(audit_staged) }
  }
  const before = await state()
  t.truthy(before.hashes)

  const statements = recordStatements()
  const startedAt = Date.now()
  try {
    for (let index = 0; index < 90; index++) {
      const { username } = owners[index % 30]!
      // It identifies no device: its account is inactive, and in two of three cases another one.
      const { token } = owners[(index + (index % 3)) % 30]!
      const ways = [
        () => login(service, username, address, password, { token }),
        () => enterByKey(service, username, 'ABCD2345', address),
        () => enterByAnswers(service, username, 'azul', { address, token }),
      ]
      t.is((await ways[index % 3]!()).status, 429)
    }
  } finally {
    statements[Symbol.dispose]()
  }
  // Jobs that prune, and search for imported answers to hash.
  const asked = statements.names.filter(name => /^(attempt|bucket|answers|user|mailed)(?!.*(prune|keyed))/.test(name))
  // Unlocks are read four times a second, the accounts that know the address once a minute.
  const most = (Date.now() - startedAt) / 250 + 2
  t.true(asked.length <= most, `${asked.length} of ${most}`)
  const seen = [...new Set(asked)].filter(name => !['bucket-read', 'attempt-accounts-knowing'].includes(name))
  t.deepEqual(seen, [])
  t.deepEqual(await state(), before)
  for (const { username } of owners) t.is((await login(service, username)).status, 200)
})

test('attempts in progress aren’t failures: 40 users behind one address with a limit of 30 failures sign in at once', async t => {
  // The hashes take long enough that the attempts are in progress at the same time.
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.1', AUTH_BCRYPT_COST: '8' })
  const address = anyAddress()
  const users = await signUpTimes(service, 40)
  // A busy machine repeats some, while an earlier attempt of the same account may be in progress.
  const enter = (index: number) =>
    waitForValue(async () => {
      const { status, headers } = await login(service, users[index]!.username, address)
      if (status === 429) t.is(headers.get('retry-after'), '1')
      return status
    }, 200)
  await t.notThrowsAsync(atOnce(40, enter))
})

test('a pupil’s wrong passwords block unknown accounts at a school, but no account that knows the school’s address', async t => {
  const service = await startTestService(t, { AUTH_LIMIT_FACTOR: '0.1' })
  const school = anyAddress()
  const [ana, bia, pupil] = [await known(service, school), await known(service, school), await known(service, school)]
  const [newcomer, inactive] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  t.is((await login(service, inactive.username, school)).status, 200)
  await login(service, pupil.username, school, 'wrong')
  await block(service, school)
  for (const { username } of [ana, bia, ana, bia]) t.is((await login(service, username, school)).status, 200)
  for (const { username } of [newcomer, inactive, pupil]) {
    t.is((await login(service, username, school)).status, 429)
    t.is((await login(service, username)).status, 200)
  }
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
