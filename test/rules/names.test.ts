import test from 'ava'
import fc from 'fast-check'
import { formatIds, readIds } from '../../server/rules/id-ranges.js'
import {
  answerKey,
  emailKey,
  isEmailAddress,
  isNewAddress,
  isReservedUsername,
  nicknameKey,
  questionKey,
  usernameKey,
} from '../../server/rules/names.js'
import { maxLengths, tooLong } from '../../server/rules/sizes.js'
import { readTelephone } from '../../server/rules/telephone.js'
import { anyCharacter, everyCharacter } from '../_helpers/characters.js'

const keys = { usernameKey, nicknameKey, questionKey, answerKey, emailKey }
const anyText = fc.oneof(fc.string({ unit: anyCharacter }), fc.string({ unit: 'grapheme' }), fc.string())

for (const [name, key] of Object.entries(keys)) {
  test(`${name} of a key is the key itself`, t => {
    fc.assert(fc.property(anyText, text => key(key(text)) === key(text)))
    t.pass()
  })
}

test('keys of single characters are stable, for every Unicode character', t => {
  for (const character of everyCharacter()) {
    const text = `a${character}\u0301`
    for (const key of [nicknameKey, answerKey])
      if (key(key(text)) !== key(text)) t.fail(character.codePointAt(0)!.toString(16))
  }
  t.pass()
})

test('names ignore case, surrounding and doubled space, compatibility forms and invisible characters', t => {
  const spellings = [' maria  SILVA\u3000', 'Ｍａｒｉａ Silva', 'Ma\u200bria Silva\u200d', 'maria\u00a0silva']
  for (const text of spellings) t.deepEqual([usernameKey(text), nicknameKey(text)], ['maria silva', 'maria silva'])
  t.is(new Set(['straße', 'STRASSE', 'STRAẞE', 'strasse'].map(nicknameKey)).size, 1)
  t.is(nicknameKey('Jose\u0301'), nicknameKey('JOSÉ'))
  t.not(nicknameKey('José'), nicknameKey('Jose'))
  t.is(nicknameKey('\u200b \u3164'), '')
})

test('a name with a control character or line separator has no key', t => {
  for (const character of ['\0', '\t', '\n', '\r', '\x1b', '\x7f', '\x85', '\u2028', '\u2029'])
    for (const text of [`al${character}ice`, `${character}alice`, `alice${character}`, `(11)98765-4321${character}`])
      t.deepEqual([usernameKey(text), nicknameKey(text)], ['', ''], JSON.stringify(text))
})

test('a telephone number is one username in every spelling, and plain text as a nickname', t => {
  for (const text of ['(11)98765-4321', ' 011 98765-4321', '٠١١٩٨٧٦٥٤٣٢١', '（11）98765-4321', '5511987654321'])
    t.is(usernameKey(text), 'tel:+5511987654321', text)
  t.is(nicknameKey('(11)98765-4321'), '(11)98765-4321')
})

test('a text that can’t be stored has the key of the empty name', t => {
  for (const key of [usernameKey, nicknameKey, questionKey, answerKey]) {
    t.not(key('🙂'.repeat(255)), '')
    for (const bad of ['a'.repeat(256), '🙂'.repeat(256), `${'x'.repeat(1023)}🙂`, 'a\ud83d', '\udc00a'])
      t.is(key(bad), '')
  }
  t.is(emailKey(`${'a'.repeat(251)}@b`).length, 253)
  t.is(emailKey(`${'a'.repeat(253)}@b`), '')
  t.is(emailKey('a\ud83d@example.org'), '')
})

test.serial('long texts aren’t normalized for a key', t => {
  const own = String.prototype.normalize
  const lengths: number[] = []
  String.prototype.normalize = function (form?: string) {
    lengths.push(this.length)
    return own.call(this, form)
  }
  try {
    for (const key of [...Object.values(keys), isReservedUsername, isEmailAddress])
      key(`a@${'u\u0308\u0323'.repeat(20_000)}.example`)
  } finally {
    String.prototype.normalize = own
  }
  t.true(lengths.every(length => length < 512))
})

test('questions and answers ignore case, accents and extra space', t => {
  for (const text of ['São João', ' sao   joao ', 'SÃO JOÃO', 'Sa\u0303o Joa\u0303o']) t.is(answerKey(text), 'sao joao')
  t.is(questionKey('Qual é a sua cor?'), questionKey('QUAL E A SUA COR?'))
  t.is(answerKey(' \u0301 '), '')
})

test('path words are reserved in every spelling, and nothing else is', t => {
  for (const text of [
    ...['me', 'ME ', 'Refresh', 'ｌｏｇｉｎ', 'signup', 'activate', 'EXISTSBYUSERNAME', 'existsByNickname'],
    ...['sendadminkeybyemailpartner', '{username}', '{Username}', '1.0.0', '1.0.2', '..'],
  ])
    t.true(isReservedUsername(text), text)
  for (const text of ['mel', 'menu', 'admin', '(11)98765-4321', '1.0.3', '']) t.false(isReservedUsername(text), text)
})

test('# and digits of any script are reserved, in every spelling, and other uses of # are not', t => {
  for (const text of ['#1', ' #007 ', '＃１', '#１', '﹟3', '#٣', '#३४', '#\u200b12', '#4294967296'])
    t.true(isReservedUsername(text), text)
  for (const text of ['#', '#a', '#1a', '1', '##1', 'a#1', '# 1', '#1.5', '#½']) t.false(isReservedUsername(text), text)
})

test('addresses of RFC 5321 are accepted', t => {
  for (const address of [
    ...['maria@example.org', 'maria.silva+x@sub.example.com.br', "!#$%&'*+-/=?^_`{|}~@example.org", 'a@localhost'],
    ...['a@[192.0.2.1]', 'a@[IPv6:2001:db8::1]', 'a@xn--bcher-kva.example', 'a@bücher.example', 'a@EXAMPLE.ORG'],
    ...[`${'a'.repeat(64)}@example.org`, 'a@bu\u0308cher.example', 'a@日本語.jp', 'a@straße.de', 'a@xn--aa-ea.com'],
    ...['a@2x.1and1.com', 'a@0xabc.g'],
  ])
    t.true(isEmailAddress(address), address)
})

test('an address is set only if its domain has a dot, or is an address literal', t => {
  for (const address of ['ana@gmail.com', 'ana@[192.0.2.1]', 'ana@[IPv6:2001:db8::1]', 'a@bücher.example'])
    t.true(isNewAddress(address), address)
  for (const address of ['ana@gmail', 'ana.silva@localhost', 'a@bücher', 'ana@', 'a@example..org'])
    t.false(isNewAddress(address), address)
})

test('a text that is not an address by RFC 5321 is refused', t => {
  for (const text of [
    ...['', 'maria', '@example.org', 'maria@', 'maria@@example.org', 'a b@example.org', 'a..b@example.org'],
    ...['.a@example.org', 'a.@example.org', 'a@-example.org', 'a@example-.org', 'a@example..org', 'a@example.org.'],
    ...['a@exam_ple.org', 'a@exa%6dple.org', `a@${'b'.repeat(64)}.org`, `${'a'.repeat(65)}@example.org`],
    ...[`a@${Array(26).fill('b'.repeat(9)).join('.')}`, 'a@[300.0.0.1]', 'a@[IPv6:fe80::1%eth0]', 'a@[192.0.2.1'],
    ...['joão@example.org', '"a"b@example.org', '"a\\"@example.org', ' a@example.org', 'a@example.org\n'],
    ...['a@example.org\r\nBcc: b@example.org', '"a\r\n"@example.org', 'Maria <a@example.org>'],
    ...['a@example.org,b@example.org', 'a@ex\u00adample\u2028.org', '"maria silva"@example.org'],
    ...['"maria"@example.org', 'a@example.org>', 'a@127.0.0.1', 'a@1', 'a@example.0x7f', 'a@１.org.１'],
    ...['a@bücher.xn--bcher-kva.example', 'a@b\ud83d.example', 'a@straẞe.de', `a@b${'\ufe0f'.repeat(300)}.org`],
    ...['a@bücher.XN--bcher-kva.example', 'ana\ud83d@example.org', `a@${'b\u0301\u0323'.repeat(20_000)}.example`],
  ])
    t.false(isEmailAddress(text), text)
})

test('no accepted address can inject into a mail header', t => {
  const near = fc.string({ unit: fc.constantFrom(...'ab."\\@ \r\n<>,:;[]é\u2028'), maxLength: 12 })
  fc.assert(
    fc.property(near, near, (local, domain) => {
      const address = `${local}@${domain}`
      return !isEmailAddress(address) || !/[\p{Cc}\u2028\u2029]/u.test(address)
    }),
    { numRuns: 2000 },
  )
  t.pass()
})

test('addresses compare without case and with the ASCII form of their domain', t => {
  t.is(emailKey(' Maria@Example.ORG '), 'maria@example.org')
  t.is(emailKey('a@BÜCHER.example'), emailKey('A@xn--bcher-kva.example'))
  t.not(emailKey('a.b@example.org'), emailKey('ab@example.org'))
})

// Telephone numbers: one key for all spellings of a number, different keys for different numbers, none for other texts.

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

test('only whole telephone numbers with a real area code are treated as such', t => {
  for (const text of [
    ...['(10)98765-4321', '(20)98765-4321', '(11)88765-43210', '119876543210', '(11)1765-4321', '98765-4321'],
    ...['(11)98765-4321 x', 'a(11)98765-4321', '(11 98765-4321', '11)98765-4321', '+5598765-4321'],
    ...['+1 11 98765-4321', '+11987654321', '00 11 98765-4321', '0 15 11 98765-4321', '(00)11987654321'],
    ...['(0(11)98765-4321', '(55)11987654321', 'tel:11987654321', 'tel:5511987654321', '+5510987654321'],
    ...['11/98765/4321'],
  ]) {
    t.is(readTelephone(text), undefined, text)
  }
})

// Sizes, in characters as users count them.

const kinds = Object.keys(maxLengths) as (keyof typeof maxLengths)[]

test('the limits are the documented ones', t => {
  t.deepEqual(maxLengths, { text: 255, password: 256, email: 254, key: 64, token: 4096 })
})

for (const kind of kinds) {
  test(`${kind}: each character counts once, however many code points it has`, t => {
    const character = fc.constantFrom('a', 'é', '\u0301', '🙂', '語', '\ud83d', '\udc00')
    const around = fc.integer({ min: maxLengths[kind] - 2, max: maxLengths[kind] + 2 })
    fc.assert(
      fc.property(character, around, (each, count) => tooLong(each.repeat(count), kind) === count > maxLengths[kind]),
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

// Lists of ids in events: consecutive ids are abbreviated, and lists are read back as written.

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
