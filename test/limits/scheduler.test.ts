/** When requests start, in a simulated event loop. */

import { mock } from 'node:test'
import ava from 'ava'
import fc from 'fast-check'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import {
  createScheduler,
  type Hashing,
  noHashing,
  type Scheduler,
  type SchedulerLimits,
} from '../../server/limits/scheduler.js'
import type { Turn } from '../../server/requests/call.js'
import { Refusal } from '../../server/requests/refusal.js'

/** An event loop that a test controls: timers, turns of the loop, and clocks. */
function simulateLoop() {
  const start = Date.now()
  let now = 0
  let immediates: (() => void)[] = []
  const timers = new Set<{ at: number; run: () => void }>()
  const realImmediate = setImmediate
  /** Runs what waits for promises that are settled, however long the chain. */
  const flush = () => new Promise<void>(resolve => realImmediate(resolve))
  /** Ends a turn of the event loop: runs the callbacks of `setImmediate` so far. */
  async function turn() {
    const due = immediates
    immediates = []
    for (const each of due) each()
    await flush()
  }
  async function settle() {
    await flush()
    while (immediates.length > 0) await turn()
  }
  const queue = (run: () => void) => void immediates.push(run)
  const setTimer = (run: () => void, ms: number) => {
    const timer = { at: now + Math.max(1, Math.trunc(ms)), run }
    timers.add(timer)
    return timer
  }
  mock.method(performance, 'now', () => now)
  mock.method(Date, 'now', () => start + now)
  mock.method(globalThis, 'setImmediate', queue as unknown as typeof setImmediate)
  mock.method(globalThis, 'setTimeout', setTimer as unknown as typeof setTimeout)
  mock.method(globalThis, 'clearTimeout', timers.delete.bind(timers) as unknown as typeof clearTimeout)
  return {
    flush,
    turn,
    settle,
    now: () => now,
    timers: () => timers.size,
    /** Lets time pass in which the thread is busy: no timer runs. */
    block: (ms: number) => (now += ms),
    /** Lets time pass, and runs timers and turns. */
    async pass(ms: number) {
      const end = now + ms
      await flush()
      for (;;) {
        const next = Math.min(end, ...Array.from(timers, ({ at }) => at))
        now = Math.max(now, next)
        const due = [...timers].filter(({ at }) => at <= now)
        // One that ran before may have cleared it.
        for (const each of due) if (timers.delete(each)) each.run()
        await flush()
        await turn()
        if (due.length === 0 && now >= end) break
      }
      await settle()
    },
    /** Also frees the calls that the mocks recorded. */
    [Symbol.dispose]: () => mock.reset(),
  }
}

// Its tests replace the clocks and timers of the process.
const test = ava.serial

const cores = 2

/** The options of a service. */
const usual: SchedulerLimits = {
  networkShares: [0.0035, 0.01, 0.016],
  peer: 0.025,
  burst: 0.5,
  overShare: 0.025,
  overShareBudget: 4,
  slots: 32,
  waiting: { innermost: 256, outermost: 512, all: 2_000 },
}

/** The same without shares, so that every request is beyond them. */
const overShareOnly: SchedulerLimits = { ...usual, burst: 0 }

const never = Number.POSITIVE_INFINITY

/** A request, which holds its turn until it ends. */
class Job {
  begun = 0
  why: string | undefined
  turn: Turn | undefined
  resume = () => {}
  private readonly leaving = new AbortController()
  constructor(
    scheduler: Scheduler,
    readonly networks: readonly string[],
    readonly cost = 1,
    readonly deadline = never,
    private readonly onBegin: (job: Job) => void = () => {},
  ) {
    const taken = scheduler.take({ networks, cost, deadline }, this.leaving)
    if (!('then' in taken)) this.begin(taken)
    else
      taken.then(
        turn => this.begin(turn),
        ({ reason }: Refusal) => (this.why = Reason[reason]),
      )
  }
  private begin(turn: Turn): void {
    this.turn = turn
    this.begun++
    this.onBegin(this)
  }
  /** Ends it; one that waits leaves. */
  end(): void {
    if (this.turn) this.turn[Symbol.dispose]()
    else this.leave()
  }
  leave(): void {
    this.leaving.abort()
  }
  pause(): void {
    void this.turn!.pause(() => new Promise<void>(resolve => (this.resume = resolve)))
  }
}

const ipv4 = (host: number, net = 0) => [`10.0.${net}.${host}`, `10.0.${net}.0/24`]
const ipv6 = (subnet: number, middle = 0, site = 0) => [
  `${site}:${middle}:${subnet}/64`,
  `${site}:${middle}/56`,
  `${site}/48`,
]

/** A scheduler in a simulated event loop. */
function simulated(limits = usual, isHashing = () => false, more: Partial<Hashing> = {}) {
  const loop = simulateLoop()
  const scheduler = createScheduler(limits, { ...noHashing, isBusy: isHashing, ...more }, cores)
  const submit = (networks: readonly string[], cost?: number, deadline?: number, onBegin?: (job: Job) => void) =>
    new Job(scheduler, networks, cost, deadline, onBegin)
  return { loop, scheduler, submit, [Symbol.dispose]: loop[Symbol.dispose] }
}
const whileHashing = () => true

test('a request starts at once while each of its networks has a share left: 0.35, 1 and 1.6% of all cores, with a burst of 0.5 s', async t => {
  using simulation = simulated(usual, whileHashing)
  const { loop, scheduler, submit } = simulation
  // The maximum is in progress and waits.
  for (let index = 0; index < 5_000; index++) submit([`flood ${index % 20}`, `floods ${index % 10}`], 20)
  t.is(scheduler.stats().waiting, 2_000)
  t.true(scheduler.stats().running > 0)
  const ask = (times: number, networks: readonly string[]) => {
    let begun = 0
    for (let each = 0; each < times; each++) {
      const job = submit(networks, 0.5)
      job.end()
      begun += job.begun
    }
    return begun
  }
  // 3.5 ms for an address, 10 for its /24; 3.5 ms for a /64, 10 for its /56, 16 for its /48.
  const addresses = [...[1, 2, 3, 4].map(host => ipv4(host)), ipv4(4, 1)]
  const subnets = [
    ...[1, 2, 3, 4].map(subnet => ipv6(subnet)),
    ...[1, 2, 3].map(subnet => ipv6(subnet, 1)),
    ipv6(1, 1, 1),
  ]
  const begun = [...addresses, ...subnets].map(networks => ask(50, networks))
  t.deepEqual(begun, [7, 7, 6, 0, 7, 7, 7, 6, 0, 7, 5, 0, 7])
  // A service or a trusted proxy: 2.5%.
  t.is(ask(100, ['service books']), 50)
  // 7 ms return in a second, half a millisecond in 71.5 ms.
  loop.block(71)
  t.is(ask(1, ipv4(1)), 0)
  loop.block(1)
  t.is(ask(2, ipv4(1)), 1)
  loop.block(1_000)
  t.is(ask(50, ['service books']), 50)
})

test('requests of a network beyond its share don’t reduce the shares of its outer networks', async t => {
  using simulation = simulated()
  for (let times = 0; times < 5_000; times++) simulation.submit(ipv4(1), 2)
  const begun = [2, 3, 4].map(host => simulation.submit(ipv4(host), 3).begun)
  t.deepEqual(begun, [1, 1, 0])
})

test('places are conserved and within the limits, and every waiting request starts or is shed, whatever arrives, leaves, pauses and resumes', async t => {
  const limits: SchedulerLimits = {
    ...usual,
    networkShares: [0.001, 0.002, 0.003],
    peer: 0.001,
    burst: 1,
    slots: 4,
    waiting: { innermost: 4, outermost: 6, all: 10 },
  }
  const three = [0, 1, 2]
  const networks = fc.constantFrom(
    ...three.flatMap(each => [ipv4(each), ipv4(each, 1), ipv6(each)]),
    ['service'],
    ['service'],
    ['service'],
  )
  const submission = fc.record({
    kind: fc.constant('submit' as const),
    networks,
    cost: fc.double({ min: 0.05, max: 6, noNaN: true }),
    patience: fc.integer({ min: 50, max: 2_000 }),
    endsAtOnce: fc.boolean(),
  })
  const kinds = ['end', 'end', 'leave', 'return', 'abort', 'hash', 'pass', 'settle'] as const
  const other = fc.record({ kind: fc.constantFrom(...kinds), index: fc.nat({ max: 1_000 }) })
  const command = fc.oneof({ weight: 6, arbitrary: submission }, { weight: 14, arbitrary: other })
  const property = fc.asyncProperty(fc.array(command, { maxLength: 200, size: 'max' }), async commands => {
    let hashing = false
    using simulation = simulated(limits, () => hashing)
    const { loop, scheduler, submit } = simulation
    const jobs: Job[] = []
    const [ended, away] = [new Set<Job>(), new Set<Job>()]
    const inPlace = () => jobs.filter(job => job.begun > 0 && !ended.has(job) && !away.has(job))
    const waiting = () => jobs.filter(job => job.begun === 0 && !job.why && !ended.has(job))
    const end = (job: Job) => {
      ended.add(job)
      away.delete(job)
      job.end()
      // Twice is once.
      job.end()
      // What it paused for may end later.
      job.resume()
    }
    const wrong: string[] = []
    const begin = (endsAtOnce: boolean) => (job: Job) => {
      if (ended.has(job) || job.why || job.begun > 1) wrong.push('one began that was gone')
      if (job.deadline <= Date.now()) wrong.push('one began after its deadline')
      if (scheduler.stats().running > limits.slots) wrong.push('there was no place')
      if (endsAtOnce) end(job)
    }
    for (const command of commands) {
      const pick = (from: Job[]) => ('index' in command ? from[command.index % Math.max(1, from.length)] : undefined)
      let job: Job | undefined
      switch (command.kind) {
        case 'submit': {
          const { networks, cost, patience, endsAtOnce } = command
          jobs.push(submit(networks, cost, Date.now() + patience, begin(endsAtOnce)))
          break
        }
        case 'end':
        case 'abort':
          job = pick(command.kind === 'end' ? [...inPlace(), ...away] : waiting())
          if (job) end(job)
          break
        case 'leave':
          job = pick(inPlace())
          if (job) away.add(job)
          job?.pause()
          break
        case 'return':
          job = pick([...away])
          if (job) away.delete(job)
          job?.resume()
          break
        case 'hash':
          hashing = !hashing
          // Until then it isn't notified.
          await loop.pass(100)
          break
        case 'pass':
          await loop.pass(command.index % 151)
          break
        case 'settle':
          await loop.settle()
          // Half of the places are for any request. Each waiting one has a timer for its deadline.
          if (
            waiting().length > 0 &&
            inPlace().length < limits.slots / 2 &&
            !(hashing && loop.timers() > waiting().length)
          )
            wrong.push('one waits for nothing')
      }
      await loop.flush()
      t.deepEqual(wrong, [])
      const shed = jobs.filter(job => job.why && !ended.has(job)).length
      t.like(scheduler.stats(), { running: inPlace().length, waiting: waiting().length, shed })
    }
    for (let times = 0; times < 30; times++) {
      for (const job of [...inPlace(), ...away]) end(job)
      await loop.pass(100)
    }
    t.like(scheduler.stats(), { waiting: 0, running: 0 })
    t.deepEqual(wrong, [])
    await loop.pass(200)
    t.is(loop.timers(), 0)
  })
  await fc.assert(property, { numRuns: 100 })
})

test('a request that waits is shed when it can’t be done before its deadline, not sooner and not much later', async t => {
  using simulation = simulated({ ...overShareOnly, slots: 1 })
  const { loop, scheduler, submit } = simulation
  const first = submit(['a'])
  const waiting = submit(['a'], 1, Date.now() + 15_000)
  const patient = submit(['b'])
  // It costs 1 ms.
  await loop.pass(14_998)
  t.deepEqual([first.begun, waiting.why], [1, undefined])
  await loop.pass(102)
  t.deepEqual([waiting.why, scheduler.stats().shed], ['DEADLINE_EXCEEDED', 1])
  // While the thread is busy: it is shed, not started, and the next one starts.
  const late = submit(['b'], 1, Date.now() + 50)
  patient.leave()
  const next = submit(['b'])
  loop.block(51)
  first.end()
  await loop.flush()
  t.deepEqual([late.why, late.begun, waiting.begun, next.begun], ['DEADLINE_EXCEEDED', 0, 0, 1])
})

test('while threads hash, requests beyond their shares start at 2.5% of all cores’ time', async t => {
  const costs = fc.array(fc.double({ min: 0.05, max: 3, noNaN: true }), { minLength: 20, maxLength: 20 })
  const property = fc.asyncProperty(costs, fc.integer({ min: 0, max: 10_000 }), async (costs, idle) => {
    using simulation = simulated(overShareOnly, whileHashing)
    const { loop, scheduler, submit } = simulation
    // Unused time doesn't accumulate.
    await loop.pass(idle)
    let spent = 0
    const most = 3
    const begin = (job: Job) => {
      spent += job.cost
      job.end()
    }
    for (let ms = 0; ms < 3_000; ms++) {
      while (scheduler.stats().waiting < 20) submit(['a'], costs[Math.floor(spent * 7) % costs.length]!, never, begin)
      await loop.pass(1)
      const due = (ms + 1) * 0.025 * cores
      if (spent > due + usual.overShareBudget + 1e-6) throw new Error(`${spent} of ${due} after ${ms} ms`)
      // It waits until the next one fits in, 20 ms at least.
      if (spent < due - most - 2 - 20 * 0.025 * cores) throw new Error(`only ${spent} of ${due} after ${ms} ms`)
    }
  })
  await fc.assert(property, { numRuns: 20 })
  t.pass()
})

test('requests beyond their shares take half of the places, whether threads hash or not', async t => {
  for (const isHashing of [whileHashing, () => false]) {
    using simulation = simulated(overShareOnly, isHashing)
    for (let index = 0; index < 200; index++) simulation.submit([`${index}`], 0.01)
    await simulation.loop.pass(1_000)
    t.is(simulation.scheduler.stats().running, 16)
  }
})

test('a request that costs more than may start at once while threads hash starts as well', async t => {
  using simulation = simulated(overShareOnly, whileHashing)
  const { loop, submit } = simulation
  submit(['a'], 4)
  const dear = submit(['a'], 50)
  await loop.pass(75)
  t.is(dear.begun, 0)
  await loop.pass(25)
  t.is(dear.begun, 1)
})

test('while no thread hashes, requests beyond their shares start up to 4 ms of cost per turn of the event loop', async t => {
  using simulation = simulated(overShareOnly)
  const { loop, scheduler, submit } = simulation
  let begun = 0
  for (let index = 0; index < 200; index++)
    submit(['a'], 0.5, never, job => {
      begun++
      job.end()
    })
  for (let turns = 1; turns <= 25; turns++) {
    t.is(begun, 8 * turns)
    await loop.turn()
  }
  t.deepEqual([scheduler.stats().waiting, loop.now()], [0, 0])
})

test('while no thread hashes, each turn of the event loop begins with the full 4 ms, however little of them the last one took', async t => {
  using simulation = simulated(overShareOnly)
  const { loop, submit } = simulation
  for (let turns = 0; turns < 10; turns++) {
    const jobs = [1.5, 2.5, 0.1].map(cost => submit(['a'], cost, never, job => job.end()))
    t.deepEqual(
      jobs.map(({ begun }) => begun),
      [1, 1, 0],
    )
    // The last one takes its cost from the next turn, and ends in it.
    await loop.turn()
    await loop.turn()
  }
  submit(['a'], 3)
  await loop.turn()
  t.is(submit(['a'], 3).begun, 1)
})

test('as soon as a hash thread is idle, requests beyond their shares start', async t => {
  let [busy, onIdle] = [true, () => {}]
  using simulation = simulated(overShareOnly, () => busy, { watchIdle: listener => (onIdle = listener) })
  const { loop, submit } = simulation
  const jobs = Array.from({ length: 3 }, () => submit(['a'], 4))
  await loop.pass(1)
  t.deepEqual(
    jobs.map(({ begun }) => begun),
    [1, 0, 0],
  )
  busy = false
  onIdle()
  await loop.settle()
  t.deepEqual([...jobs.map(({ begun }) => begun), loop.now()], [1, 1, 1, 1])
})

test('a request that can’t be done before its deadline takes no turn, when it arrives or after a wait', async t => {
  using simulation = simulated({ ...usual, slots: 1 }, undefined, { needed: () => 500 })
  const { loop, scheduler, submit } = simulation
  const take = (left: number, hashes: boolean) =>
    scheduler.take({ networks: ['b'], cost: 10, deadline: Date.now() + left, hashes }, new AbortController())
  for (const [left, hashes] of [
    [10, false],
    [500, true],
  ] as const) {
    const refusal = await t.throwsAsync<Refusal>(async () => take(left, hashes))
    t.is(refusal?.reason, Reason.DEADLINE_EXCEEDED)
    const turn = await take(left + 1, hashes)
    turn[Symbol.dispose]()
  }
  const first = submit(['a'])
  const waiting = [take(700, true), take(700, false)].map(taken =>
    Promise.resolve(taken).then(
      () => 'turn',
      ({ reason }: Refusal) => Reason[reason],
    ),
  )
  await loop.pass(300)
  first.end()
  t.deepEqual(await Promise.all(waiting), ['DEADLINE_EXCEEDED', 'turn'])
})

test('what a request turns out to need is charged to the shares of its networks, and beyond them to the common budget', async t => {
  using simulation = simulated(usual, whileHashing)
  const { loop, scheduler, submit } = simulation
  const first = submit(ipv4(1), 1)
  first.turn!.charge(9.5)
  first.end()
  t.is(scheduler.stats().charged, 10.5)
  // Its /24 had 10 ms, another one's burst is full.
  const [beyond, other] = [submit(ipv4(2), 4), submit(ipv4(1, 1), 1)]
  t.deepEqual([beyond.begun, other.begun], [1, 1])
  beyond.turn!.charge(50)
  beyond.end()
  const next = submit(ipv4(3), 1)
  await loop.pass(900)
  t.is(next.begun, 0)
  await loop.pass(200)
  t.is(next.begun, 1)
})

test('a free place starts the next request, even while a timer is set for it, and when that request leaves', async t => {
  let hashing = true
  {
    using simulation = simulated(overShareOnly, () => hashing)
    const { loop, submit } = simulation
    const [first, next] = [submit(['a'], 4), submit(['a'], 4)]
    t.deepEqual([first.begun, next.begun], [1, 0])
    t.true(loop.timers() > 0)
    hashing = false
    first.end()
    await loop.turn()
    t.is(next.begun, 1)
  }
  using simulation = simulated(overShareOnly, whileHashing)
  const { loop, submit } = simulation
  const [first, dear, next] = [submit(['a'], 3.9), submit(['a'], 3), submit(['a'], 0.05)]
  dear.end()
  t.is(next.begun, 0)
  first.end()
  await loop.flush()
  t.is(next.begun, 1)
  await loop.pass(1_000)
  t.is(dear.begun, 0)
})

test('a cheap request doesn’t overtake an expensive one of the same network', async t => {
  using simulation = simulated(overShareOnly, whileHashing)
  const { loop, submit } = simulation
  submit(['a'], 4)
  const dear = submit(['a'], 3)
  await loop.pass(20)
  const cheap = submit(['a'], 0.05)
  t.deepEqual([dear.begun, cheap.begun], [0, 0])
  await loop.pass(75)
  t.deepEqual([dear.begun, cheap.begun], [1, 1])
})

test('requests within their shares wait for a free place, networks in turn, ahead of requests beyond their shares', async t => {
  using simulation = simulated()
  const { loop, scheduler, submit } = simulation
  const order: string[] = []
  const over = Array.from({ length: 30 }, () => submit(['service h'], 200))
  for (let turns = 0; turns < 30; turns++) await loop.turn()
  const within = Array.from({ length: 16 }, (_, index) => submit([`service ${index}`], 1))
  t.is(scheduler.stats().running, 32)
  for (const name of ['a', 'a', 'a', 'b']) submit([`service ${name}`], 1, never, () => order.push(name))
  t.is(scheduler.stats().waiting, 18)
  for (const job of [...within.slice(0, 3), over[0]!]) job.end()
  await loop.turn()
  t.deepEqual(order, ['a', 'b', 'a', 'a'])
  t.is(over.filter(({ begun }) => begun).length, 16)
})

test('networks that wait take turns, and when too many wait the newest of the longest line is refused', async t => {
  using simulation = simulated({ ...overShareOnly, waiting: { innermost: 4, outermost: 6, all: 8 } })
  const { loop, scheduler, submit } = simulation
  const order: string[] = []
  const ask = (name: string, networks: readonly string[]) =>
    submit(networks, 1, never, job => {
      order.push(name)
      job.end()
    })
  submit(['first'], 4)
  const refused = async (jobs: Job[]) => {
    await loop.flush()
    return jobs.map(({ why }) => why ?? '')
  }
  const flood = Array.from({ length: 5 }, () => ask('a', ipv4(1)))
  t.deepEqual(await refused(flood), ['', '', '', '', 'OVERLOADED'])
  // The last one’s /24 has no share left.
  const others = [ask('b', ipv4(2)), ask('b', ipv4(2)), ask('c', ipv4(3))]
  t.deepEqual(await refused(flood), ['', '', '', 'OVERLOADED', 'OVERLOADED'])
  for (const _ of [1, 2, 3]) others.push(ask('d', ipv4(1, 1)))
  t.deepEqual(await refused(flood), ['', '', 'OVERLOADED', 'OVERLOADED', 'OVERLOADED'])
  t.deepEqual(await refused(others), Array(6).fill(''))
  await loop.pass(10)
  t.is(order.join(''), 'adbdcdab')
  t.like(scheduler.stats(), { waiting: 0, shed: 3 })
})

test('a paused turn frees its place, and gets one again when it goes on, for any outcome of its wait', async t => {
  const scheduler = createScheduler({ ...overShareOnly, slots: 1 }, noHashing, cores)
  const [first, second] = [new Job(scheduler, ['a']), new Job(scheduler, ['b'])]
  t.deepEqual([first.begun, second.begun], [1, 0])
  let fail = () => {}
  const failed = first.turn!.pause(() => new Promise((_, reject) => (fail = () => reject(new Error('no')))))
  await Promise.resolve()
  t.deepEqual([second.begun, scheduler.stats().running], [1, 1])
  fail()
  await t.throwsAsync(failed, { message: 'no' })
  t.is(scheduler.stats().running, 2)
  for (const job of [first, second]) job.end()
  // An ended request has no place to release.
  t.is(await first.turn!.pause(async () => 'done'), 'done')
  t.is(scheduler.stats().running, 0)
})

test('a request whose caller leaves while it waits is refused and leaves the line, and one that has its turn keeps it', async t => {
  using simulation = simulated({ ...overShareOnly, slots: 1 })
  const { loop, scheduler, submit } = simulation
  const [first, leaving, next] = [submit(['a']), submit(['b']), submit(['c'])]
  // It isn't a refusal for lack of room.
  for (const job of [leaving, first]) {
    job.leave()
    await loop.flush()
    t.like(scheduler.stats(), { waiting: 1, running: 1, shed: 0 })
  }
  t.deepEqual([leaving.why, leaving.begun], ['DEADLINE_EXCEEDED', 0])
  first.end()
  await loop.flush()
  t.is(next.begun, 1)
  const late = scheduler.take({ networks: ['d'], cost: 1, deadline: never }, { signal: AbortSignal.abort() })
  await t.throwsAsync(async () => late, { message: new Refusal(Reason.DEADLINE_EXCEEDED).message })
})

test('an open scheduler delays nothing', async t => {
  using simulation = simulated(overShareOnly, whileHashing)
  const { loop, scheduler, submit } = simulation
  const all = Array.from({ length: 100 }, (_, index) => submit([`${index}`], 10))
  t.true(all.some(({ begun }) => begun === 0))
  scheduler.open()
  await loop.flush()
  t.true(all.every(({ begun }) => begun === 1))
  t.is(submit(['another'], 10).begun, 1)
})
