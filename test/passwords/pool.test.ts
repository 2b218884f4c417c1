import { mock } from 'node:test'
import test from 'ava'
import bcrypt from 'bcrypt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createPool, type Pool, type PoolOptions, type Waiter } from '../../server/passwords/pool.js'
import type { HashJob } from '../../server/passwords/threads.js'
import { Refusal } from '../../server/requests/refusal.js'

const quick: HashJob = { kind: 'hash', text: 'x', cost: 4 }
/** Takes about 12 ms. */
const slow: HashJob = { kind: 'hash', text: 'x', cost: 8 }
/** Takes about 800 ms. */
const long: HashJob = { kind: 'hash', text: 'x', cost: 14 }

const pools: Pool[] = []
function create(options: Partial<PoolOptions> = {}): Pool {
  // Even on a busy machine no job is refused for lack of time, unless a test expects it.
  const pool = createPool({ cost: 4, count: 1, maxWaitMs: 2 ** 30, ...options })
  pools.push(pool)
  return pool
}
test.after.always(() => Promise.all(pools.map(pool => pool.close())))

const turn = (account = 'a', more: Partial<Waiter> = {}): Waiter => ({
  kind: 'other',
  networks: [account],
  account,
  deadline: Number.POSITIVE_INFINITY,
  ...more,
})
const reasonOf = (promise: Promise<unknown>) =>
  promise.then(
    () => 'done',
    error => (error instanceof Refusal ? error.reason : error),
  )
test.serial('the pool hashes and compares', async t => {
  const pool = create({ count: 2 })
  const [hash] = await pool.run([{ kind: 'hash', text: 'secret', cost: 5 } as const], turn())
  t.true(hash?.startsWith('$2b$05$'))
  const compare = (text: string | Uint8Array, stored = hash) =>
    ({ kind: 'compare', text, hash: stored, cost: 5 }) as const
  const nothing = { ...compare('secret'), hash: undefined }
  t.deepEqual(await pool.run([compare('secret'), compare(Buffer.from('secret')), compare('Secret'), nothing], turn()), [
    true,
    true,
    false,
    false,
  ])
})

test.serial('networks take turns, and the jobs of each keep their order', async t => {
  const pool = create()
  const order: string[] = []
  const run = (account: string, name: string) => pool.run([quick], turn(account)).then(() => order.push(name))
  const busy = pool.run([slow], turn('busy'))
  await Promise.all([
    busy,
    ...['a1', 'a2', 'a3', 'a4'].map(name => run('a', name)),
    ...['b1', 'b2'].map(name => run('b', name)),
    run('c', 'c1'),
  ])
  t.deepEqual(order, ['a1', 'b1', 'c1', 'a2', 'b2', 'a3', 'a4'])
})

test.serial(
  'no more jobs wait than the threads can do in the time that one may wait, and others are refused at once with seconds to wait',
  async t => {
    // Before the first result, a job of cost 8 is assumed to take 15.36 ms.
    const pool = create({ cost: 8, maxWaitMs: 160 })
    const jobs = Array.from({ length: 20 }, (_, index) => pool.run([slow], turn(`${index}`)))
    t.is(pool.stats().waiting, 10)
    t.is(pool.stats().shed, 9)
    const refusal = await t.throwsAsync<Refusal>(jobs.at(-1)!, { instanceOf: Refusal })
    t.is(refusal.reason, Reason.OVERLOADED)
    t.true(Number(refusal.more.retryAfter) >= 1)
    await Promise.allSettled(jobs)
  },
)

test.serial('the queue of one account doesn’t block another', async t => {
  const pool = create({ cost: 8, limit: 1_000 })
  await pool.run([slow], turn())
  const crowd = Array.from({ length: 1_001 }, () => reasonOf(pool.run([slow], turn('crowd'))))
  t.is(await reasonOf(pool.run([slow], turn('crowd'))), Reason.OVERLOADED)
  t.is(await reasonOf(pool.run([slow], turn('other'))), 'done')
  t.true(pool.stats().waiting > 500)
  await pool.close()
  await Promise.all(crowd)
})

test.serial('no job waits longer than the pool allows, however late its deadline', async t => {
  const pool = create({ cost: 8, maxWaitMs: 20 })
  const first = pool.run([long], turn('a'))
  t.is(await reasonOf(pool.run([slow], turn('b'))), Reason.OVERLOADED)
  t.is((await first).length, 1)
})

test.serial('jobs that arrive together and time out are refused at different times', async t => {
  // The time of quick jobs depends on the machine. All of them have room.
  const warmUp = async (pool: Pool) => {
    for (let times = 0; times < 16; times++) await pool.run([quick], turn())
    return pool
  }
  const before = await warmUp(create())
  const pool = await warmUp(create({ maxWaitMs: 200 + 30 * before.stats().averageMs }))
  const first = pool.run([long], turn('a'))
  const refused: number[] = []
  const come = Array.from({ length: 9 }, async (_, index) => {
    t.is(await reasonOf(pool.run([quick], turn(`b${index}`))), Reason.OVERLOADED)
    refused.push(index)
  })
  t.is(pool.stats().waiting, 9)
  await Promise.all(come)
  t.notDeepEqual(
    refused,
    refused.toSorted((a, b) => a - b),
  )
  t.is(pool.stats().running, 1)
  await first
})

test.serial('a job whose deadline passes in the queue is refused then, not later', async t => {
  const pool = create()
  await pool.run([quick], turn())
  const ahead = pool.run([long], turn('a'))
  const wait = 400 + 4 * pool.stats().averageMs
  const late = reasonOf(pool.run([quick], turn('b', { deadline: Date.now() + wait })))
  t.is(pool.stats().waiting, 1)
  t.is(await late, Reason.OVERLOADED)
  t.is(pool.stats().running, 1)
  await ahead
})

test.serial('a job whose deadline has already passed is refused as such', async t => {
  const pool = create()
  t.is(await reasonOf(pool.run([quick], turn('a', { deadline: Date.now() - 1 }))), Reason.DEADLINE_EXCEEDED)
  t.is(pool.stats().shed, 0)
})

test.serial('jobs of callers that disconnected leave the queue', async t => {
  let started = 0
  const pool = create({ onWait: () => started++ })
  const gone = new AbortController()
  const running = pool.run([slow], turn('a', { signal: gone.signal }))
  const waiting = pool.run([quick], turn('b', { signal: gone.signal }))
  const staying = pool.run([quick], turn('c'))
  t.is(pool.stats().waiting, 2)
  gone.abort()
  t.deepEqual(await Promise.all([reasonOf(running), reasonOf(waiting)]), [
    Reason.DEADLINE_EXCEEDED,
    Reason.DEADLINE_EXCEEDED,
  ])
  t.is(pool.stats().waiting, 1)
  t.is(pool.stats().running, 1)
  await staying
  t.is(started, 2)
  t.is(await reasonOf(pool.run([quick], turn('d', { signal: gone.signal }))), Reason.DEADLINE_EXCEEDED)
})

test.serial('a full queue refuses at once', async t => {
  const pool = create({ limit: 3 })
  const jobs = ['a', 'b', 'c', 'd'].map(account => reasonOf(pool.run([slow], turn(account))))
  t.is(pool.stats().waiting, 3)
  t.is(await reasonOf(pool.run([quick], turn('e'))), Reason.OVERLOADED)
  t.deepEqual(await Promise.all(jobs), ['done', 'done', 'done', 'done'])
})

test.serial('in a full queue the account with the most jobs loses one', async t => {
  const pool = create({ limit: 3 })
  const crowd = Array.from({ length: 4 }, () => reasonOf(pool.run([slow], turn('crowd'))))
  t.is(await reasonOf(pool.run([quick], turn('other'))), 'done')
  t.deepEqual(await Promise.all(crowd), ['done', 'done', 'done', Reason.OVERLOADED])
})

test.serial('jobs given together are refused together', async t => {
  const pool = create({ limit: 3 })
  const busy = pool.run([slow], turn('busy'))
  const first = reasonOf(pool.run([quick, quick], turn('a')))
  t.is(await reasonOf(pool.run([quick, quick], turn('b'))), Reason.OVERLOADED)
  t.is(pool.stats().waiting, 2)
  t.is(await first, 'done')
  await busy
})

test.serial('a check for room occupies none', async t => {
  const pool = create({ cost: 8, limit: 9 })
  const crowd = Array.from({ length: 10 }, () => pool.run([slow], turn('crowd')))
  for (const _ of [1, 2]) {
    const refusal = t.throws<Refusal>(() => pool.check(turn('crowd')), { instanceOf: Refusal })
    t.is(refusal?.reason, Reason.OVERLOADED)
    t.notThrows(() => pool.check(turn('other')))
    t.is(pool.stats().waiting, 9)
  }
  await Promise.all(crowd)
})

test.serial('a sign-in at a known address precedes unknown ones', async t => {
  const pool = create()
  const order: string[] = []
  const busy = pool.run([slow], turn('busy'))
  const unknowns = Array.from({ length: 5 }, (_, index) =>
    pool.run([quick], turn(`unknown ${index}`)).then(() => order.push('unknown')),
  )
  const owner = pool.run([quick], turn('owner', { kind: 'known' })).then(() => order.push('owner'))
  await Promise.all([busy, ...unknowns, owner])
  t.is(order[0], 'owner')
})

test.serial('a low-priority job runs when nothing else waits, and doesn’t count as running', async t => {
  const pool = create()
  const alone = pool.whenIdle(quick)
  t.is(pool.stats().running, 0)
  await alone
  const order: string[] = []
  const busy = pool.run([slow], turn('busy'))
  t.is(pool.stats().running, 1)
  const later = pool.whenIdle(quick).then(() => order.push('later'))
  const now = pool.run([quick], turn('a')).then(() => order.push('now'))
  await Promise.all([busy, later, now])
  t.deepEqual(order, ['now', 'later'])
})

test.serial(
  'the pool is busy while it runs jobs that callers wait for, and for a tenth of a second afterwards',
  async t => {
    let now = 0
    const clock = mock.method(performance, 'now', () => now)
    t.teardown(() => clock.mock.restore())
    const pool = create()
    t.false(pool.isBusy())
    const job = pool.run([quick], turn())
    t.true(pool.isBusy())
    await job
    now = 99
    t.true(pool.isBusy())
    now = 100
    t.false(pool.isBusy())
    const later = pool.whenIdle(quick)
    t.false(pool.isBusy())
    await later
    t.false(pool.isBusy())
  },
)

test.serial('a thread that dies fails only its own job', async t => {
  const faults: unknown[] = []
  const pool = create({ onFault: error => faults.push(error) })
  // bcrypt throws on a value that isn't a string.
  const bad = { kind: 'hash', text: undefined, cost: 4 } as unknown as HashJob
  const [broken, next] = [reasonOf(pool.run([bad], turn('a'))), reasonOf(pool.run([quick], turn('b')))]
  t.deepEqual(await Promise.all([broken, next]), [Reason.INTERNAL, 'done'])
  t.is(faults.length, 1)
})

/** Milliseconds of processor time of this process, independent of other load. */
function processorMs(): number {
  const { user, system } = process.cpuUsage()
  return (user + system) / 1000
}

test.serial('every mismatch takes the same work, also for cheaper hashes and without a hash', async t => {
  const pool = create({ cost: 10 })
  const weak = bcrypt.hashSync('secret', 6)
  const equal = bcrypt.hashSync('secret', 10)
  const least = new Map<string | undefined, number>()
  // In turns, and by the cheapest of each, because this thread also uses processor time.
  for (let round = 0; round < 6; round++) {
    for (const hash of [equal, undefined, weak]) {
      const before = processorMs()
      t.deepEqual(await pool.run([{ kind: 'compare', text: 'wrong', hash, cost: 10 }], turn()), [false])
      least.set(hash, Math.min(least.get(hash) ?? Number.POSITIVE_INFINITY, processorMs() - before))
    }
  }
  for (const hash of [undefined, weak]) {
    const ratio = least.get(hash)! / least.get(equal)!
    // Without the comparison it would be near 0, with the weak one alone 0.06.
    t.true(ratio > 0.6 && ratio < 1.6, `${ratio}`)
  }
})

test.serial('the pool reports waits', async t => {
  const waits: number[] = []
  const pool = create({ onWait: ms => waits.push(ms) })
  await pool.run([quick], turn())
  await Promise.all([pool.run([{ ...slow, cost: 10 }], turn()), pool.run([quick], turn())])
  t.is(waits.length, 3)
  t.true((waits[2] ?? 0) > 20)
})

test.serial('closing refuses waiting and new jobs', async t => {
  const pool = create()
  const jobs = [reasonOf(pool.run([slow], turn('a'))), reasonOf(pool.run([slow], turn('b')))]
  await pool.close()
  t.deepEqual(await Promise.all(jobs), [Reason.UNAVAILABLE, Reason.UNAVAILABLE])
  t.is(await reasonOf(pool.run([quick], turn('c'))), Reason.UNAVAILABLE)
  t.is(await pool.whenIdle(quick), undefined)
})

test.serial('starting the pool doesn’t block the event loop', t => {
  const before = processorMs()
  create({ count: 2 })
  const took = processorMs() - before
  t.log(`${took.toFixed(1)} ms`)
  t.true(took < 100)
})
