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

test('whatever comes and goes, each item is taken once, and its turn comes when it was told', t => {
  fc.assert(
    fc.property(fc.array(turns, { maxLength: 40 }), turns, fc.nat(), (waiting, mine, drop) => {
      const queue = createQueue<number>()
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
      // One turn more or less, as every tenth is the other kind's.
      t.true(at <= ahead + 1, `${at} > ${ahead}`)
      t.deepEqual(
        [...order].sort((a, b) => a - b),
        [-1, ...waiting.keys()].filter(index => index !== dropped),
      )
    }),
  )
})
