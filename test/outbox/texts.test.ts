import test from 'ava'
import { chooseLocale, writeEmail } from '../../server/outbox/texts.js'

test('every e-mail says what it is for, in both languages', t => {
  const username = '(11)98765-4321'
  const at = '2026-11-21T06:10:00Z'
  for (const locale of ['pt-BR', 'en'] as const) {
    for (const kind of ['recovery-key', 'activation-key'] as const) {
      const { subject, text } = writeEmail(kind, locale, { username, key: 'K7M2PQ9X' })
      t.false(subject.includes(username) || subject.includes('K7M2PQ9X'))
      t.true(text.includes(username) && text.includes('K7M2PQ9X'))
      t.true(text.includes(kind === 'recovery-key' ? '15 minut' : '72 ho'))
    }
    for (const kind of ['password-changed', 'recovery-login'] as const) {
      const { text } = writeEmail(kind, locale, { username, at, address: '192.0.2.7' })
      t.true(text.includes(username) && text.includes('192.0.2.7') && text.includes('2026') && text.includes('UTC'))
    }
  }
  t.regex(
    writeEmail('recovery-login', 'en', { username, at, address: '::1', how: 'answers' }).text,
    /security questions/,
  )
})

test('a name can’t add lines or turn text around', t => {
  const { text } = writeEmail('recovery-key', 'en', { username: 'a\r\n\r\nYour key: EVIL\u202e', key: 'K' })
  t.notRegex(text, /\r|\u202e|^Your key: EVIL/m)
})

test('the language follows Accept-Language by quality, and falls back', t => {
  const choices: [string | undefined, string][] = [
    [undefined, 'pt-BR'],
    ['', 'pt-BR'],
    ['en', 'en'],
    ['en-US,en;q=0.9', 'en'],
    ['pt', 'pt-BR'],
    ['pt-PT', 'pt-BR'],
    ['fr, en;q=0.3', 'en'],
    ['en;q=0.3, pt;q=0.8', 'pt-BR'],
    ['pt;q=0, en;q=0.1', 'en'],
    ['fr', 'pt-BR'],
    ['*', 'pt-BR'],
    ['EN-gb', 'en'],
    ['entropy', 'pt-BR'],
    [';;;=,,,q', 'pt-BR'],
  ]
  for (const [header, locale] of choices) t.is(chooseLocale(header, 'pt-BR'), locale as 'en', String(header))
  t.is(chooseLocale('*', 'en'), 'en')
})
