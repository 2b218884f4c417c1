import ava from 'ava'
import bcrypt from 'bcrypt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createDataKeys } from '../../server/models/data-key.js'
import { createPasswords } from '../../server/passwords/hash.js'
import {
  createJobQueue,
  createPool,
  entryOf,
  type JobOrigin,
  type Pool,
  type PoolOptions,
  type QueuedJob,
  type Waiter,
} from '../../server/passwords/pool.js'
import type { HashJob } from '../../server/passwords/threads.js'
import { networksOf } from '../../server/requests/client-address.js'
import { Refusal } from '../../server/requests/refusal.js'

const test = ava.serial

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
ava.after.always(() => Promise.all(pools.map(pool => pool.close())))

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
test('the pool hashes and compares', async t => {
  const pool = create({ count: 2 })
  const [hash] = await pool.run([{ kind: 'hash', text: 'secret', cost: 5 } as const], turn())
  t.true(hash?.startsWith('$2b$05$'))
  const compare = (text: string | Uint8Array, stored = hash) =>
    ({ kind: 'compare', text, hash: stored, cost: 5 }) as const
  const nothing = { ...compare('secret'), hash: undefined }
  t.deepEqual(await pool.run([compare('secret'), compare(Buffer.from('secret')), compare('Secret'), nothing], turn()), [
    ...[true, true, false, false],
  ])
})

test('networks take turns, and the jobs of each keep their order', async t => {
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

test('no more jobs wait than the threads can do in time, and others are refused at once with seconds to wait', async t => {
  // Before the first result, a job of cost 8 is assumed to take 15.36 ms.
  const pool = create({ cost: 8, maxWaitMs: 160 })
  const jobs = Array.from({ length: 20 }, (_, index) => pool.run([slow], turn(`${index}`)))
  t.like(pool.stats(), { waiting: 10, shed: 9 })
  const refusal = await t.throwsAsync<Refusal>(jobs.at(-1)!, { instanceOf: Refusal })
  t.is(refusal.reason, Reason.OVERLOADED)
  t.true(Number(refusal.more.retryAfter) >= 1)
  await Promise.allSettled(jobs)
})

test('no job waits longer than the pool allows, however late its deadline', async t => {
  const pool = create({ cost: 8, maxWaitMs: 20 })
  const first = pool.run([long], turn('a'))
  t.is(await reasonOf(pool.run([slow], turn('b'))), Reason.OVERLOADED)
  t.is((await first).length, 1)
})

test('jobs that arrive together and time out are refused at different times', async t => {
  // The time of quick jobs depends on the machine. All of them have room.
  const warmUp = async (pool: Pool) => {
    for (let times = 0; times < 16; times++) await pool.run([quick], turn())
    return pool
  }
  const before = await warmUp(create())
  const pool = await warmUp(create({ maxWaitMs: 200 + 30 * before.stats().averageMs }))
  // 3 s: longer than all others wait, also where a busy machine made quick jobs seem slow.
  const first = pool.run([{ ...long, cost: 16 }], turn('a'))
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

test('a job that can’t end before its deadline is refused while the caller still waits, but begins if a thread is idle', async t => {
  // Before the first result, a job of cost 16 is assumed to take 3.9 s.
  const pool = create({ cost: 16 })
  const hurried = () => turn('b', { deadline: Date.now() + 3_500 })
  t.is(await reasonOf(pool.run([quick], hurried())), 'done')
  const ahead = pool.run([long], turn('a'))
  t.is(await reasonOf(pool.run([quick], hurried())), Reason.OVERLOADED)
  t.like(pool.stats(), { running: 1, waiting: 0, shed: 1 })
  t.is(await reasonOf(pool.run([quick], turn('b', { deadline: Date.now() + 60_000 }))), 'done')
  await ahead
})

test('a job waits as long as it can end before its deadline, and one that is too late is refused as such', async t => {
  const pool = create()
  t.is(await reasonOf(pool.run([quick], turn('a', { deadline: Date.now() - 1 }))), Reason.DEADLINE_EXCEEDED)
  await pool.run([quick], turn())
  const ahead = pool.run([long], turn('a'))
  const wait = 400 + 4 * pool.stats().averageMs
  const late = reasonOf(pool.run([quick], turn('b', { deadline: Date.now() + wait })))
  t.like(pool.stats(), { waiting: 1, shed: 0 })
  t.is(await late, Reason.OVERLOADED)
  t.is(pool.stats().running, 1)
  await ahead
})

test('jobs of callers that disconnected leave the queue', async t => {
  let started = 0
  const pool = create({ onWait: () => started++ })
  const gone = new AbortController()
  const running = pool.run([slow], turn('a', { signal: gone.signal }))
  const waiting = pool.run([quick], turn('b', { signal: gone.signal }))
  const staying = pool.run([quick], turn('c'))
  t.is(pool.stats().waiting, 2)
  gone.abort()
  const refused = [Reason.DEADLINE_EXCEEDED, Reason.DEADLINE_EXCEEDED]
  t.deepEqual(await Promise.all([reasonOf(running), reasonOf(waiting)]), refused)
  t.like(pool.stats(), { waiting: 1, running: 1 })
  await staying
  t.is(started, 2)
  t.is(await reasonOf(pool.run([quick], turn('d', { signal: gone.signal }))), Reason.DEADLINE_EXCEEDED)
})

test('in a full queue the account with the most jobs loses one, and if all have as many the new job is refused', async t => {
  const pool = create({ limit: 3 })
  const crowd = Array.from({ length: 4 }, () => reasonOf(pool.run([slow], turn('crowd'))))
  t.is(await reasonOf(pool.run([quick], turn('other'))), 'done')
  t.deepEqual(await Promise.all(crowd), ['done', 'done', 'done', Reason.OVERLOADED])
  const jobs = ['a', 'b', 'c', 'd'].map(account => reasonOf(pool.run([slow], turn(account))))
  t.is(await reasonOf(pool.run([quick], turn('e'))), Reason.OVERLOADED)
  t.deepEqual(await Promise.all(jobs), ['done', 'done', 'done', 'done'])
})

test('jobs given together are refused together', async t => {
  const pool = create({ limit: 3 })
  const busy = pool.run([slow], turn('busy'))
  const first = reasonOf(pool.run([quick, quick], turn('a')))
  t.is(await reasonOf(pool.run([quick, quick], turn('b'))), Reason.OVERLOADED)
  t.is(pool.stats().waiting, 2)
  t.is(await first, 'done')
  await busy
})

test('a check for room occupies none', async t => {
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

test('a check refuses a job that those before it keep from ending in time, while there is room', async t => {
  const pool = create()
  await pool.run([slow], turn())
  const crowd = Array.from({ length: 9 }, () => pool.run([slow], turn('crowd')))
  const { averageMs } = pool.stats()
  const by = (jobs: number) => turn('crowd', { deadline: Date.now() + 100 + jobs * averageMs })
  t.is(t.throws<Refusal>(() => pool.check(by(3)), { instanceOf: Refusal })?.reason, Reason.OVERLOADED)
  t.notThrows(() => pool.check(by(99)))
  await Promise.all(crowd)
})

test('a low-priority job runs when nothing else waits, and doesn’t count as running', async t => {
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

test('the pool is busy while every thread runs a job that a caller waits for, and reports an idle thread', async t => {
  const pool = create({ count: 2 })
  let idle = 0
  pool.watchIdle(() => idle++)
  const busy = [pool.isBusy()]
  const first = pool.run([slow], turn('a'))
  busy.push(pool.isBusy())
  const second = pool.run([quick], turn('b'))
  busy.push(pool.isBusy())
  const before = idle
  await second
  busy.push(pool.isBusy())
  t.true(idle > before)
  await first
  await pool.whenIdle(quick)
  busy.push(pool.isBusy())
  t.deepEqual(busy, [false, false, true, false, false])
})

test('a thread that dies fails only its own job', async t => {
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

test('every mismatch takes the same work, also for cheaper hashes and without a hash', async t => {
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

test('closing refuses waiting and new jobs', async t => {
  const pool = create()
  const jobs = [reasonOf(pool.run([slow], turn('a'))), reasonOf(pool.run([slow], turn('b')))]
  await pool.close()
  t.deepEqual(await Promise.all(jobs), [Reason.UNAVAILABLE, Reason.UNAVAILABLE])
  t.is(await reasonOf(pool.run([quick], turn('c'))), Reason.UNAVAILABLE)
  t.is(await pool.whenIdle(quick), undefined)
})

// The order in which jobs wait. limits/fair-queue.test.ts has the rules of all fair queues.

interface Job extends QueuedJob {
  readonly place: JobOrigin
  readonly name: string
}
const jobOf = (place: JobOrigin, name = ''): Job => ({ ...entryOf(place), place, name })

const at = (kind: JobOrigin['kind'], address: string, account = 'a'): JobOrigin => ({
  kind,
  networks: networksOf(address),
  account,
})
const known = (account: string) => at('known', '192.0.2.1', account)
const admin = (address = '192.0.2.2', account = 'admin') => at('administration', address, account)
const other = (address: string, account = 'a') => at('other', address, account)

/** A queue, whose room can be lessened. */
function queueOf(recentCount?: (network: string) => number) {
  let room = Number.POSITIVE_INFINITY
  return Object.assign(
    createJobQueue<Job>(() => room, recentCount),
    { limit: (size: number) => (room = size) },
  )
}
type Queue = ReturnType<typeof queueOf>
const add = (queue: Queue, place: JobOrigin, name: string, times = 1) => {
  for (let i = 0; i < times; i++) queue.add(jobOf(place, name))
}

/** The names of the next jobs, by default of all. */
function take(queue: Queue, count = Number.POSITIVE_INFINITY): string[] {
  const names: string[] = []
  while (names.length < count) {
    const job = queue.take()
    if (!job) break
    names.push(job.name)
  }
  return names
}
const times = (names: readonly string[], name: string) => names.filter(each => each === name).length

test('of ten turns, nine go to known sign-ins while any wait', t => {
  for (const before of [0, 1, 4, 9, 30, -1, -4, -9, -30]) {
    const queue = queueOf()
    add(queue, before > 0 ? known('a') : other('198.51.100.1'), 'before', Math.abs(before))
    take(queue)
    for (let i = 0; i < 100; i++) {
      add(queue, known(`${i}`), 'known')
      add(queue, other(`198.51.${i}.1`), 'other')
    }
    const names = take(queue, 60)
    for (let start = 0; start <= 50; start++) t.is(times(names.slice(start, start + 10), 'known'), 9)
  }
})

test('of ten turns without known sign-ins, one goes to Administration while one of its jobs waits', t => {
  const queue = queueOf(() => 100)
  for (let i = 0; i < 30; i++) add(queue, other('198.51.100.1', `${i}`), 'other')
  take(queue, 20)
  add(queue, admin(), 'admin', 30)
  add(queue, other('203.0.113.1'), 'other', 200)
  const names = take(queue, 60)
  for (let start = 0; start <= 50; start++) t.is(times(names.slice(start, start + 10), 'admin'), 1)
  // A single sign-in after a pause doesn't wait for the tenth turn.
  take(queue)
  add(queue, other('198.51.100.1'), 'other', 100)
  take(queue, 30)
  add(queue, admin(), 'admin')
  t.true(take(queue, 2).includes('admin'))
})

test('forty accounts that know an address take no more turns from others than one, and 300 at the address precede their next ones', t => {
  const queue = queueOf(network => (network.startsWith('192.0.2.') ? 1000 : 0))
  const people = (name: string, count: number) => {
    for (let i = 0; i < count; i++) add(queue, known(`${name} ${i}`), name)
  }
  for (let round = 0; round < 20; round++) people('flood', 40)
  take(queue, 100)
  add(queue, at('known', '203.0.113.1', 'owner'), 'elsewhere', 20)
  add(queue, at('known', '2001:db8::1', 'owner'), 'too', 20)
  const names = take(queue, 30)
  t.deepEqual([times(names, 'flood'), times(names, 'elsewhere'), times(names, 'too')], [10, 10, 10])
  take(queue, 60 - 30)
  people('crowd', 300)
  t.is(times(take(queue, 340), 'crowd'), 300)
  // The accounts with the most jobs leave first.
  people('crowd', 300)
  queue.limit(queue.size)
  for (let i = 0; i < 40; i++) t.is(queue.add(jobOf(known(`late ${i}`)))?.name, 'flood')
})

test('accounts take turns among known sign-ins, and within a network', t => {
  for (const place of [known, (account: string) => other('192.0.2.1', account)]) {
    const queue = queueOf()
    for (const name of ['a0', 'a1', 'a2', 'b0']) add(queue, place(name[0]!), name)
    t.deepEqual(take(queue), ['a0', 'b0', 'a1', 'a2'])
  }
})

test('the /56s of a /48 get equal turns, and so do the addresses of a /24', t => {
  for (const [one, two] of [
    [['2001:db8:0:100::1'], ['2001:db8:0:200::1', '2001:db8:0:201::1', '2001:db8:0:202::1']],
    [['192.0.2.1'], ['192.0.2.2']],
  ] as const) {
    const queue = queueOf()
    for (let i = 0; i < 30; i++) {
      for (const address of two) add(queue, other(address, `${i}`), 'two')
      add(queue, other(one[0]), 'one')
    }
    t.is(times(take(queue, 20), 'one'), 10)
  }
})

test('of ten turns, nine go to the networks with the fewest failures, one to the others in turn, and none gets a lead by it', t => {
  const used: Record<string, number> = { '198.51.100.0/24': 100, '192.0.2.0/24': 30 }
  const queue = queueOf(network => used[network] ?? 0)
  for (const [address, name] of [
    ['198.51.100.1', 'flood'],
    ['192.0.2.1', 'office'],
    ['203.0.113.1', 'home'],
  ] as const)
    add(queue, other(address), name, 200)
  const names = take(queue, 100)
  t.deepEqual([times(names, 'flood'), times(names, 'office')], [5, 5])
  // After the turn of one of them.
  add(queue, other('203.0.114.1'), 'newcomer', 50)
  const next = take(queue, 40)
  t.deepEqual([times(next, 'newcomer'), times(next, 'home')], [18, 18])
})

test('a network with slightly more failures has the same rank, but one without any goes first', t => {
  const used: Record<string, number> = { '192.0.2.1': 4, '192.0.2.2': 3, '198.51.100.1': 1, '198.51.100.2': 0.9 }
  for (const pair of [
    ['192.0.2.1', '192.0.2.2'],
    ['198.51.100.1', '198.51.100.2'],
  ]) {
    const queue = queueOf(network => used[network] ?? 0)
    for (const address of pair) add(queue, other(address), address, 10)
    t.is(times(take(queue, 10), pair[0]!), 5)
  }
  const queue = queueOf(network => (network === '198.51.100.0/24' ? 1 : 0))
  for (const address of ['198.51.100.1', '203.0.113.1']) add(queue, other(address), address, 10)
  t.is(times(take(queue, 10), '203.0.113.1'), 9)
})

test('during a flood from a /48 a new network waits for a few jobs, and isn’t refused for lack of room', t => {
  for (const used of [0, 1000]) {
    const queue = queueOf(network => (network.startsWith('2001:db8') ? used : 0))
    for (let i = 0; i < 900; i++) add(queue, other(`2001:db8:0:${i.toString(16)}::1`, `${i}`), 'flood')
    take(queue, 300)
    for (const place of [other('203.0.113.1'), other('2001:db8:1::1'), known('a'), admin()]) {
      queue.limit(queue.size)
      t.true(queue.hasRoom(jobOf(place)), place.kind)
      queue.limit(Number.POSITIVE_INFINITY)
      add(queue, place, 'newcomer')
      t.true(take(queue, 4).includes('newcomer'))
      take(queue, 20)
    }
  }
})

test('the newest job of the longest line is evicted, or the new job itself if all lines are equally long', t => {
  const queue = queueOf()
  const evictedBy = (place: JobOrigin, name: string) => {
    queue.limit(queue.size)
    return queue.add(jobOf(place, name))?.name
  }
  for (let i = 0; i < 3; i++) add(queue, other(`2001:db8:0:${i}::1`), `flood ${i}`)
  add(queue, other('2001:db8:1::1'), 'single')
  t.is(evictedBy(known('owner'), 'owner'), 'flood 2')
  t.is(evictedBy(known('owner'), 'owner'), 'flood 1')
  t.is(evictedBy(other('203.0.113.1'), 'newcomer'), 'newcomer')
  // In the /48 with the most entries, the /64 with the most.
  queue.limit(Number.POSITIVE_INFINITY)
  add(queue, other('2001:db8:1:0::1'), 'second', 2)
  t.is(evictedBy(other('2001:db8:1:1::1'), 'neighbour'), 'second')
  // A known one only while no other waits, however many there are.
  take(queue)
  queue.limit(Number.POSITIVE_INFINITY)
  for (const name of ['other', 'known', 'known', 'known'])
    add(queue, name === 'other' ? other('203.0.113.1') : known('owner'), name)
  t.is(evictedBy(known('a'), 'a'), 'other')
  t.is(evictedBy(known('b'), 'b'), 'known')
})

// Hashes of passwords and answers.

const cost = 5
const pool = createPool({ cost, count: 2 })
const pepper = Buffer.alloc(32, 1)
const dataKeys = createDataKeys(() => ({ pepper, sealing: pepper, digesting: pepper, audit: pepper }))
const passwords = createPasswords({ dataKeys, cost, pool })
const waiter = { kind: 'other', networks: [], account: 'a', deadline: Number.POSITIVE_INFINITY } as const
type Context = 'password' | 'answer'
const hash = async (text: string, context: Context = 'password', by = passwords) =>
  (await by.hash([{ context, text }], waiter))[0]!
const verify = async (text: string, stored: string | undefined, context: Context = 'password', by = passwords) =>
  (await by.verify([{ context, text, stored }], waiter))[0]
ava.after.always(() => pool.close())

const yes = { correct: true, renew: false }
const no = { correct: false, renew: false }

test('a hash of another cost is to be renewed once it matches, for the same text', async t => {
  for (const other of [4, 6]) {
    const stored = await hash('abc', 'password', createPasswords({ dataKeys, cost: other, pool }))
    t.deepEqual(await verify('abc', stored), { correct: true, renew: true })
    t.deepEqual(await verify('abd', stored), no)
  }
  t.deepEqual(await verify('abc', await passwords.renew({ context: 'password', text: 'abc' })), yes)
})

test('a text that can’t match is not hashed', async t => {
  await t.throwsAsync(hash('a\u0000b'))
  await t.throwsAsync(hash(' ', 'answer'))
})

test('several texts are hashed and compared together', async t => {
  const stored = await passwords.hash(
    [
      { context: 'password', text: 'abc' },
      { context: 'answer', text: 'Rex' },
    ],
    waiter,
  )
  const claims = stored.map(each => ({ context: 'answer', text: 'rex', stored: each }) as const)
  const seen = (await passwords.verify(claims, waiter)).map(({ correct }) => correct)
  t.deepEqual(seen, [false, true])
})
