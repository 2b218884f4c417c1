import test from 'ava'
import fc from 'fast-check'
import {
  answerKey,
  emailKey,
  isEmailAddress,
  isReservedUsername,
  nicknameKey,
  questionKey,
  usernameKey,
} from '../../server/names.js'

const keys = { usernameKey, nicknameKey, questionKey, answerKey, emailKey }
const anyText = fc.oneof(fc.string({ unit: 'binary' }), fc.string({ unit: 'grapheme' }), fc.string())

for (const [name, key] of Object.entries(keys)) {
  test(`${name} of a key is the key itself`, t => {
    fc.assert(fc.property(anyText, text => key(key(text)) === key(text)))
    t.pass()
  })
}

test('keys of single characters are stable, for every character there is', t => {
  for (let point = 0; point <= 0x10ffff; point++) {
    const text = `a${String.fromCodePoint(point)}\u0301`
    for (const key of [nicknameKey, answerKey]) if (key(key(text)) !== key(text)) t.fail(point.toString(16))
  }
  t.pass()
})

test('names ignore case, surrounding and doubled space, compatibility forms and invisible characters', t => {
  for (const text of [
    'Maria Silva',
    ' maria  SILVA\t',
    'Ｍａｒｉａ Silva',
    'Ma\u200bria Silva\u200d',
    'maria\u00a0silva',
  ]) {
    t.is(usernameKey(text), 'maria silva')
    t.is(nicknameKey(text), 'maria silva')
  }
  t.is(new Set(['straße', 'STRASSE', 'STRAẞE', 'strasse'].map(nicknameKey)).size, 1)
  t.is(nicknameKey('Jose\u0301'), nicknameKey('JOSÉ'))
  t.not(nicknameKey('José'), nicknameKey('Jose'))
  t.is(nicknameKey('\u200b \u3164'), '')
})

const areaCodes = [
  ...[11, 12, 13, 14, 15, 16, 17, 18, 19, 21, 22, 24, 27, 28, 31, 32, 33, 34, 35, 37, 38, 41, 42, 43, 44, 45, 46, 47],
  ...[48, 49, 51, 53, 54, 55, 61, 62, 63, 64, 65, 66, 67, 68, 69, 71, 73, 74, 75, 77, 79, 81, 82, 83, 84, 85, 86, 87],
  ...[88, 89, 91, 92, 93, 94, 95, 96, 97, 98, 99],
]
const subscriber = fc.oneof(
  fc.integer({ min: 900000000, max: 999999999 }).map(String),
  fc.integer({ min: 20000000, max: 99999999 }).map(String),
)

test('a telephone number is one username in all its spellings', t => {
  t.is(areaCodes.length, 67)
  fc.assert(
    fc.property(fc.constantFrom(...areaCodes), subscriber, (area, number) => {
      const [head, tail] = [number.slice(0, -4), number.slice(-4)]
      const spellings = [
        `(${area})${head}-${tail}`,
        `(${area}) ${head}-${tail}`,
        `${area}${number}`,
        `${area} ${head} ${tail}`,
        `${area}.${head}.${tail}`,
        ` ${area}-${head}–${tail} `,
        `+55${area}${number}`,
        `+55 (${area}) ${head}-${tail}`,
        `tel:+55-${area}-${head}-${tail}`,
        `（${area}）${head}-${tail}`,
      ]
      return spellings.every(spelling => usernameKey(spelling) === `tel:+55${area}${number}`)
    }),
  )
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
    'tel:11987654321',
    'tel:+5510987654321',
  ]) {
    t.is(usernameKey(text), nicknameKey(text), text)
  }
  t.is(usernameKey('55987654321'), 'tel:+5555987654321')
  t.is(nicknameKey('(11)98765-4321'), '(11)98765-4321')
})

test('no other name has the key of a telephone number', t => {
  const key = usernameKey('(11)98765-4321')
  fc.assert(
    fc.property(fc.string({ unit: fc.constantFrom(...'tel:+5(1)98765-4321 xA') }), text =>
      usernameKey(text) === key ? text.replace(/\D/g, '').endsWith('11987654321') : true,
    ),
  )
  t.not(usernameKey('+5511987654321 '), usernameKey('+551198765432'))
})

test('questions and answers ignore case, accents and extra space', t => {
  for (const text of ['São João', ' sao   joao ', 'SÃO JOÃO', 'Sa\u0303o Joa\u0303o']) t.is(answerKey(text), 'sao joao')
  t.is(questionKey('Qual é a sua cor?'), questionKey('QUAL E A SUA COR?'))
  t.not(answerKey('azul'), answerKey('azul.'))
  t.is(answerKey(' \u0301 '), '')
})

test('words of the paths are reserved in every spelling, and nothing else is', t => {
  for (const text of [
    'me',
    'ME ',
    'Refresh',
    'ｌｏｇｉｎ',
    'signup',
    'activate',
    'EXISTSBYUSERNAME',
    'existsByNickname',
  ]) {
    t.true(isReservedUsername(text), text)
  }
  for (const text of ['sendadminkeybyemailpartner', '{username}', '{Username}', '1.0.0', '1.0.2', '..']) {
    t.true(isReservedUsername(text), text)
  }
  for (const text of ['mel', 'menu', 'admin', '(11)98765-4321', '1.0.3', '']) t.false(isReservedUsername(text), text)
})

test('addresses of RFC 5321 are accepted', t => {
  for (const address of [
    'maria@example.org',
    'maria.silva+x@sub.example.com.br',
    "!#$%&'*+-/=?^_`{|}~@example.org",
    '"maria silva"@example.org',
    '"a\\"b@c"@example.org',
    'a@localhost',
    'a@[192.0.2.1]',
    'a@[IPv6:2001:db8::1]',
    'a@xn--bcher-kva.example',
    'a@bücher.example',
    'a@EXAMPLE.ORG',
    `${'a'.repeat(64)}@example.org`,
  ]) {
    t.true(isEmailAddress(address), address)
  }
})

test('what is no address of RFC 5321 is refused', t => {
  for (const text of [
    '',
    'maria',
    '@example.org',
    'maria@',
    'maria@@example.org',
    'a b@example.org',
    'a..b@example.org',
    '.a@example.org',
    'a.@example.org',
    'a@-example.org',
    'a@example-.org',
    'a@example..org',
    'a@example.org.',
    'a@exam_ple.org',
    'a@exa%6dple.org',
    `a@${'b'.repeat(64)}.org`,
    `${'a'.repeat(65)}@example.org`,
    `a@${Array(26).fill('b'.repeat(9)).join('.')}`,
    'a@[300.0.0.1]',
    'a@[IPv6:fe80::1%eth0]',
    'a@[192.0.2.1',
    'joão@example.org',
    '"a"b@example.org',
    '"a\\"@example.org',
    ' a@example.org',
    'a@example.org\n',
    'a@example.org\r\nBcc: b@example.org',
    '"a\r\n"@example.org',
    'Maria <a@example.org>',
    'a@example.org,b@example.org',
    'a@ex\u00adample\u2028.org',
  ]) {
    t.false(isEmailAddress(text), text)
  }
})

test('no accepted address can break a mail header', t => {
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
