import test from 'ava'
import fc from 'fast-check'
import { limits, tooLong } from '../../server/rules/sizes.js'

const kinds = Object.keys(limits) as (keyof typeof limits)[]

test('the limits are the documented ones', t => {
  t.deepEqual(limits, { text: 255, password: 256, email: 254, key: 64, token: 4096 })
})

for (const kind of kinds) {
  test(`${kind}: each character counts once, however many code points it has`, t => {
    const character = fc.constantFrom('a', 'é', '\u0301', '🙂', '語', '\ud83d', '\udc00')
    const around = fc.integer({ min: limits[kind] - 2, max: limits[kind] + 2 })
    fc.assert(
      fc.property(character, around, (each, count) => tooLong(each.repeat(count), kind) === count > limits[kind]),
    )
    t.false(tooLong('', kind))
  })
}

test('a long text is refused without counting its characters', t => {
  const own = String.prototype[Symbol.iterator]
  let counted = false
  String.prototype[Symbol.iterator] = function () {
    counted = true
    return own.call(this)
  }
  try {
    t.true(tooLong('🙂'.repeat(5000), 'token'))
    t.false(counted)
    t.false(tooLong('🙂'.repeat(4000), 'token'))
    t.true(counted)
  } finally {
    String.prototype[Symbol.iterator] = own
  }
})
