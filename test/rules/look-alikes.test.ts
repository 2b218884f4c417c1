/** Look-alikes: the same skeleton, single scripts, and case. */
import test from 'ava'
import fc from 'fast-check'
import { lookAlike, nicknameSkeleton, shareScript, usernameSkeleton } from '../../server/rules/look-alikes.js'
import { nicknameKey, usernameKey } from '../../server/rules/names.js'
import { anyCharacter, everyCharacter } from '../_helpers/characters.js'

/** Whether a reader can confuse two names. */
const alike = (one: string, other: string) =>
  usernameKey(one) !== usernameKey(other) &&
  usernameSkeleton(one) === usernameSkeleton(other) &&
  lookAlike(usernameKey(one), usernameKey(other))

/** Names, and others with letters of other scripts. */
const lookalikes: [name: string, ...others: string[]][] = [
  ['admin', ...['аdmin', 'аdmіn', 'АDMIN', 'аdrnin', 'ɑdmin', '⍺dmin', 'αdmin', 'admiո', 'аｄｍｉｎ', 'ad𝗆іn']],
  ['scope', 'ѕсоре', 'sсope'],
  ['Bruno', 'Вruno', 'ВRUNO', 'brunο'],
  ['Nathan', 'ΝATHAN'],
  ['Ivo', 'Ӏvo', 'lvо'],
  ['joão', 'jоão', 'јoa\u0303o'],
  ['Анна', 'Аннa', 'аhна'],
  ['Ολγα', 'Oλγα'],
  ['maria 1', 'maria ا'],
  ['(11)98765-4321', '(11)98765-4З21', '11 98765 43２１ '.replace('1', 'ӏ'), 'ӏӏ98765432ӏ', '(11)98765-4З2l'],
]

/** Names, and others with marks that don’t show. */
const dotted: [name: string, ...others: string[]][] = [
  ['admin', 'admi\u0307n', 'ADMI\u0307N', 'admı\u0307n', 'admİn', 'admi\u0307\u0307n', 'аdmi\u0307n', 'admі\u0307n'],
  ['jorge', 'j\u0307orge', 'J\u0307orge', 'ȷ\u0307orge', 'ϳ\u0307orge'],
  ['lịn', 'li\u0323\u0307n', 'li\u0307\u0323n', 'lị\u0307n'],
  ['įna', 'į\u0307na', 'i\u0307\u0328na'],
  ['ɨx', 'ɨ\u0307x'],
  ['їжак', 'ї\u0308жак'],
  ['іван', 'і\u0307ван'],
  ['joão', 'joã\u0303o', 'joa\u0303\u0303\u0303o'],
  ['čapek', 'c\u030c\u030capek'],
]

test('names with letters of other scripts, or with marks that don’t show, are look-alikes', t => {
  for (const [name, ...others] of [...lookalikes, ...dotted])
    for (const other of others) t.true(alike(name, other) && alike(other, name), `${name} ${other}`)
})

test('names with marks that show aren’t look-alikes of those without', t => {
  const plain = ['jose', 'aline', 'nguyen', 'hanh', 'zilvinas', 'jurate', 'indre', 'itala', 'janis', 'cagla', 'zelina']
  const marked = [
    ...['josé', 'alíne', 'nguyễn', 'hạnh', 'žilvinas', 'jūratė', 'i\u0307\u0301ndre', 'ítala', 'ǰanis'],
    ...['çağla', 'żelina'],
  ]
  for (const [index, name] of marked.entries()) t.false(alike(name, plain[index]!), name)
  // The Lithuanian i keeps its dot below an accent.
  for (const [one, other] of [
    ['ìndre', 'i\u0307\u0300ndre'],
    ['vĩa', 'vi\u0307\u0303a'],
    ['ế', 'ê'],
    ['ċa', 'ca'],
    ['ė', 'e'],
  ] as const)
    t.false(alike(one, other), one)
})

test('names that a reader can distinguish aren’t look-alikes', t => {
  for (const [one, other] of [
    ['joão', 'joao'],
    ['maria', 'mария'],
    ['анна', 'anna'],
    ['иван', 'ivan'],
    ['山田たろう', '山田太郎'],
    ['a-b', 'a_b'],
    ['(11)98765-4321', '(11)98765-4322'],
  ] as const)
    t.not(usernameSkeleton(one), usernameSkeleton(other), `${one} ${other}`)
})

test('a telephone number has the same skeleton in every spelling', t => {
  for (const text of ['(15)98765-4320', 'tel:+5515987654320', '015 98765 4320', '٠١٥٩٨٧٦٥٤٣٢٠', '5515987654320'])
    t.is(usernameSkeleton(text), 'tel:+5515987654320', text)
})

test('names in one script aren’t look-alikes, however similar they are', t => {
  for (const [one, other] of [
    ['maria1', 'marial'],
    ['paulo0', 'pauloo'],
    ['rnaria', 'maria'],
    ['(11)98765-432l', '(11)98765-4321'],
    ['d’ávila', "d'ávila"],
    ['王士', '王土'],
    ['דן', 'דו'],
    ['一二', 'ー二'],
    ['ус', 'үс'],
    ['김1', '김l'.replace('l', 'ｌ').normalize('NFKC').replace('l', '1')],
  ] as const) {
    t.is(usernameSkeleton(one), usernameSkeleton(other), `${one} ${other}`)
    t.false(alike(one, other), `${one} ${other}`)
  }
})

test('scripts that are commonly combined count as one script, and other combinations don’t', t => {
  for (const text of [
    ...['山田たろう', '東京タワー', '김 金', 'ㄅ注音', 'joão d’ávila 2', 'thạch', 'şıķ', 'мой-1', 'שלום', 'محمد١'],
    ...['สมชาย', 'tel:+5511987654321'],
  ])
    t.true(shareScript(nicknameKey(text), nicknameKey(text)), text)
  for (const text of ['аdmin', 'ɑdmin', '⍺dmin', 'maria ا', 'たろう김', 'αб', 'ꮪcope', '𐌀bc', 'jо\u0303'])
    t.false(shareScript(nicknameKey(text), nicknameKey(text)), text)
})

const name = fc.oneof(
  fc.string({ unit: fc.constantFrom(...'aeimnorsuv01lI|O -ãç'), maxLength: 20 }),
  fc.string({ unit: fc.constantFrom(...'аеоінвт\u0430aimoIԀӀlрРНВ1'), maxLength: 20 }),
  fc.string({ unit: anyCharacter, maxLength: 20 }),
  fc.string({ unit: 'grapheme', maxLength: 20 }),
)

test('a skeleton is its own skeleton', t => {
  fc.assert(fc.property(name, text => nicknameSkeleton(nicknameSkeleton(text)) === nicknameSkeleton(text)))
  for (const character of everyCharacter()) {
    const skeleton = nicknameSkeleton(`a${character}\u0301`)
    if (nicknameSkeleton(skeleton) !== skeleton) t.fail(character.codePointAt(0)!.toString(16))
  }
  t.pass()
})

test('the skeleton of a name in Latin letters has no case, and ignores what its key ignores', t => {
  const latin = fc.string({
    unit: fc.constantFrom(...'abcdefghijklmnopqrstuvwxyzáàãâéêíóõôúüçñßøæ 0123456789-_.@'),
    maxLength: 20,
  })
  fc.assert(
    fc.property(latin, text => {
      const skeleton = nicknameSkeleton(text)
      return [text.toUpperCase(), ` ${text} `, `${text}\u200b`, text.normalize('NFD')].every(
        other => nicknameSkeleton(other) === skeleton,
      )
    }),
  )
  t.pass()
})

test('a text that can’t be a name has no look-alikes', t => {
  for (const text of ['', '\u200b', 'a'.repeat(256), '\u0301'.repeat(30_000), 'a\ud83d']) {
    t.is(nicknameSkeleton(text), '')
    t.is(usernameSkeleton(text), '')
  }
})
