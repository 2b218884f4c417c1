/** When requests start, in a simulated event loop. */

import { mock } from 'node:test'
import test from 'ava'
import fc from 'fast-check'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createScheduler, type Scheduler, type SchedulerLimits } from '../../server/limits/scheduler.js'
import type { Turn } from '../../server/requests/call.js'
import { Refusal } from '../../server/requests/refusal.js'

/** An event loop that a test controls: timers, turns of the loop, and clocks. */
interface Simulation {
  /** Milliseconds since it began. */
  readonly now: number
  /** Runs what waits for promises that are settled. */
  flush(): Promise<void>
  /** Ends a turn of the event loop: runs the callbacks of `setImmediate` so far. */
  turn(): Promise<void>
  /** Ends turns until none has a callback to run. */
  settle(): Promise<void>
  /** Lets time pass, and runs timers and turns. */
  pass(ms: number): Promise<void>
  /** Lets time pass in which the thread is busy: no timer runs. */
  block(ms: number): void
  /** Timers that are set. */
  readonly timers: number
}

/** Runs code that waits for nothing else in a simulated event loop. */
async function simulate(run: (loop: Simulation) => Promise<void>): Promise<void> {
  const start = Date.now()
  let now = 0
  let immediates: (() => void)[] = []
  let timers: { at: number; run: () => void }[] = []
  const flush = async () => {
    for (let ticks = 0; ticks < 8; ticks++) await undefined
  }
  const turn = async () => {
    const due = immediates
    immediates = []
    for (const each of due) each()
    await flush()
  }
  const settle = async () => {
    await flush()
    while (immediates.length > 0) await turn()
  }
  const mocks = [
    mock.method(performance, 'now', () => now),
    mock.method(Date, 'now', () => start + now),
    mock.method(
      globalThis,
      'setImmediate',
      ((run: () => void) => void immediates.push(run)) as unknown as typeof setImmediate,
    ),
    mock.method(globalThis, 'setTimeout', ((run: () => void, ms: number) => {
      const timer = { at: now + Math.max(1, Math.trunc(ms)), run }
      timers.push(timer)
      return timer
    }) as unknown as typeof setTimeout),
    mock.method(globalThis, 'clearTimeout', ((timer: object) => {
      timers = timers.filter(each => each !== timer)
    }) as unknown as typeof clearTimeout),
  ]
  try {
    await run({
      get now() {
        return now
      },
      flush,
      turn,
      settle,
      async pass(ms) {
        const end = now + ms
        for (;;) {
          const next = timers.reduce<number>((first, { at }) => Math.min(first, at), end)
          now = Math.max(now, next)
          const due = timers.filter(({ at }) => at <= now)
          timers = timers.filter(({ at }) => at > now)
          for (const each of due) each.run()
          await flush()
          await turn()
          if (due.length === 0 && now >= end) break
        }
        await settle()
      },
      block(ms) {
        now += ms
      },
      get timers() {
        return timers.length
      },
    })
  } finally {
    for (const each of mocks) each.mock.restore()
  }
}

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
    else taken.then(turn => this.begin(turn)).catch(({ reason }: Refusal) => (this.why = Reason[reason]))
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
function simulated(
  run: (setting: {
    loop: Simulation
    submit: (networks: readonly string[], cost?: number, deadline?: number, onBegin?: (job: Job) => void) => Job
    scheduler: Scheduler
  }) => Promise<void>,
  limits = usual,
  isHashing = () => false,
): Promise<void> {
  return simulate(loop => {
    const scheduler = createScheduler(limits, isHashing, cores)
    return run({ loop, scheduler, submit: (...given) => new Job(scheduler, ...given) })
  })
}

test.serial(
  'a request starts at once, regardless of waiting ones, while each of its networks has a share left: 0.35, 1 and 1.6% of all cores, with a burst of 0.5 s',
  async t => {
    await simulated(
      async ({ loop, scheduler, submit }) => {
        // The maximum is in progress and waits.
        for (let index = 0; index < 5_000; index++) submit([`flood ${index % 20}`, `floods ${index % 10}`], 20)
        const { running, waiting } = scheduler.stats()
        t.is(waiting, 2_000)
        t.true(running > 0)
        const ask = (networks: readonly string[]) => {
          const job = submit(networks, 0.5)
          job.end()
          return job.begun
        }
        const askTimes = (times: number, networks: readonly string[]) => {
          let begun = 0
          for (let each = 0; each < times; each++) begun += ask(networks)
          return begun
        }
        // 3.5 ms for an address, 10 for its /24.
        t.deepEqual(
          [1, 2, 3, 4].map(host => askTimes(50, ipv4(host))),
          [7, 7, 6, 0],
        )
        t.is(askTimes(50, ipv4(4, 1)), 7)
        // 3.5 ms for a /64, 10 for its /56, 16 for its /48.
        t.deepEqual(
          [1, 2, 3, 4].map(subnet => askTimes(50, ipv6(subnet))),
          [7, 7, 6, 0],
        )
        t.deepEqual(
          [1, 2, 3].map(subnet => askTimes(50, ipv6(subnet, 1))),
          [7, 5, 0],
        )
        t.is(askTimes(50, ipv6(1, 1, 1)), 7)
        // A service or a trusted proxy: 2.5%.
        t.is(askTimes(100, ['service books']), 50)
        // 7 ms return in a second, half a millisecond in 71.5 ms.
        loop.block(71)
        t.is(ask(ipv4(1)), 0)
        loop.block(1)
        t.is(ask(ipv4(1)), 1)
        t.is(ask(ipv4(1)), 0)
        loop.block(1_000)
        t.is(askTimes(50, ['service books']), 50)
      },
      usual,
      () => true,
    )
  },
)

test.serial('requests of a network beyond its share don’t reduce the shares of its outer networks', async t => {
  await simulated(async ({ submit }) => {
    for (let times = 0; times < 5_000; times++) submit(ipv4(1), 2)
    const begun = [2, 3, 4].map(host => submit(ipv4(host), 3).begun)
    t.deepEqual(begun, [1, 1, 0])
  })
})

test.serial(
  'places are conserved and never exceed the limits, and every waiting request starts or is shed, in any order of arrivals, departures, suspensions and resumptions',
  async t => {
    const limits: SchedulerLimits = {
      ...usual,
      networkShares: [0.001, 0.002, 0.003],
      peer: 0.001,
      burst: 1,
      slots: 4,
      waiting: { innermost: 4, outermost: 6, all: 10 },
    }
    const networks = fc.oneof(
      fc.constantFrom(...[0, 1, 2].map(host => ipv4(host))),
      fc.constantFrom(...[0, 1, 2].map(host => ipv4(host, 1))),
      fc.constantFrom(...[0, 1, 2].map(subnet => ipv6(subnet))),
      fc.constant(['service']),
    )
    const index = fc.nat({ max: 1_000 })
    const command = fc.oneof(
      {
        weight: 6,
        arbitrary: fc.record({
          kind: fc.constant('submit' as const),
          networks,
          cost: fc.double({ min: 0.05, max: 6, noNaN: true }),
          patience: fc.integer({ min: 50, max: 2_000 }),
          endsAtOnce: fc.boolean(),
        }),
      },
      { weight: 4, arbitrary: fc.record({ kind: fc.constant('end' as const), index }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('leave' as const), index }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('return' as const), index }) },
      { weight: 1, arbitrary: fc.record({ kind: fc.constant('abort' as const), index }) },
      { weight: 1, arbitrary: fc.record({ kind: fc.constant('hash' as const) }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('pass' as const), ms: fc.integer({ min: 0, max: 150 }) }) },
      { weight: 2, arbitrary: fc.record({ kind: fc.constant('settle' as const) }) },
    )
    const property = fc.asyncProperty(fc.array(command, { maxLength: 200, size: 'max' }), async commands => {
      let hashing = false
      await simulated(
        async ({ loop, scheduler, submit }) => {
          const jobs: Job[] = []
          const ended = new Set<Job>()
          const away = new Set<Job>()
          const inPlace = () => jobs.filter(job => job.begun > 0 && !ended.has(job) && !away.has(job))
          const waiting = () => jobs.filter(job => job.begun === 0 && !job.why && !ended.has(job))
          const pick = (index: number, from: Job[]) => from[index % Math.max(1, from.length)]
          const begin = (endsAtOnce: boolean) => (job: Job) => {
            if (ended.has(job) || job.why || job.begun > 1) throw new Error('one began that was gone')
            if (job.deadline <= Date.now()) throw new Error('one began after its deadline')
            if (scheduler.stats().running > limits.slots) throw new Error('there was no place')
            if (!endsAtOnce) return
            ended.add(job)
            job.end()
          }
          for (const command of commands) {
            if (command.kind === 'submit') {
              const { networks, cost, patience, endsAtOnce } = command
              jobs.push(submit(networks, cost, Date.now() + patience, begin(endsAtOnce)))
            } else if (command.kind === 'end') {
              const job = pick(command.index, [...inPlace(), ...away])
              if (job) {
                ended.add(job)
                away.delete(job)
                job.end()
                // Twice is once.
                job.end()
              }
            } else if (command.kind === 'leave') {
              const job = pick(command.index, inPlace())
              if (job) {
                away.add(job)
                job.pause()
              }
            } else if (command.kind === 'return') {
              const job = pick(command.index, [...away])
              if (job) {
                away.delete(job)
                job.resume()
              }
            } else if (command.kind === 'abort') {
              const job = pick(command.index, waiting())
              if (job) {
                ended.add(job)
                job.end()
              }
            } else if (command.kind === 'hash') {
              hashing = !hashing
              // Until then it isn't notified.
              await loop.pass(100)
            } else if (command.kind === 'pass') await loop.pass(command.ms)
            else {
              await loop.settle()
              // Half of the places are for any request. Each waiting one has a timer for its deadline.
              const hasTimer = hashing && loop.timers > waiting().length
              if (waiting().length > 0 && inPlace().length < limits.slots / 2 && !hasTimer)
                throw new Error('one waits for nothing')
            }
            await loop.flush()
            const { running, waiting: inLine, shed } = scheduler.stats()
            const expected = [inPlace().length, waiting().length, jobs.filter(job => job.why && !ended.has(job)).length]
            if (`${running} ${inLine} ${shed}` !== expected.join(' '))
              throw new Error(`${running} ${inLine} ${shed} instead of ${expected.join(' ')}`)
          }
          for (let times = 0; times < 30; times++) {
            for (const job of [...inPlace(), ...away]) {
              ended.add(job)
              job.end()
            }
            away.clear()
            await loop.pass(100)
          }
          t.is(scheduler.stats().waiting, 0)
          t.is(scheduler.stats().running, 0)
          await loop.pass(200)
          t.is(loop.timers, 0)
        },
        limits,
        () => hashing,
      )
    })
    await fc.assert(property, { numRuns: 100 })
  },
)

test.serial('a request that waits is shed at its deadline, not sooner and not much later', async t => {
  await simulated(
    async ({ loop, submit, scheduler }) => {
      const first = submit(['a'])
      t.is(first.begun, 1)
      const waiting = submit(['a'], 1, Date.now() + 15_000)
      const patient = submit(['b'])
      await loop.pass(14_999)
      t.is(waiting.why, undefined)
      await loop.pass(101)
      t.is(waiting.why, 'DEADLINE_EXCEEDED')
      t.is(waiting.begun, 0)
      t.is(scheduler.stats().shed, 1)
      first.end()
      await loop.flush()
      t.deepEqual([waiting.begun, patient.begun], [0, 1])
    },
    { ...overShareOnly, slots: 1 },
  )
})

test.serial(
  'a request whose deadline passes while the thread is busy is shed, not started, and the next one starts',
  async t => {
    await simulated(
      async ({ loop, submit }) => {
        const first = submit(['a'])
        const waiting = submit(['a'], 1, Date.now() + 50)
        const next = submit(['a'])
        loop.block(51)
        first.end()
        await loop.flush()
        t.deepEqual([waiting.why, waiting.begun, next.begun], ['DEADLINE_EXCEEDED', 0, 1])
      },
      { ...overShareOnly, slots: 1 },
    )
  },
)

test.serial(
  'while threads hash, requests beyond their shares start at 2.5% of all cores’ time and take half of the places',
  async t => {
    const costs = fc.array(fc.double({ min: 0.05, max: 3, noNaN: true }), { minLength: 20, maxLength: 20 })
    const property = fc.asyncProperty(costs, fc.integer({ min: 0, max: 10_000 }), async (costs, idle) => {
      await simulated(
        async ({ loop, submit, scheduler }) => {
          // Unused time doesn't accumulate.
          await loop.pass(idle)
          let spent = 0
          const most = 3
          const feed = () => {
            while (scheduler.stats().waiting < 20) {
              const cost = costs[Math.floor(spent * 7) % costs.length]!
              submit(['a'], cost, never, job => {
                spent += job.cost
                job.end()
              })
            }
          }
          for (let ms = 0; ms < 3_000; ms++) {
            feed()
            await loop.pass(1)
            const due = (ms + 1) * 0.025 * cores
            if (spent > due + usual.overShareBudget + 1e-6) throw new Error(`${spent} of ${due} after ${ms} ms`)
            // It waits until the next one fits in, 20 ms at least.
            if (spent < due - most - 2 - 20 * 0.025 * cores) throw new Error(`only ${spent} of ${due} after ${ms} ms`)
          }
        },
        overShareOnly,
        () => true,
      )
    })
    await fc.assert(property, { numRuns: 20 })
    await simulated(
      async ({ loop, submit, scheduler }) => {
        for (let index = 0; index < 100; index++) submit([`${index}`], 0.01)
        await loop.pass(1_000)
        t.is(scheduler.stats().running, 16)
      },
      overShareOnly,
      () => true,
    )
  },
)

test.serial('a request that costs more than may start at once while threads hash starts as well', async t => {
  await simulated(
    async ({ loop, submit }) => {
      submit(['a'], 4)
      const dear = submit(['a'], 50)
      await loop.pass(75)
      t.is(dear.begun, 0)
      await loop.pass(25)
      t.is(dear.begun, 1)
    },
    overShareOnly,
    () => true,
  )
})

test.serial(
  'while no thread hashes, requests beyond their shares start in half of the places, up to 4 ms of cost per turn of the event loop',
  async t => {
    await simulated(async ({ loop, submit, scheduler }) => {
      let begun = 0
      for (let index = 0; index < 200; index++)
        submit(['a'], 0.5, never, job => {
          begun++
          job.end()
        })
      t.is(begun, 8)
      for (let turns = 2; turns <= 25; turns++) {
        await loop.turn()
        t.is(begun, 8 * turns)
      }
      t.is(scheduler.stats().waiting, 0)
      t.is(loop.now, 0)
    }, overShareOnly)
    await simulated(async ({ loop, submit, scheduler }) => {
      for (let index = 0; index < 200; index++) submit(['a'], 0.01)
      await loop.pass(500)
      t.is(scheduler.stats().running, 16)
    }, overShareOnly)
  },
)

test.serial('a free place starts the next request, even while a timer is set for it', async t => {
  let hashing = true
  await simulated(
    async ({ loop, submit }) => {
      const first = submit(['a'], 4)
      const next = submit(['a'], 4)
      t.deepEqual([first.begun, next.begun], [1, 0])
      t.true(loop.timers > 0)
      hashing = false
      first.end()
      await loop.turn()
      t.is(next.begun, 1)
    },
    overShareOnly,
    () => hashing,
  )
})

test.serial('when the request that a timer is set for leaves, a free place starts the next one', async t => {
  await simulated(
    async ({ loop, submit }) => {
      const first = submit(['a'], 3.9)
      const dear = submit(['a'], 3)
      const next = submit(['a'], 0.05)
      dear.end()
      t.is(next.begun, 0)
      first.end()
      await loop.flush()
      t.is(next.begun, 1)
      await loop.pass(1_000)
      t.is(dear.begun, 0)
    },
    overShareOnly,
    () => true,
  )
})

test.serial('a cheap request doesn’t overtake an expensive one of the same network', async t => {
  await simulated(
    async ({ loop, submit }) => {
      submit(['a'], 4)
      const dear = submit(['a'], 3)
      await loop.pass(20)
      const cheap = submit(['a'], 0.05)
      t.deepEqual([dear.begun, cheap.begun], [0, 0])
      await loop.pass(75)
      t.deepEqual([dear.begun, cheap.begun], [1, 1])
    },
    overShareOnly,
    () => true,
  )
})

test.serial(
  'requests within their shares wait for a free place, networks in turn, ahead of requests beyond their shares',
  async t => {
    await simulated(async ({ loop, submit, scheduler }) => {
      const order: string[] = []
      const over = Array.from({ length: 30 }, () => submit(['service h'], 200))
      for (let turns = 0; turns < 30; turns++) await loop.turn()
      const within = Array.from({ length: 16 }, (_, index) => submit([`service ${index}`], 1))
      t.is(scheduler.stats().running, 32)
      for (const name of ['a', 'a', 'a', 'b']) submit([`service ${name}`], 1, never, () => order.push(name))
      t.is(scheduler.stats().waiting, 18)
      for (const job of [...within.slice(0, 3), ...over.slice(0, 1)]) job.end()
      await loop.turn()
      t.deepEqual(order, ['a', 'b', 'a', 'a'])
      t.is(over.filter(({ begun }) => begun).length, 16)
    })
  },
)

test.serial(
  'networks that wait take turns, and when too many wait the newest of the longest line is refused',
  async t => {
    await simulated(
      async ({ loop, submit, scheduler }) => {
        const order: string[] = []
        const ask = (name: string, networks: readonly string[]) =>
          submit(networks, 1, never, job => {
            order.push(name)
            job.end()
          })
        submit(['first'], 4)
        const flood = Array.from({ length: 4 }, () => ask('a', ipv4(1)))
        const beyond = ask('a', ipv4(1))
        await loop.flush()
        t.deepEqual([beyond.why, beyond.begun], ['OVERLOADED', 0])
        const neighbours = [ask('b', ipv4(2)), ask('b', ipv4(2))]
        // The /24 has no share left.
        const late = ask('c', ipv4(3))
        await loop.flush()
        t.is(late.why, undefined)
        t.deepEqual(
          flood.map(({ why }) => why),
          [undefined, undefined, undefined, 'OVERLOADED'],
        )
        const others = [ask('d', ipv4(1, 1)), ask('d', ipv4(1, 1)), ask('d', ipv4(1, 1))]
        await loop.flush()
        t.is(scheduler.stats().shed, 3)
        t.is(flood[2]!.why, 'OVERLOADED')
        await loop.pass(10)
        t.is(order.join(''), 'adbdcdab')
        t.is([...neighbours, late, ...others].filter(({ why }) => why).length, 0)
        t.is(scheduler.stats().waiting, 0)
      },
      { ...overShareOnly, waiting: { innermost: 4, outermost: 6, all: 8 } },
    )
  },
)

test.serial(
  'a paused turn frees its place, and gets one again when it goes on, for any outcome of its wait',
  async t => {
    const scheduler = createScheduler({ ...overShareOnly, slots: 1 }, () => false, cores)
    const [first, second] = [new Job(scheduler, ['a']), new Job(scheduler, ['b'])]
    t.deepEqual([first.begun, second.begun], [1, 0])
    let fail = () => {}
    const failed = first.turn!.pause(() => new Promise((_, reject) => (fail = () => reject(new Error('no')))))
    await Promise.resolve()
    t.is(second.begun, 1)
    t.is(scheduler.stats().running, 1)
    fail()
    await t.throwsAsync(failed, { message: 'no' })
    t.is(scheduler.stats().running, 2)
    first.end()
    second.end()
    // An ended request has no place to release.
    t.is(await first.turn!.pause(async () => 'done'), 'done')
    t.is(scheduler.stats().running, 0)
  },
)

test.serial(
  'a request whose caller leaves while it waits is refused and frees its place in the line, and one that has its turn keeps it until it ends',
  async t => {
    await simulated(
      async ({ loop, submit, scheduler }) => {
        const [first, leaving, next] = [submit(['a']), submit(['b']), submit(['c'])]
        leaving.end()
        await loop.flush()
        t.deepEqual([leaving.why, leaving.begun], ['DEADLINE_EXCEEDED', 0])
        // It isn't a refusal for lack of room.
        t.deepEqual(scheduler.stats(), { waiting: 1, running: 1, shed: 0 })
        first.leave()
        await loop.flush()
        t.deepEqual(scheduler.stats(), { waiting: 1, running: 1, shed: 0 })
        first.end()
        await loop.flush()
        t.is(next.begun, 1)
        const gone = new AbortController()
        gone.abort()
        const late = scheduler.take({ networks: ['d'], cost: 1, deadline: never }, gone)
        await t.throwsAsync(async () => late, { message: new Refusal(Reason.DEADLINE_EXCEEDED).message })
      },
      { ...overShareOnly, slots: 1 },
    )
  },
)

test.serial('an open scheduler delays nothing', async t => {
  await simulated(
    async ({ loop, submit, scheduler }) => {
      const all = Array.from({ length: 100 }, (_, index) => submit([`${index}`], 10))
      t.true(all.some(({ begun }) => begun === 0))
      scheduler.open()
      await loop.flush()
      t.true(all.every(({ begun }) => begun === 1))
      t.is(submit(['another'], 10).begun, 1)
    },
    overShareOnly,
    () => true,
  )
})
