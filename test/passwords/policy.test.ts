import { mkdtemp, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import fc from 'fast-check'
import { checkPassword, createPasswordPolicy, preparePassword } from '../../server/passwords/policy.js'
import { nicknameKey } from '../../server/rules/names.js'
import { anyCharacter } from '../_helpers/characters.js'

const policy = createPasswordPolicy({ minLength: 8 })
const check = (password: string, user = {}) => checkPassword(password, user, policy)

test('normalizing a password is idempotent', t => {
  fc.assert(
    fc.property(fc.string({ unit: anyCharacter }), text => {
      const once = preparePassword(text)
      return once === undefined || preparePassword(once) === once
    }),
    { numRuns: 1000 },
  )
  t.pass()
})

test('control characters and broken text can’t be a password', t => {
  for (const bad of ['', 'abc\u0000def', 'abcdefgh\n', '\u0085abcdefgh', 'abcdefg\ud800'])
    t.is(preparePassword(bad), undefined)
  t.truthy(check('abcdefgh\u0000ijk'))
  t.truthy(check('abcdefghijk\udc00'))
})

test('8 to 256 characters of any script are acceptable', t => {
  t.truthy(check('kT4#xw!'))
  t.is(check('kT4#xw!z'), undefined)
  t.truthy(check('🙂🦊🐙🌵🎲🚲🧭'))
  t.is(check('🙂🦊🐙🌵🎲🚲🧭🪁'), undefined)
  t.is(check('ã🙂'.repeat(128)), undefined)
  t.truthy(check(`${'ã🙂'.repeat(128)}x`))
  t.is(check('senha muito própria minha'), undefined)
  t.truthy(check(' '.repeat(12)))
  t.regex(checkPassword('short', {}, { ...policy, minLength: 12 })?.message ?? '', /12/)
})

test('the list of common passwords holds their normalized forms', t => {
  const list = createRequire(import.meta.url)('@zxcvbn-ts/language-common').dictionary['passwords-common'] as string[]
  t.true(list.length > 40000)
  t.true(list.every(each => nicknameKey(each) === each))
})

test('a file replaces the list of common passwords', async t => {
  const file = join(await mkdtemp(join(tmpdir(), 'denylist-')), 'list.txt')
  await writeFile(file, 'Flamengo2026\r\n\nCorrect Horse\n')
  const own = createPasswordPolicy({ minLength: 8, denylistFile: file })
  t.truthy(checkPassword('flamengo2026', {}, own))
  t.truthy(checkPassword('CORRECT HORSE', {}, own))
  t.is(checkPassword('password1', {}, own), undefined)
  t.throws(() => createPasswordPolicy({ minLength: 8, denylistFile: `${file}.none` }))
})

test('every text is accepted, or refused with a sentence', t => {
  fc.assert(
    fc.property(fc.string({ unit: anyCharacter }), fc.string({ unit: anyCharacter }), (password, username) => {
      const message = check(password, { username, nickname: username, email: username })?.message
      return message === undefined || /^[A-Z].*\.$/.test(message)
    }),
  )
  t.pass()
})
