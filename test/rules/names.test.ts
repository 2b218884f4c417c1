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
} from '../../server/rules/names.js'
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
  for (const text of [
    'Maria Silva',
    ' maria  SILVA\u3000',
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
  t.not(answerKey('azul'), answerKey('azul.'))
  t.is(answerKey(' \u0301 '), '')
})

test('path words are reserved in every spelling, and nothing else is', t => {
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

test('# and digits of any script are reserved, in every spelling, and other uses of # are not', t => {
  for (const text of ['#1', ' #007 ', '＃１', '#１', '﹟3', '#٣', '#३४', '#\u200b12', '#4294967296'])
    t.true(isReservedUsername(text), text)
  for (const text of ['#', '#a', '#1a', '1', '##1', 'a#1', '# 1', '#1.5', '#½']) t.false(isReservedUsername(text), text)
})

test('addresses of RFC 5321 are accepted', t => {
  for (const address of [
    'maria@example.org',
    'maria.silva+x@sub.example.com.br',
    "!#$%&'*+-/=?^_`{|}~@example.org",
    'a@localhost',
    'a@[192.0.2.1]',
    'a@[IPv6:2001:db8::1]',
    'a@xn--bcher-kva.example',
    'a@bücher.example',
    'a@EXAMPLE.ORG',
    `${'a'.repeat(64)}@example.org`,
    'a@bu\u0308cher.example',
    'a@日本語.jp',
    'a@straße.de',
    'a@xn--aa-ea.com',
    'a@2x.1and1.com',
    'a@0xabc.g',
  ]) {
    t.true(isEmailAddress(address), address)
  }
})

test('a text that is not an address by RFC 5321 is refused', t => {
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
    '"maria silva"@example.org',
    '"maria"@example.org',
    'a@example.org>',
    'a@127.0.0.1',
    'a@1',
    'a@example.0x7f',
    'a@１.org.１',
    'a@bücher.xn--bcher-kva.example',
    'a@b\ud83d.example',
    'a@straẞe.de',
    `a@b${'\ufe0f'.repeat(300)}.org`,
    'a@bücher.XN--bcher-kva.example',
    'ana\ud83d@example.org',
    `a@${'b\u0301\u0323'.repeat(20_000)}.example`,
  ]) {
    t.false(isEmailAddress(text), text)
  }
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
