/** Who works when only so many may at a time. */
import { setImmediate as settle } from 'node:timers/promises'
import test from 'ava'
import fc from 'fast-check'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createTurns } from '../../server/access/turns.js'
import type { Refusal } from '../../server/refusal.js'
import { createRoom } from '../../server/room.js'

const from = (address: string, deadline = Number.POSITIVE_INFINITY) => ({ address, deadline })

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
  const late = turns.begin(from('a', Date.now()))
  const next = turns.begin(from('a'))
  first[Symbol.dispose]()
  const refusal = await t.throwsAsync(late)
  t.is((refusal as Refusal).reason, Reason.DEADLINE_EXCEEDED)
  ;(await next)[Symbol.dispose]()
})
