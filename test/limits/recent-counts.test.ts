import test from 'ava'
import fc from 'fast-check'
import { createRecentCounts } from '../../server/limits/recent-counts.js'

test('the count of an outer network always equals the sum of the counts inside it', t => {
  const inner = ['2001:db8:1:0', '2001:db8:1:1', '2001:db8:1:100', '2001:db8:1:ffff']
  const steps = fc.array(fc.record({ at: fc.nat(600_000), place: fc.constantFrom(...inner), amount: fc.nat(20) }))
  fc.assert(
    fc.property(steps, steps => {
      let now = 0
      const counts = createRecentCounts(() => now)
      for (const { at, place, amount } of steps) {
        now += at
        counts.add(`${place}::1`, amount)
        counts.add('2001:db8:2::1', 5)
        const sum = inner.reduce((sum, each) => sum + counts.of(`${each}::/64`), 0)
        t.true(Math.abs(counts.of('2001:db8:1::/48') - sum) < 1e-6)
      }
    }),
  )
})

test('a failure loses weight over time: a thousand are forgotten within two hours', t => {
  let now = 0
  const counts = createRecentCounts(() => now)
  counts.add('192.0.2.1', 1000)
  t.is(counts.of('192.0.2.1'), 1000)
  now += 15 * 60_000
  t.true(counts.of('192.0.2.0/24') > 300 && counts.of('192.0.2.0/24') < 400)
  now += 105 * 60_000
  t.true(counts.of('192.0.2.0/24') < 1)
})
