/** The order in which requests of many networks wait. */
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import test from 'ava'
import fc from 'fast-check'
import { createFairQueue, type FairQueue } from '../../server/limits/fair-queue.js'

interface Entry {
  readonly networks: readonly string[]
  readonly cost: number
}

const many = { innermost: 1_000_000, outermost: 1_000_000, all: 1_000_000 }

const ids = ['a', 'b']

/** Networks of one to three levels, for services, IPv4 and IPv6 addresses; innermost first. */
const networks: fc.Arbitrary<readonly string[]> = fc.oneof(
  fc.constantFrom('service 1', 'service 2').map(name => [name]),
  fc
    .tuple(fc.constantFrom(...ids), fc.constantFrom(...ids))
    .map(([inner, outer]) => [`4${outer}${inner}`, `4${outer}`]),
  fc
    .tuple(fc.constantFrom(...ids), fc.constantFrom(...ids), fc.constantFrom(...ids))
    .map(([inner, middle, outer]) => [`6${outer}${middle}${inner}`, `6${outer}${middle}`, `6${outer}`]),
)

const entry = fc.record({ networks, cost: fc.integer({ min: 1, max: 20 }) })

const isIn = (network: string) => (entry: Entry) => entry.networks.includes(network)

/** The entry to evict when one too many waits: the newest of the longest line within a network. */
function assertNewestOfLongest(waiting: readonly Entry[], evicted: Entry, within: (entry: Entry) => boolean): void {
  const rivals = waiting.filter(within)
  if (!rivals.includes(evicted)) throw new Error('it is of another network')
  // Level by level, outermost first.
  for (let depth = 1, group = rivals; depth <= evicted.networks.length; depth++) {
    const lengths = new Map<string, number>()
    for (const { networks } of group) {
      const name = networks.at(-depth)
      if (name !== undefined) lengths.set(name, (lengths.get(name) ?? 0) + 1)
    }
    const own = evicted.networks.at(-depth)!
    if (lengths.get(own) !== Math.max(...lengths.values())) throw new Error(`${own} is not the longest line`)
    group = group.filter(isIn(own))
    if (depth === evicted.networks.length && group.at(-1) !== evicted) throw new Error('it is not the newest')
  }
}

test('an entry is taken, evicted or removed exactly once, in the order of its line, and the bounds hold', t => {
  const bounds = { innermost: 3, outermost: 5, all: 12 }
  const command = fc.oneof(
    { weight: 5, arbitrary: entry.map(entry => ({ kind: 'add' as const, entry })) },
    { weight: 3, arbitrary: fc.constant({ kind: 'take' as const }) },
    { weight: 1, arbitrary: fc.nat().map(index => ({ kind: 'remove' as const, index })) },
  )
  fc.assert(
    fc.property(fc.array(command, { maxLength: 150, size: 'max' }), commands => {
      const queue = createFairQueue<Entry>(bounds)
      // Waiting entries, oldest first.
      let waiting: Entry[] = []
      const gone: Entry[] = []
      const leave = (entry: Entry) => {
        t.true(waiting.includes(entry))
        waiting = waiting.filter(each => each !== entry)
        gone.push(entry)
      }
      for (const command of commands) {
        if (command.kind === 'add') {
          const added = { ...command.entry }
          waiting.push(added)
          const evicted = queue.add(added)
          const [inner, outer] = [isIn(added.networks[0]!), isIn(added.networks.at(-1)!)]
          const isFull = (within: typeof inner, most: number) => waiting.filter(within).length > most
          if (isFull(inner, bounds.innermost)) t.is(evicted, added)
          else if (isFull(outer, bounds.outermost)) assertNewestOfLongest(waiting, evicted!, outer)
          else if (waiting.length > bounds.all) assertNewestOfLongest(waiting, evicted!, () => true)
          else t.is(evicted, undefined)
          if (evicted) leave(evicted)
        } else if (command.kind === 'take') {
          const next = queue.peek()
          t.is(queue.peek(), next)
          const taken = queue.take()
          t.is(taken, next)
          t.is(taken === undefined, waiting.length === 0)
          if (taken) {
            t.is(waiting.find(isIn(taken.networks[0]!)), taken)
            leave(taken)
          }
        } else {
          const one = waiting[command.index % (waiting.length + 1)]
          if (one) {
            t.true(queue.remove(one))
            leave(one)
          }
          for (const former of gone.slice(-3)) t.false(queue.remove(former))
          t.false(queue.remove({ networks: ['unknown'], cost: 1 }))
        }
        t.is(queue.size, waiting.length)
      }
      while (queue.size > 0) leave(queue.take()!)
      t.is(queue.take(), undefined)
      t.is(new Set(gone).size, gone.length)
      t.is(waiting.length, 0)
    }),
    { numRuns: 300 },
  )
})

/** The served cost by network. */
function createServed() {
  const costs = new Map<string, number>()
  const of = (network: string) => costs.get(network) ?? 0
  return {
    of,
    take(queue: FairQueue<Entry>): Entry {
      const taken = queue.take()!
      for (const network of taken.networks) costs.set(network, of(network) + taken.cost)
      return taken
    },
  }
}

test('of two networks that always wait, at any level and with any others, neither leads by more than the sum of their greatest costs', t => {
  const leaves = ['a1 a', 'a2 a', 'b1 b', 'c11 c1 c', 'c12 c1 c', 'c21 c2 c', 'd'].map(each => each.split(' '))
  const pairs = ['a b', 'b c', 'a d', 'a1 a2', 'c1 c2', 'c11 c12'].map(each => each.split(' ') as [string, string])
  const greatest = (network: string) =>
    Math.max(...leaves.flatMap((networks, index) => (networks.includes(network) ? [index + 1] : [])))
  fc.assert(
    fc.property(
      fc.infiniteStream(fc.nat({ max: 1000 })),
      fc.array(fc.record({ at: fc.nat({ max: 400 }), entry, leaves: fc.boolean() }), { maxLength: 60, size: 'max' }),
      (random, passing) => {
        const queue = createFairQueue<Entry>(many)
        const served = createServed()
        // The greatest costs of the networks differ, too.
        const wait = (leaf: number) => {
          const cost = 0.1 + (random.next().value / 1000) * (leaf + 0.9)
          queue.add({ networks: leaves[leaf]!, cost })
        }
        for (const leaf of leaves.keys()) for (const _ of [1, 2]) wait(leaf)
        const range = new Map(pairs.map(pair => [pair, { least: 0, most: 0 }]))
        for (let turn = 0; turn < 400; turn++) {
          for (const { at, entry, leaves } of passing) {
            if (at !== turn) continue
            const passer = { ...entry, networks: entry.networks.map(network => `passing ${network}`) }
            queue.add(passer)
            if (leaves) queue.remove(passer)
          }
          const { networks } = served.take(queue)
          const leaf = leaves.indexOf(networks as string[])
          if (leaf >= 0) wait(leaf)
          for (const [[one, other], seen] of range) {
            const ahead = served.of(one) - served.of(other)
            seen.least = Math.min(seen.least, ahead)
            seen.most = Math.max(seen.most, ahead)
            const bound = greatest(one) + greatest(other)
            if (seen.most - seen.least > bound + 1e-6)
              throw new Error(`${one} and ${other} differ by more than ${bound}`)
          }
        }
      },
    ),
    { numRuns: 60 },
  )
  t.pass()
})

test('an absent network gains no priority', t => {
  const queue = createFairQueue<Entry>(many)
  const served = createServed()
  const wait = (network: string, times: number) => {
    const entries = Array.from({ length: times }, () => ({ networks: [network], cost: 1 }))
    for (const each of entries) queue.add(each)
    return entries
  }
  const late = wait('late', 100)
  wait('steady', 300)
  // It leaves, and returns.
  for (const each of late) queue.remove(each)
  for (let times = 0; times < 100; times++) served.take(queue)
  wait('late', 100)
  for (let times = 0; times < 100; times++) served.take(queue)
  t.true(Math.abs(served.of('late') - 50) <= 2, String(served.of('late')))
})

test('a network that sends one request at a time gets no more than one that has sent many', t => {
  const queue = createFairQueue<Entry>(many)
  const served = createServed()
  const wait = (network: string) => void queue.add({ networks: [network], cost: 1 })
  for (let times = 0; times < 200; times++) wait('many')
  wait('one')
  for (let turn = 0; turn < 200; turn++) if (served.take(queue).networks[0] === 'one') wait('one')
  t.true(Math.abs(served.of('one') - 100) <= 2, String(served.of('one')))
})

test('a new network waits for at most one entry of each waiting network, however many arrive after it', t => {
  for (const before of [0, 1, 2, 7, 100]) {
    const queue = createFairQueue<Entry>(many)
    const add = (network: string) => void queue.add({ networks: [`${network}.1`, network], cost: 1 })
    for (let index = 0; index < before; index++) for (let times = 0; times < 50; times++) add(`flood ${index}`)
    // Not at the start of a round.
    for (let times = 0; times < before / 2; times++) queue.take()
    add('newcomer')
    let ahead = 0
    for (;;) {
      add(`later ${ahead}`)
      add(`later still ${ahead}`)
      if (queue.take()!.networks[1] === 'newcomer') break
      ahead++
      t.true(ahead <= before, `${ahead} of ${before}`)
    }
  }
})

/** Bytes of objects that are in use. */
function heapInUse(): number {
  setFlagsFromString('--expose-gc')
  runInNewContext('gc')()
  return process.memoryUsage().heapUsed
}

test('networks that no longer wait use no memory, however many there were', t => {
  const queue = createFairQueue<Entry>({ ...many, all: 3 })
  const flood = { networks: ['flood'], cost: 1 }
  queue.add(flood)
  queue.add(flood)
  queue.add(flood)
  const before = heapInUse()
  for (let index = 0; index < 100_000; index++) {
    // Evicted at once; removed; served.
    for (const kind of ['evicted', 'removed', 'served']) {
      const passer = { networks: [`${index}`, `${kind} ${index % 2 === 0 ? index : ''}`], cost: 1 }
      if (kind === 'evicted') queue.add(passer)
      else {
        queue.remove(flood)
        queue.add(passer)
        if (kind === 'removed') queue.remove(passer)
        while (queue.size > 2) queue.take()
        queue.add(flood)
      }
    }
  }
  const grown = heapInUse() - before
  t.true(grown < 5_000_000, `${grown} bytes`)
  t.is(queue.size, 3)
})
