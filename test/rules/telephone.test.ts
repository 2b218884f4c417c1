/** Telephone numbers: one key for all spellings of a number, different keys for different numbers, none for other texts. */
import test from 'ava'
import fc from 'fast-check'
import { usernameKey } from '../../server/rules/names.js'
import { readTelephone } from '../../server/rules/telephone.js'

const areaCodes = [
  ...[11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 24, 27, 28, 31, 32, 33, 34, 35, 37, 38, 41, 42, 43, 44, 45, 46, 47],
  ...[48, 49, 51, 53, 54, 55, 61, 62, 63, 64, 65, 66, 67, 68, 69, 71, 73, 74, 75, 77, 79, 81, 82, 83, 84, 85, 86, 87],
  ...[88, 89, 91, 92, 93, 94, 95, 96, 97, 98, 99],
]
const subscriber = fc.oneof(
  fc.integer({ min: 900000000, max: 999999999 }).map(String),
  fc.integer({ min: 20000000, max: 99999999 }).map(String),
)
const number = fc.record({ area: fc.constantFrom(...areaCodes).map(String), subscriber })

/** Ten digits of each decimal system in Unicode, from locale data instead of the code under test. */
const systems = Intl.supportedValuesOf('numberingSystem')
  .map(system => {
    const { format } = new Intl.NumberFormat('en', { numberingSystem: system, useGrouping: false })
    return Array.from({ length: 10 }, (_, digit) => format(digit))
  })
  .filter(digits => digits.every(digit => /^\p{Nd}$/u.test(digit)))

const separator = fc.constantFrom('', ' ', '-', '.', ' - ', '\u00a0', '–', '‑', '  ')
const spelling = fc
  .record({
    country: fc.constantFrom('', '+55', '55', 'tel:+55', '＋55', 'TEL:+55'),
    trunk: fc.constantFrom('', '', '0', '(0)'),
    brackets: fc.constantFrom('', '()', '(0)', '（）'),
    separators: fc.array(separator, { minLength: 5, maxLength: 5 }),
    digits: fc.option(fc.constantFrom(...systems), { nil: undefined, freq: 2 }),
  })
  .map(({ country, trunk, brackets, separators, digits }) => (area: string, subscriber: string) => {
    const [a, b, c, d, e] = separators as [string, string, string, string, string]
    const bracketed =
      brackets === '' ? area : brackets === '(0)' ? `(0${area})` : `${brackets[0]}${a}${area}${brackets[1]}`
    const prefix = brackets === '(0)' ? '' : trunk
    const text = [a, country, b, prefix, c, bracketed, d, subscriber.slice(0, -4), e, subscriber.slice(-4)].join('')
    return digits === undefined ? text : text.replace(/\d/g, digit => digits[Number(digit)]!)
  })

test('all spellings of a number share one key, which holds the number', t => {
  t.is(areaCodes.length, 67)
  t.true(systems.length > 50)
  fc.assert(
    fc.property(number, spelling, ({ area, subscriber }, spell) => {
      t.is(usernameKey(spell(area, subscriber)), `tel:+55${area}${subscriber}`)
    }),
    { numRuns: 2000 },
  )
})

test('every area code and every system of decimal digits is recognized', t => {
  for (const area of areaCodes) {
    for (const prefix of ['', '0', '55', '+55', '550', '+550']) {
      t.is(readTelephone(`${prefix}${area}987654321`), `tel:+55${area}987654321`, prefix)
      t.is(readTelephone(`${prefix}${area}34567890`), `tel:+55${area}34567890`, prefix)
    }
  }
  const others = Array.from({ length: 100 }, (_, area) => area).filter(area => !areaCodes.includes(area))
  for (const area of others) t.is(readTelephone(`(${String(area).padStart(2, '0')})987654321`), undefined, `${area}`)
  for (const digits of systems) {
    const text = [...'11987654320'].map(digit => digits[Number(digit)]).join('')
    t.is(usernameKey(text), 'tel:+5511987654320', text)
  }
})

test('55 is a country code only before a complete number, and otherwise an area code', t => {
  const keys: Record<string, string> = {
    '55987654321': 'tel:+5555987654321',
    '5532345678': 'tel:+555532345678',
    '055987654321': 'tel:+5555987654321',
    '5555987654321': 'tel:+5555987654321',
    '555532345678': 'tel:+555532345678',
    '5511987654321': 'tel:+5511987654321',
    '551134567890': 'tel:+551134567890',
    '550551134567890': '550551134567890',
    '555511987654321': '555511987654321',
    '55555555555': '55555555555',
    '555555555555': 'tel:+555555555555',
  }
  for (const [text, key] of Object.entries(keys)) t.is(usernameKey(text), key, text)
})

test('different numbers have different keys in every spelling', t => {
  fc.assert(
    fc.property(number, number, spelling, spelling, (one, other, spell, spellOther) => {
      const same = one.area === other.area && one.subscriber === other.subscriber
      const keys = [spell(one.area, one.subscriber), spellOther(other.area, other.subscriber)].map(usernameKey)
      return (keys[0] === keys[1]) === same
    }),
    { numRuns: 2000 },
  )
  // Numbers that differ in one digit, or in what could be a prefix.
  fc.assert(
    fc.property(number, fc.nat(8), fc.integer({ min: 1, max: 9 }), spelling, ({ area, subscriber }, at, by, spell) => {
      const digits = [...subscriber]
      const place = at % digits.length
      digits[place] = String((Number(digits[place]) + by) % 10)
      return usernameKey(spell(area, digits.join(''))) !== `tel:+55${area}${subscriber}`
    }),
  )
  t.pass()
})

test('no other name has the key of a telephone number', t => {
  const key = usernameKey('(11)98765-4321')
  const near = fc.string({ unit: fc.constantFrom(...'tel:+50(11)98765-4321 .xA') })
  const mutated = fc.tuple(spelling, fc.nat(30), fc.constantFrom(...'0159()+-x ', '')).map(([spell, at, put]) => {
    const text = spell('11', '987654321')
    return text.slice(0, at) + put + text.slice(at + 1)
  })
  fc.assert(
    fc.property(fc.oneof(near, mutated), text => {
      const ascii = text.replace(/\p{Nd}/gu, digit =>
        String(systems.find(each => each.includes(digit))!.indexOf(digit)),
      )
      return usernameKey(text) !== key || ascii.replace(/\D/g, '').endsWith('11987654321')
    }),
  )
  t.pass()
})

test('only whole telephone numbers with a real area code are treated as such', t => {
  for (const text of [
    '(10)98765-4321',
    '(20)98765-4321',
    '(11)88765-43210',
    '119876543210',
    '(11)1765-4321',
    '98765-4321',
    '(11)98765-4321 x',
    'a(11)98765-4321',
    '(11 98765-4321',
    '11)98765-4321',
    '+5598765-4321',
    '+1 11 98765-4321',
    '+11987654321',
    '00 11 98765-4321',
    '0 15 11 98765-4321',
    '(00)11987654321',
    '(0(11)98765-4321',
    '(55)11987654321',
    'tel:11987654321',
    'tel:5511987654321',
    '+5510987654321',
    '11/98765/4321',
  ]) {
    t.is(readTelephone(text), undefined, text)
  }
})
