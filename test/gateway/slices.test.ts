/** Requests that come together, and whoever comes while they are begun. */
import { setImmediate as turn } from 'node:timers/promises'
import test from 'ava'
import { inSlices } from '../../gateway/slices.js'
import { waitFor } from '../_helpers/patience.js'

function work(milliseconds: number) {
  for (const until = performance.now() + milliseconds; performance.now() < until; );
}

test('of a hundred that come together each is begun once and in its order, and whoever comes later needn’t wait for them', async t => {
  const begun: string[] = []
  const begin = inSlices((name: string) => {
    begun.push(name)
    // Most of the work is done in ticks.
    process.nextTick(work, 2)
  })
  const all = Array.from({ length: 100 }, (_, index) => String(index))
  for (const name of all) {
    begin(name)
    await new Promise(resolve => process.nextTick(resolve))
  }
  await turn()
  const before = begun.length
  t.true(before < 100)
  begin('later')
  t.is(begun[before], 'later')
  await waitFor(() => begun.length === 101)
  t.deepEqual(
    begun.filter(name => name !== 'later'),
    all,
  )
})

test('what comes one after the other is begun at once', async t => {
  const begun: number[] = []
  const begin = inSlices((name: number) => {
    begun.push(name)
    work(6)
  })
  for (let name = 1; name <= 5; name++) {
    begin(name)
    t.is(begun.length, name)
    await turn()
  }
})
