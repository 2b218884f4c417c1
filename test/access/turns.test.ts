/** Who works when only so many may at a time. */
import { setImmediate as settle } from 'node:timers/promises'
import test from 'ava'
import fc from 'fast-check'
import { createTurns } from '../../server/access/turns.js'

test('addresses take turns, whoever has more waiting', async t => {
  const turns = createTurns(1)
  const order: string[] = []
  const all = ['a', 'a', 'a', 'a', 'b', 'c', 'b'].map(async address => {
    using _turn = await turns.begin(address)
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
        for (const _ of [1, 2, 3, 4, 5]) (await turns.begin('a'))[Symbol.dispose]()
        let [working, most, done] = [0, 0, 0]
        await Promise.all(
          addresses.map(async address => {
            using _turn = await turns.begin(address)
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
