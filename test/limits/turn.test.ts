/** Calls that wait for their turn. */
import test, { type ExecutionContext } from 'ava'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createScheduler, type SchedulerLimits } from '../../server/limits/scheduler.js'
import { Turn } from '../../server/limits/turn.js'
import type { Refusal } from '../../server/requests/refusal.js'

/** One turn at a time; two may wait for a network, three in all. */
const limits: SchedulerLimits = {
  networkShares: [0],
  peer: 0,
  burst: 0,
  overShare: 0,
  overShareBudget: 1_000,
  slots: 1,
  waiting: { innermost: 2, outermost: 2, all: 3 },
}

const patient = { signal: new AbortController().signal }

function setUp(t: ExecutionContext) {
  const scheduler = createScheduler(limits, () => false)
  t.teardown(scheduler.open)
  const turn = (network: string, deadline = Number.POSITIVE_INFINITY) => new Turn(scheduler, [network], 1, deadline)
  return { scheduler, turn }
}

const reasonOf = (taken: Promise<void> | undefined) =>
  Promise.resolve(taken).then(
    () => 'begun',
    ({ reason, more }: Refusal) => `${Reason[reason]} ${more.retryAfter}`,
  )

test('a call starts at once if possible, and otherwise when the previous one ends', async t => {
  const { scheduler, turn } = setUp(t)
  const [first, second] = [turn('a'), turn('a')]
  t.is(first.take(patient), undefined)
  let begun = false
  const taken = second.take(patient)?.then(() => (begun = true))
  await Promise.resolve()
  t.false(begun)
  first[Symbol.dispose]()
  await taken
  t.true(begun)
  second[Symbol.dispose]()
  t.deepEqual(scheduler.stats(), { waiting: 0, running: 0, shed: 0 })
})

test('a call is refused with OVERLOADED when too many wait, also one that has waited', async t => {
  const { turn } = setUp(t)
  void turn('a').take(patient)
  const waiting = [turn('a'), turn('a')].map(each => reasonOf(each.take(patient)))
  const beyond = t.throws(() => turn('a').take(patient)) as Refusal
  t.deepEqual([Reason[beyond.reason], beyond.more.retryAfter], ['OVERLOADED', 1])
  for (const network of ['b', 'c']) void turn(network).take(patient)
  t.is(await waiting[1], 'OVERLOADED 1')
})

test('a call whose deadline passes or whose caller leaves is refused with DEADLINE_EXCEEDED, and frees its turn', async t => {
  const { scheduler, turn } = setUp(t)
  const first = turn('a')
  void first.take(patient)
  const leaving = new AbortController()
  const gone = reasonOf(turn('b').take(leaving))
  const late = reasonOf(turn('c', Date.now() + 20).take(patient))
  leaving.abort()
  t.is(await gone, 'DEADLINE_EXCEEDED 1')
  t.is(await reasonOf(turn('b').take(leaving)), 'DEADLINE_EXCEEDED 1')
  t.is(await late, 'DEADLINE_EXCEEDED 1')
  const next = turn('b')
  const begun = reasonOf(next.take(patient))
  t.deepEqual(scheduler.stats(), { waiting: 1, running: 1, shed: 1 })
  first[Symbol.dispose]()
  t.is(await begun, 'begun')
  next[Symbol.dispose]()
  t.is(scheduler.stats().running, 0)
})

test('a started call whose caller leaves keeps its turn until it ends', async t => {
  const { scheduler, turn } = setUp(t)
  const [first, second] = [turn('a'), turn('a')]
  void first.take(patient)
  const leaving = new AbortController()
  const begun = reasonOf(second.take(leaving))
  first[Symbol.dispose]()
  t.is(await begun, 'begun')
  leaving.abort()
  t.is(scheduler.stats().running, 1)
  second[Symbol.dispose]()
  t.is(scheduler.stats().running, 0)
})
