/** Rate limits by client address, on real buckets. */

import { availableParallelism } from 'node:os'
import { mock } from 'node:test'
import { setImmediate as settle } from 'node:timers/promises'
import test from 'ava'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createEmailRequests } from '../../server/limits/email-requests.js'
import { createNetworkRanks } from '../../server/limits/network-ranks.js'
import { createRateLimits } from '../../server/limits/rate-limits.js'
import { createScheduler, noHashing } from '../../server/limits/scheduler.js'
import type { Refusal } from '../../server/requests/refusal.js'
import { openModels } from '../_helpers/models.js'

test('a network’s failures and sign-ups share one count, of which an outer network’s is the sum, and refusals are half', async t => {
  const rateLimits = createRateLimits({ ...(await openModels(t)), factor: 0.1, now: () => 1 })
  const [one, other] = ['192.0.2.1', '192.0.2.2']
  for (let times = 0; times < 3; times++) await rateLimits.addFailure(one)
  rateLimits.countSignUp(one)
  await rateLimits.addFailure(other)
  for (let times = 0; times < 6; times++) rateLimits.countSignUp(other)
  const counts = (...networks: string[]) =>
    networks.map(network => Math.round(rateLimits.recentCount(network) * 1000) / 1000)
  t.deepEqual(counts(one, other, '192.0.2.3', '192.0.2.0/24', '198.51.100.0/24'), [3.333, 3, 0, 6.333, 0])
  // A sign-up that isn't hashed yet doesn't count, nor does a request for a recovery key.
  await rateLimits.take('signUps', one)
  await rateLimits.take('recoveryRequests', other)
  for (let times = 0; times < 5; times++) rateLimits.countRefusal([one, '203.0.113.1', '203.0.113.0/24'])
  t.deepEqual(counts(one, other, '192.0.2.0/24', '203.0.113.1', '203.0.113.0/24'), [3.333, 3, 6.333, 0.5, 0.5])
})

test('a failure loses weight over time: a thousand are forgotten within two hours', t => {
  let now = 0
  const counts = createNetworkRanks(() => now)
  counts.add('192.0.2.1', 1000)
  t.is(counts.of('192.0.2.1'), 1000)
  now += 15 * 60_000
  t.true(counts.of('192.0.2.0/24') > 300 && counts.of('192.0.2.0/24') < 400)
  now += 105 * 60_000
  t.true(counts.of('192.0.2.0/24') < 1)
})

// Which requests for e-mails are accepted first.

const endless = { deadline: Number.POSITIVE_INFINITY, signal: new AbortController().signal }

/** Waiting requests, and the order in which they start. */
function setUp(factor = 1) {
  const requests = createEmailRequests(factor)
  const begun: string[] = []
  const ask = async (name: string, address: string, known = false, more: object = {}) => {
    using _turn = await requests.begin({ address, ...endless, ...more }, known)
    begun.push(name)
    await settle()
  }
  /** The turn of another request. */
  const first = () => requests.begin({ address: '192.0.2.1', ...endless }, false)
  const reasonOf = (...given: Parameters<typeof ask>) =>
    ask(...given).then(
      () => 'begun',
      ({ reason, more }: Refusal) => `${Reason[reason]} ${more.retryAfter}`,
    )
  return { first, begun, ask, reasonOf }
}

const from = (index: number) => `10.${index >> 8}.${index & 255}.1`

test('one request at a time is in progress, and networks take turns', async t => {
  const { begun, ask, ...others } = setUp()
  const first = await others.first()
  const all = ['a', 'a', 'a', 'b', 'c', 'b'].map(name => ask(name, `192.0.2.${name.charCodeAt(0)}`))
  await settle()
  t.deepEqual(begun, [])
  first[Symbol.dispose]()
  await Promise.all(all)
  t.is(begun.join(''), 'abcaba')
})

test('networks that the account knows get half of the turns, however many others wait', async t => {
  const { begun, ask } = setUp(1_000)
  const others = Array.from({ length: 1_000 }, (_, index) => ask('other', from(index)))
  const known = Array.from({ length: 20 }, (_, index) => ask('known', from(index), true))
  await Promise.all(known)
  // The first one started before any was known.
  t.true(begun.filter(name => name === 'other').length <= 22, begun.join(' '))
  t.deepEqual(begun.slice(2, 10).sort(), [...Array(4).fill('known'), ...Array(4).fill('other')])
  await Promise.all(others)
})

test('too many requests from others, or from one address, are refused with OVERLOADED, those of known networks and neighbours are not', async t => {
  for (const [most, address] of [
    [1_000, from],
    [256, () => from(0)],
  ] as const) {
    const { ask, reasonOf } = setUp(1_000)
    // One of them is in progress.
    const all = Array.from({ length: most + 1 }, (_, index) => ask('other', address(index)))
    t.is(await reasonOf('other', address(most + 1)), 'OVERLOADED 1')
    t.is(await reasonOf('another', from(2_000), most === 1_000), 'begun')
    await Promise.all(all)
  }
})

test('a request whose deadline passes or whose caller leaves is refused with DEADLINE_EXCEEDED, and frees its turn', async t => {
  const { begun, ask, reasonOf, ...others } = setUp()
  const first = await others.first()
  const leaving = new AbortController()
  const gone = reasonOf('gone', '192.0.2.1', true, { signal: leaving.signal })
  const late = reasonOf('late', '192.0.2.1', true, { deadline: Date.now() + 20 })
  leaving.abort()
  t.deepEqual(await Promise.all([gone, late]), ['DEADLINE_EXCEEDED 1', 'DEADLINE_EXCEEDED 1'])
  const next = ask('next', '192.0.2.2')
  first[Symbol.dispose]()
  await next
  t.deepEqual(begun, ['next'])
})

test('a request that waits leaves its place in the scheduler to others', async t => {
  const { ask, ...all } = setUp()
  const room = { innermost: 9, outermost: 9, all: 9 }
  const scheduler = createScheduler(
    { networkShares: [0], peer: 0, burst: 0, overShare: 1, overShareBudget: 1_000, slots: 1, waiting: room },
    noHashing,
  )
  const take = (name: string) => scheduler.take({ networks: [name], cost: 1, deadline: endless.deadline }, endless)
  const first = await all.first()
  const turn = await take('a')
  const other = take('b')
  t.like(scheduler.stats(), { waiting: 1, running: 1, shed: 0 })
  const waiting = ask('waiting', '192.0.2.1', false, { turn })
  const others = await other
  t.is(scheduler.stats().running, 1)
  first[Symbol.dispose]()
  await waiting
  t.is(scheduler.stats().running, 2)
  others[Symbol.dispose]()
  turn[Symbol.dispose]()
})

test.serial('50 requests begin at once, then 2 a second for each core, times the factor', async t => {
  let now = 0
  const clock = mock.method(performance, 'now', () => now)
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => {
    clock.mock.restore()
    mock.timers.reset()
  })
  const pass = async (ms: number) => {
    for (let passed = 0; passed < ms; passed++) {
      now++
      mock.timers.tick(1)
      await settle()
    }
  }
  for (const factor of [1, 5]) {
    const { begun, ask } = setUp(factor)
    const all = Array.from({ length: 52 }, () => ask('a', '192.0.2.1'))
    for (let times = 0; times < 1_000; times++) await settle()
    t.is(begun.length, 50)
    const each = Math.ceil(1_000 / (2 * availableParallelism() * factor))
    await pass(each - 5)
    t.is(begun.length, 50)
    await pass(10)
    t.is(begun.length, 51)
    await pass(each - 10)
    t.is(begun.length, 51)
    await pass(10)
    t.is(begun.length, 52)
    await Promise.all(all)
  }
})
