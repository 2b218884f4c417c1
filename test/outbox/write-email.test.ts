import test from 'ava'
import fc from 'fast-check'
import { type Contents, shownUsername, writeEmail as writeIn } from '../../server/outbox/write-email.js'
import { chooseLocale, type Locale } from '../../server/requests/locale.js'
import { anyCharacter } from '../_helpers/characters.js'

const writeEmail = <K extends keyof Contents>(kind: K, locale: Locale, content: Contents[K], zone = 'UTC') =>
  writeIn(kind, locale, content, zone)

/** Notices about what may happen several times, and of those the ones that don't say where from. */
const notices = [
  ...(['password-changed', 'recovery-login', 'account-activated', 'organization-changed', 'username-changed'] as const),
  ...(['answer-saved', 'answer-waits', 'member-deactivated', 'session-ended'] as const),
]
const content = {
  username: '(11)98765-4321',
  at: '2026-11-21T06:10:30Z',
  address: '192.0.2.7',
  organization: 'Escola Azul',
}
const { username, address, organization } = content

test('every e-mail states its purpose in both languages, and how many events it is about', t => {
  for (const locale of ['pt-BR', 'en'] as const) {
    for (const kind of ['recovery-key', 'activation-key'] as const) {
      const { subject, text } = writeEmail(kind, locale, { username, key: 'K7M2PQ9X' })
      t.false(subject.includes(username) || subject.includes('K7M2PQ9X'))
      for (const part of [username, 'K7M2PQ9X', kind === 'recovery-key' ? '15 minut' : '72 ho'])
        t.true(text.includes(part), text)
    }
    for (const kind of [...notices, 'account-deleted', 'provider-key-rotated', 'organization-email-changed'] as const) {
      const { text } = writeEmail(kind, locale, { ...content, times: 1 })
      const named = kind === 'organization-email-changed' ? organization : username
      for (const part of [
        named,
        '2026',
        locale === 'en' ? 'Coordinated Universal Time' : 'Horário Universal Coordenado',
      ])
        t.true(text.includes(part), text)
      t.is(text.includes(address), kind !== 'member-deactivated', text)
    }
  }
  for (const kind of notices) {
    t.regex(writeEmail(kind, 'en', { ...content, times: 451 }).text, /451 times, the last time on/)
    t.regex(writeEmail(kind, 'pt-BR', { ...content, times: 451 }).text, /451 vezes, a última em/)
    t.notRegex(writeEmail(kind, 'pt-BR', { ...content, times: 1 }).text, /vezes|\b1\b.*última/)
  }
})

test('the notices about answers, passwords and copied sessions say what counts, from when, and what ends it', t => {
  const says: Record<string, readonly [en: RegExp, pt: RegExp]> = {
    'answer-saved': [
      /counts at once, and the former answer no longer does/,
      /vale desde já, e a resposta anterior não vale mais/,
    ],
    'answer-waits': [
      /counts from November 22, 2026 at 6:10\sAM \(Coordinated Universal Time\) on\. Until then, the former one does.*log out everywhere/s,
      /vale a partir de 22 de novembro de 2026 às 06:10 \(Horário Universal Coordenado\)\. Até lá vale a anterior.*saia de todos os aparelhos/s,
    ],
    'answers-cleared': [/administrator removed all answers/, /administrador removeu todas as respostas/],
    'session-ended': [
      /If that was you, log in again; no other action is\nneeded\.\nIf it wasn't you,.*log out everywhere/s,
      /Se foi você,\nentre de novo; não é preciso fazer mais nada\.\nSe não foi você,.*saia agora de todos os aparelhos/s,
    ],
    'password-changed': [
      /didn't count yet were discarded, except those\nsaved in the same session: these end when you log out everywhere/,
      /ainda não valiam foram\ndescartadas, exceto as gravadas no mesmo acesso: estas terminam quando você sai de todos/,
    ],
  }
  for (const [kind, [en, pt]] of Object.entries(says)) {
    t.regex(writeEmail(kind as 'answer-waits', 'en', { ...content, times: 1 }).text, en)
    t.regex(writeEmail(kind as 'answer-waits', 'pt-BR', { ...content, times: 1 }).text, pt)
  }
})

/** A time near midnight, as people read it in their time zones. */
const zones: readonly (readonly [zone: string, at: string, pt: string, en: string])[] = [
  [
    'America/Sao_Paulo',
    '2026-11-22T02:30:00Z',
    '21 de novembro de 2026 às 23:30 (Horário Padrão de Brasília)',
    'November 21, 2026 at 11:30 PM (Brasilia Standard Time)',
  ],
  [
    'America/Rio_Branco',
    '2026-11-22T02:30:00Z',
    '21 de novembro de 2026 às 21:30 (Horário Padrão do Acre)',
    'November 21, 2026 at 9:30 PM (Acre Standard Time)',
  ],
  [
    'Europe/Lisbon',
    '2026-07-01T23:30:00Z',
    '2 de julho de 2026 às 00:30 (Horário de Verão da Europa Ocidental)',
    'July 2, 2026 at 12:30 AM (Western European Summer Time)',
  ],
  [
    'Europe/Lisbon',
    '2026-12-01T23:30:00Z',
    '1 de dezembro de 2026 às 23:30 (Horário Padrão da Europa Ocidental)',
    'December 1, 2026 at 11:30 PM (Western European Standard Time)',
  ],
]

test('times are in the time zone of the settings, with its name at that time', t => {
  for (const [zone, at, pt, en] of zones) {
    const text = (locale: Locale) => writeEmail('password-changed', locale, { ...content, at }, zone).text
    t.true(text('pt-BR').includes(pt), text('pt-BR'))
    // ICU separates AM by a narrow space.
    t.true(text('en').replace(/\s/g, ' ').includes(en), text('en'))
  }
})

test('a name can’t add lines or reverse text', t => {
  const { text } = writeEmail('recovery-key', 'en', { username: 'a\r\n\r\nYour key: EVIL\u202e', key: 'K' })
  t.notRegex(text, /\r|\u202e|^Your key: EVIL/m)
})

const part = fc.oneof(
  fc.webUrl(),
  fc.emailAddress(),
  fc.domain(),
  fc.ipV4(),
  fc.ipV6(),
  fc.string({ unit: anyCharacter }),
  fc.string({ unit: 'grapheme' }),
  fc.constantFrom(
    ...['http://', 'WWW.', 'ｗｗｗ．', 'example。org', 'a＠b', 'a․b', '⒈', '℀', '\u200b', '\u3164', '\ufe0f', '\u202e'],
    ...['mailto:', '//', ' '],
  ),
)
const anyUsername = fc.array(part, { maxLength: 6 }).map(parts => parts.join(''))

test('a username in an e-mail contains no link or address, and shows at most 40 characters', t => {
  fc.assert(
    fc.property(anyUsername, name => {
      const shown = shownUsername(name)
      // As mail clients may interpret it: compatibility forms are dots, slashes and signs.
      const read = shown.replace(/…$/, '').normalize('NFKC')
      t.notRegex(read, /[@:/\\.。#%?=&<>\p{Cc}\p{Cf}\p{Cs}\p{Default_Ignorable_Code_Point}]/u, name)
      t.true([...shown].length <= 40, name)
      for (const kind of ['recovery-key', 'activation-key'] as const) {
        t.true(writeEmail(kind, 'en', { username: name, key: 'K' }).text.includes(` ${shown}`))
      }
    }),
    { numRuns: 2000 },
  )
})

test('names and telephone numbers stay readable', t => {
  const plain = ['(11)98765-4321', '+55 11 98765-4321', 'João d’Ávila_2', "Ana O'Neil", '大文字', 'a'.repeat(40)]
  for (const name of plain) t.is(shownUsername(name), name)
  t.is(shownUsername('ana.silva@example.org'), 'ana·silva·example·org')
  t.is(shownUsername('http://www.example.org/a?b'), 'http·www·example·org·a·b')
  t.is(shownUsername('a'.repeat(41)), `${'a'.repeat(39)}…`)
})

test('the language follows Accept-Language by quality, with a fallback', t => {
  const choices = {
    en: ['en', 'en-US,en;q=0.9', 'fr, en;q=0.3', 'pt;q=0, en;q=0.1', 'EN-gb'],
    'pt-BR': [undefined, '', 'pt', 'pt-PT', 'en;q=0.3, pt;q=0.8', 'fr', '*', 'entropy', ';;;=,,,q'],
  }
  for (const [locale, headers] of Object.entries(choices))
    for (const header of headers) t.is<string, string>(chooseLocale(header, 'pt-BR'), locale, String(header))
  t.is(chooseLocale('*', 'en'), 'en')
})
