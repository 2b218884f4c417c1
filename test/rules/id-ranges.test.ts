/** Lists of ids in events: consecutive ids are abbreviated, and lists are read back as written. */
import test from 'ava'
import fc from 'fast-check'
import { formatIds, readIds } from '../../server/rules/id-ranges.js'

test('consecutive ids are a range', t => {
  t.is(formatIds([7, 5, 6, 9, 6, 2_147_483_647]), '5-7,9,2147483647')
  t.deepEqual(readIds('5-7,9,2147483647'), [5, 6, 7, 9, 2_147_483_647])
})

test('any list of ids is read back as written, each id once, in order', t => {
  const ids = fc.uniqueArray(fc.oneof(fc.integer({ min: 1, max: 60 }), fc.integer({ min: 1, max: 2 ** 31 - 1 })), {
    minLength: 1,
  })
  fc.assert(
    fc.property(ids, given => {
      t.deepEqual(
        readIds(formatIds(given)),
        given.toSorted((a, b) => a - b),
      )
    }),
  )
})
