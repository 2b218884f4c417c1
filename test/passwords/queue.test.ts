import test from 'ava'
import fc from 'fast-check'
import { createQueue, type Turn } from '../../server/passwords/queue.js'

const known = (account: string): Turn => ({ known: true, address: 'home', account })
const other = (address: string, account = 'a'): Turn => ({ known: false, address, account })

function drain<T>(queue: { take(): T | undefined }): T[] {
  const taken: T[] = []
  for (let item = queue.take(); item !== undefined; item = queue.take()) taken.push(item)
  return taken
}

test('of ten turns nine go to known sign-ins while any wait', t => {
  const queue = createQueue<string>()
  for (let i = 0; i < 100; i++) {
    queue.add(known(`${i}`), 'known')
    queue.add(other(`${i}`), 'other')
  }
  const first = drain(queue).slice(0, 50)
  t.is(first.filter(kind => kind === 'known').length, 45)
})

test('an address that invents accounts gets no more turns than one that doesn’t', t => {
  const queue = createQueue<string>()
  for (let i = 0; i < 50; i++) queue.add(other('crowd', `${i}`), 'crowd')
  for (let i = 0; i < 3; i++) queue.add(other('single'), 'single')
  t.deepEqual(drain(queue).slice(0, 6), ['crowd', 'single', 'crowd', 'single', 'crowd', 'single'])
})

test('within an address accounts take turns', t => {
  const queue = createQueue<string>()
  for (let i = 0; i < 3; i++) queue.add(other('school', 'a'), `a${i}`)
  queue.add(other('school', 'b'), 'b0')
  t.deepEqual(drain(queue), ['a0', 'b0', 'a1', 'a2'])
})

test('of the turns of others nine of ten go to the address that failed and signed up least, one to each in turn', t => {
  const used: Record<string, number> = { flood: 100, office: 30 }
  const queue = createQueue<string>(address => used[address] ?? 0)
  for (let i = 0; i < 100; i++) {
    queue.add(other('flood', `${i}`), 'flood')
    queue.add(other('office', `${i}`), 'office')
  }
  const first = Array.from({ length: 40 }, () => queue.take())
  t.is(first.filter(each => each === 'flood').length, 4)
  queue.add(other('newcomer'), 'newcomer')
  t.is(queue.take(), 'newcomer')
})

test('the sign-up that it was just counted for puts nobody behind addresses that had turns', t => {
  const used: Record<string, number> = { crowd: 0.5, newcomer: 1 }
  const queue = createQueue<string>(address => used[address] ?? 0)
  for (let i = 0; i < 3; i++) queue.add(other('crowd', `${i}`), 'crowd')
  queue.take()
  t.is(queue.ahead(other('newcomer'), 1), 0)
  queue.add(other('newcomer'), 'newcomer')
  t.is(queue.take(), 'newcomer')
})

test('whoever failed a little more often isn’t behind for that', t => {
  const used: Record<string, number> = { school: 6, single: 4 }
  const queue = createQueue<string>(address => used[address] ?? 0)
  for (let i = 0; i < 3; i++) {
    queue.add(other('single', `${i}`), 'single')
    queue.add(other('school', `${i}`), 'school')
  }
  t.deepEqual(drain(queue).slice(0, 4), ['single', 'school', 'single', 'school'])
})

test('among addresses that failed alike the one goes first that had fewest turns of late', t => {
  const queue = createQueue<string>()
  for (let i = 0; i < 10; i++) for (const flood of ['a', 'b', 'c']) queue.add(other(flood), flood)
  for (let i = 0; i < 6; i++) queue.take()
  queue.add(other('newcomer'), 'signs up')
  queue.add(other('newcomer'), 'logs in')
  t.deepEqual([queue.take(), queue.take()], ['signs up', 'logs in'])
})

test('in a full queue known sign-ins push strangers out, and strangers only those with more', t => {
  const queue = createQueue<string>()
  for (let i = 0; i < 3; i++) queue.add(other('crowd', `${i}`), `crowd ${i}`)
  queue.add(other('single'), 'single')
  t.is(queue.makeRoom(other('crowd', 'new'), 1), undefined)
  t.is(queue.makeRoom(other('third'), 1), 'crowd 0')
  t.is(queue.makeRoom(known('owner'), 1), 'crowd 1')
  t.is(queue.size, 2)
  queue.add(known('owner'), 'owner')
  drain(queue)
  queue.add(known('owner'), 'owner')
  t.is(queue.makeRoom(other('crowd'), 1), undefined)
  queue.add(other('single'), 'single')
  t.is(queue.makeRoom(other('third'), 1), undefined)
})

test('whoever comes is told of those that go before, and of no others', t => {
  const used: Record<string, number> = { busy: 10 }
  const crowd = (turn: Turn, times = 30) => Array<Turn>(times).fill(turn)
  for (const [waiting, mine] of [
    [crowd(other('crowd')), other('single')],
    [[...crowd(other('crowd')), ...crowd(other('single'), 3)], other('single')],
    [[...crowd(other('single'), 20), ...crowd(other('busy'))], other('single')],
    [[...crowd(other('single'), 20), ...crowd(other('busy'))], other('busy')],
    [[...crowd(other('crowd', 'a')), ...crowd(other('crowd', 'b'))], other('crowd', 'c')],
    [crowd(known('a')), known('b')],
    [[...crowd(known('a'), 20), ...crowd(other('crowd'))], known('a')],
    [[...crowd(known('a')), ...crowd(other('crowd'))], other('single')],
  ] as const)
    for (const taken of [0, 4, 9, 15]) {
      const queue = createQueue<number>(address => used[address] ?? 0)
      for (const [index, turn] of waiting.entries()) queue.add(turn, index)
      for (let i = 0; i < taken; i++) queue.take()
      const ahead = queue.ahead(mine, 1)
      queue.add(mine, -1)
      t.is(drain(queue).indexOf(-1), ahead, `${JSON.stringify(mine)} after ${taken}`)
    }
})

/** Of so many turns one goes to those that come second. */
const secondEvery = 10

const turns = fc.record({
  known: fc.boolean(),
  address: fc.constantFrom('x', 'y', 'z'),
  account: fc.constantFrom('a', 'b', 'c'),
})

const share = fc.constantFrom(0, 10, 100)
const shares = fc.record({ x: share, y: share, z: share })

test('whatever comes and goes, each item is taken once, a known one when it was told, another never later', t => {
  const [before, count] = [fc.nat(30), fc.integer({ min: 1, max: 3 })]
  fc.assert(
    fc.property(
      fc.array(turns, { maxLength: 40 }),
      turns,
      before,
      count,
      fc.nat(),
      shares,
      (waiting, mine, before, count, drop, used) => {
        const queue = createQueue<number>(address => used[address as 'x'])
        for (let index = 0; index < before; index++) {
          queue.add(mine, 0)
          queue.take()
        }
        waiting.forEach((turn, index) => {
          queue.add(turn, index)
        })
        const dropped = waiting.length > 0 ? drop % waiting.length : undefined
        if (dropped !== undefined) t.true(queue.remove(waiting[dropped]!, dropped))
        if (dropped !== undefined) t.false(queue.remove(waiting[dropped]!, dropped))
        const ahead = queue.ahead(mine, count)
        const own = Array.from({ length: count }, (_, index) => -1 - index)
        for (const item of own) queue.add(mine, item)
        const order = drain(queue)
        const at = order.indexOf(-count)
        // A tenth turn goes to the address that waits longest, who may then be sooner than its rank says, but never later.
        if (mine.known) t.is(at, ahead)
        else t.true(at <= ahead && at >= ahead - 3 * secondEvery, `${at} ${ahead}`)
        t.deepEqual(
          [...order].sort((a, b) => a - b),
          [...own.toReversed(), ...waiting.keys()].filter(index => index !== dropped),
        )
      },
    ),
  )
})
