import test from 'ava'
import fc from 'fast-check'
import type { Entry } from '../../server/limits/fair-queue.js'
import { createJobQueue, linesOf, type Place } from '../../server/passwords/pool.js'
import { networksOf } from '../../server/requests/client-address.js'

interface Job extends Entry {
  readonly place: Place
  readonly name: string
}
const jobOf = (place: Place, name = ''): Job => ({ networks: linesOf(place), cost: 1, place, name })

const at = (kind: Place['kind'], address: string, account = 'a'): Place => ({
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
const add = (queue: Queue, place: Place, name: string, times = 1) => {
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
  fc.assert(
    fc.property(fc.nat(30), fc.boolean(), (before, isKnown) => {
      const queue = queueOf()
      add(queue, isKnown ? known('a') : other('198.51.100.1'), 'before', before)
      take(queue)
      for (let i = 0; i < 100; i++) {
        add(queue, known(`${i}`), 'known')
        add(queue, other(`198.51.${i}.1`), 'other')
      }
      const names = take(queue, 60)
      for (let start = 0; start <= 50; start++) t.is(times(names.slice(start, start + 10), 'known'), 9)
    }),
  )
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
  const quiet = queueOf()
  add(quiet, other('198.51.100.1'), 'other', 100)
  take(quiet, 30)
  add(quiet, admin(), 'admin')
  t.true(take(quiet, 2).includes('admin'))
})

test('accounts take turns among known sign-ins, and within a network', t => {
  for (const place of [known, (account: string) => other('192.0.2.1', account)]) {
    const queue = queueOf()
    for (const name of ['a0', 'a1', 'a2', 'b0']) add(queue, place(name[0]!), name)
    t.deepEqual(take(queue), ['a0', 'b0', 'a1', 'a2'])
  }
})

const addresses = fc.array(fc.ipV6(), { minLength: 1, maxLength: 30 })

test('two waiting networks get equal turns, regardless of other jobs and of the number of their accounts', t => {
  const [one, two] = ['192.0.2.1', '198.51.100.1']
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 40 }), addresses, fc.nat(60), (accounts, others, count) => {
      const queue = queueOf()
      for (let i = 0; i < 40; i++) add(queue, other(one, `${i % accounts}`), one)
      for (let i = 0; i < 40; i++) add(queue, other(two), two)
      for (const address of others) add(queue, other(address), address)
      const names = take(queue, count)
      t.true(Math.abs(times(names, one) - times(names, two)) <= 1)
    }),
  )
})

test('a thousand /64s of one /48 get as much as another /48', t => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 1000 }), fc.nat(200), (many, count) => {
      const queue = queueOf()
      for (let i = 0; i < 1000; i++) add(queue, other(`2001:db8:1:${((i % many) * 64).toString(16)}::1`), 'many')
      add(queue, other('2001:db8:2::1'), 'one', 200)
      const names = take(queue, count)
      t.true(Math.abs(times(names, 'many') - times(names, 'one')) <= 1)
    }),
    { numRuns: 30 },
  )
})

test('within a /48 the same holds for its /56s, and within a /24 for its addresses', t => {
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

test('of ten turns, nine go to the networks with the fewest failures, one to the others in turn', t => {
  const used: Record<string, number> = { '198.51.100.0/24': 100, '192.0.2.0/24': 30 }
  const queue = queueOf(network => used[network] ?? 0)
  add(queue, other('198.51.100.1'), 'flood', 100)
  add(queue, other('192.0.2.1'), 'office', 100)
  const names = take(queue, 40)
  t.is(times(names, 'flood'), 4)
  add(queue, other('203.0.113.1'), 'newcomer')
  t.true(take(queue, 2).includes('newcomer'))
})

test('networks with more failures take turns, and their turns give a new network no lead', t => {
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

const places = Array.from({ length: 6 }, (_, index) => [
  `192.0.2.${index}`,
  `198.51.${index}.1`,
  `2001:db8:0:${index}::1`,
])
const turns: fc.Arbitrary<Place> = fc
  .record({
    kind: fc.constantFrom('known', 'administration', 'other', 'other'),
    address: fc.constantFrom(...places.flat()),
    account: fc.constantFrom('a', 'b', 'c'),
  })
  .map(({ kind, address, account }) => at(kind, address, account))

const failures = fc.dictionary(fc.constantFrom(...places.flat().flatMap(networksOf)), fc.constantFrom(1, 10, 100), {
  size: '+1',
})

test('each added job leaves exactly once: taken, removed or evicted', t => {
  const steps = fc.array(
    fc.oneof(
      turns.map(place => ({ kind: 'add' as const, place })),
      fc.record({ kind: fc.constant('remove' as const), index: fc.nat() }),
      fc.constant({ kind: 'take' as const }),
    ),
    { maxLength: 80 },
  )
  fc.assert(
    fc.property(steps, failures, (steps, used) => {
      const queue = queueOf(network => used[network] ?? 0)
      const waiting = new Set<Job>()
      const leave = (job: Job | undefined) => t.is(job === undefined, waiting.size === 0 || !waiting.delete(job!))
      for (const step of steps) {
        if (step.kind === 'add') {
          const job = jobOf(step.place)
          queue.add(job)
          waiting.add(job)
        } else if (step.kind === 'remove') {
          const job = [...waiting][step.index % waiting.size]
          if (!job) continue
          t.true(queue.remove(job))
          t.false(queue.remove(job))
          waiting.delete(job)
        } else leave(queue.take())
        t.is(queue.size, waiting.size)
      }
      while (waiting.size > 0) leave(queue.take())
      t.is(queue.take(), undefined)
      t.is(queue.size, 0)
    }),
  )
})

test('a known job is evicted only if no other waits, and never one from a line shorter than another', t => {
  fc.assert(
    fc.property(fc.array(turns, { minLength: 1, maxLength: 60 }), waiting => {
      const queue = queueOf()
      for (const place of waiting.slice(0, -1)) add(queue, place, 'waits')
      const rest = waiting.filter(({ kind }) => kind !== 'known')
      queue.limit(queue.size)
      const evicted = queue.add(jobOf(waiting.at(-1)!))!
      if (rest.length === 0) return
      t.not(evicted.place.kind, 'known')
      const outer = ({ networks }: Place) => networks.at(-1)
      const alike = rest.filter(({ kind }) => kind === evicted.place.kind)
      t.true(alike.length >= rest.length - alike.length)
      const mine = alike.filter(place => outer(place) === outer(evicted.place)).length
      for (const place of alike) t.true(mine >= alike.filter(each => outer(each) === outer(place)).length)
    }),
  )
})

test('there is room for a new job exactly if another one would be evicted', t => {
  fc.assert(
    fc.property(fc.array(turns, { maxLength: 40 }), turns, failures, (waiting, place, used) => {
      const queue = queueOf(network => used[network] ?? 0)
      for (const each of waiting) add(queue, each, 'waits')
      queue.limit(queue.size)
      const own = jobOf(place)
      const hasRoom = queue.hasRoom(jobOf(place))
      t.is(queue.size, waiting.length)
      t.is(queue.add(own) !== own, hasRoom)
    }),
    { numRuns: 500 },
  )
})

test('the newest job of the longest line is evicted, or the new job itself if all lines are equally long', t => {
  const queue = queueOf()
  const evictedBy = (place: Place, name: string) => {
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
})
