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

test('of the turns of others nine of ten go to the address that has used least of its limits, one to each in turn', t => {
  const used: Record<string, number> = { flood: 0.9, office: 0.3 }
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

test('whoever used a little more of its limits isn’t behind for that', t => {
  const used: Record<string, number> = { school: 0.04, single: 0 }
  const queue = createQueue<string>(address => used[address] ?? 0)
  for (let i = 0; i < 3; i++) {
    queue.add(other('single', `${i}`), 'single')
    queue.add(other('school', `${i}`), 'school')
  }
  t.deepEqual(drain(queue).slice(0, 4), ['single', 'school', 'single', 'school'])
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
})

const turns = fc.record({
  known: fc.boolean(),
  address: fc.constantFrom('x', 'y', 'z'),
  account: fc.constantFrom('a', 'b', 'c'),
})

const share = fc.constantFrom(0, 0.5, 1)
const shares = fc.record({ x: share, y: share, z: share })

test('whatever comes and goes, each item is taken once, and its turn comes when it was told', t => {
  fc.assert(
    fc.property(fc.array(turns, { maxLength: 40 }), turns, fc.nat(), shares, (waiting, mine, drop, used) => {
      const queue = createQueue<number>(address => used[address as 'x'])
      waiting.forEach((turn, index) => {
        queue.add(turn, index)
      })
      const dropped = waiting.length > 0 ? drop % waiting.length : undefined
      if (dropped !== undefined) t.true(queue.remove(waiting[dropped]!, dropped))
      if (dropped !== undefined) t.false(queue.remove(waiting[dropped]!, dropped))
      const ahead = queue.ahead(mine, 1)
      queue.add(mine, -1)
      const order = drain(queue)
      const at = order.indexOf(-1)
      // One turn more or less, as every tenth is another kind's: known ones or others, and of these most used or least.
      t.true(at <= ahead + 2, `${at} > ${ahead}`)
      t.deepEqual(
        [...order].sort((a, b) => a - b),
        [-1, ...waiting.keys()].filter(index => index !== dropped),
      )
    }),
  )
})
