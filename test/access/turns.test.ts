/** Who works when only so many may at a time. */
import { setImmediate as settle } from 'node:timers/promises'
import test from 'ava'
import fc from 'fast-check'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createTurns } from '../../server/access/turns.js'
import type { Refusal } from '../../server/refusal.js'
import { createRoom } from '../../server/room.js'

const from = (address: string, deadline = Date.now() + 60_000, signal = new AbortController().signal) => ({
  address,
  deadline,
  signal,
})

const reasonOf = (turn: Promise<unknown>) =>
  turn.then(
    () => 'a turn',
    ({ reason }: Refusal) => Reason[reason],
  )

test('addresses take turns, whoever has more waiting', async t => {
  const turns = createTurns(1)
  const order: string[] = []
  const all = ['a', 'a', 'a', 'a', 'b', 'c', 'b'].map(async address => {
    using _turn = await turns.begin(from(address))
    order.push(address)
    await settle()
  })
  await Promise.all(all)
  t.is(order.join(''), 'aabcaba')
})

test('never more work than may, and everybody does in the end', async t => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 5 }),
      fc.array(fc.constantFrom('a', 'b', 'c'), { maxLength: 40 }),
      async (atOnce, addresses) => {
        const turns = createTurns(atOnce)
        // What was there before has left no trace.
        for (const _ of [1, 2, 3, 4, 5]) (await turns.begin(from('a')))[Symbol.dispose]()
        let [working, most, done] = [0, 0, 0]
        await Promise.all(
          addresses.map(async address => {
            using _turn = await turns.begin(from(address))
            most = Math.max(most, ++working)
            await settle()
            working--
            done++
          }),
        )
        t.is(done, addresses.length)
        t.is(most, Math.min(atOnce, addresses.length))
      },
    ),
    { numRuns: 50 },
  )
})

test('no more turns begin than there is room for', async t => {
  const turns = createTurns(3, createRoom(2, 20))
  const startedAt = performance.now()
  let begun = 0
  const all = Array.from({ length: 12 }, async () => {
    using _turn = await turns.begin(from('a'))
    begun++
  })
  await settle()
  t.is(begun, 2)
  await Promise.all(all)
  // The other 10 within half a second at the earliest.
  t.true(performance.now() - startedAt > 400)
})

test('who waited past the deadline gets no turn and takes no room, and the next one goes on', async t => {
  const turns = createTurns(1, createRoom(2, 0))
  const first = await turns.begin(from('a'))
  const late = reasonOf(turns.begin(from('a', Date.now() + 5)))
  const next = turns.begin(from('a'))
  // No timer runs meanwhile.
  for (const end = Date.now() + 10; Date.now() < end; );
  first[Symbol.dispose]()
  t.is(await late, 'DEADLINE_EXCEEDED')
  ;(await next)[Symbol.dispose]()
})

test('who leaves or comes too late is refused while others still work, and keeps its address’s turn', async t => {
  const turns = createTurns(1)
  const first = await turns.begin(from('x'))
  const order: string[] = []
  const take = async (name: string, call: Parameters<typeof turns.begin>[0]) => {
    using _turn = await turns.begin(call)
    order.push(name)
  }
  const leaving = new AbortController()
  const gone = reasonOf(take('gone', from('a', undefined, leaving.signal)))
  const late = reasonOf(take('late', from('b', Date.now() + 20)))
  const others = ['a', 'b', 'c'].map(address => take(address, from(address)))
  leaving.abort()
  t.deepEqual(await Promise.all([gone, late]), ['DEADLINE_EXCEEDED', 'DEADLINE_EXCEEDED'])
  t.is(await reasonOf(take('gone before', from('a', undefined, leaving.signal))), 'DEADLINE_EXCEEDED')
  first[Symbol.dispose]()
  await Promise.all(others)
  t.deepEqual(order, ['a', 'b', 'c'])
  t.is(await reasonOf(take('after', from('a'))), 'a turn')
})

test('2,000 may wait; who comes then is refused with a second to wait, and has a place when one leaves', async t => {
  const turns = createTurns(1)
  const first = await turns.begin(from('x'))
  const leaving = new AbortController()
  const gone = reasonOf(turns.begin(from('a', undefined, leaving.signal)))
  const waiting = Array.from({ length: 1999 }, async (_, index) => {
    using _turn = await turns.begin(from(`10.0.0.${index % 200}`))
  })
  const refusal = (await t.throwsAsync(turns.begin(from('b')))) as Refusal
  t.is(Reason[refusal.reason], 'OVERLOADED')
  t.is(refusal.more.retryAfter, 1)
  leaving.abort()
  t.is(await gone, 'DEADLINE_EXCEEDED')
  const next = turns.begin(from('b'))
  t.is(await reasonOf(turns.begin(from('c'))), 'OVERLOADED')
  first[Symbol.dispose]()
  ;(await next)[Symbol.dispose]()
  await Promise.all(waiting)
  t.is(await reasonOf(turns.begin(from('c'))), 'a turn')
})
