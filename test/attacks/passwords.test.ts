/** Passwords: the limits of bcrypt, Unicode, and stolen tables. */
import { createHash, createHmac } from 'node:crypto'
import test from 'ava'
import bcrypt from 'bcrypt'
import { login } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { saveAnswer, updatePassword } from '../_helpers/recovery.js'
import { password, serviceForFile, signUpForm, startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()

const loginStatus = async (username: string, secret: string, at = service) =>
  (await login(at, username, undefined, secret)).status
const update = (token: string, next: string) => updatePassword(service, token, next)
const signUpWith = (secret: string, fields = {}) =>
  service.request('POST', '/users/signup', { body: signUpForm({ ...fields, password: secret }) })

async function storedHash(token: string): Promise<string> {
  const [row] = await ask(service.env.DATABASE_URL!, `SELECT password_hash FROM users WHERE id = ${idOf(token)}`)
  return row!.password_hash as string
}
const storeHash = (token: string, hash: string) =>
  ask(service.env.DATABASE_URL!, `UPDATE users SET password_hash = '${hash}' WHERE id = ${idOf(token)}`)

test('passwords that differ only after their first 72 bytes are different passwords', async t => {
  for (const start of [`${'0123456789'.repeat(7)}ab`, 'ação'.repeat(12), '🐢'.repeat(18)]) {
    t.is(Buffer.byteLength(start), 72)
    const { username, token } = await service.signUp('ROLE_CLIENT', { password: `${start}, one` })
    t.is(await loginStatus(username, `${start}, one`), 200)
    for (const other of [start, `${start}, two`, `${start}, onee`]) t.is(await loginStatus(username, other), 404, other)
    t.is((await update(token, `${start}, three`)).status, 200)
    t.is(await loginStatus(username, `${start}, three`), 200)
    t.is(await loginStatus(username, `${start}, one`), 404)
  }
})

test('a NUL doesn’t truncate a password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const other of [`${password}\0`, `${password}\0junk`, '\0', `\0${password}`]) {
    t.is(await loginStatus(username, other), 404)
    refused(t, await update(token, other), 400, 'INVALID_PASSWORD')
    t.deepEqual(wrongFields(await signUpWith(other)), ['password'])
  }
  // Nor does one whose hash another system made.
  await storeHash(token, bcrypt.hashSync('secreta', 4).replace('$2b$', '$2a$'))
  t.is(await loginStatus(username, 'secreta\0junk'), 404)
  t.is(await loginStatus(username, 'secreta'), 200)
})

test('a password is the same in every Unicode composition and with every kind of space, and case, width and surrounding spaces count', async t => {
  const secret = 'Ação do Tuiuiú ñandú'
  const { username } = await service.signUp('ROLE_CLIENT', { password: secret })
  const decomposed = secret.normalize('NFD')
  t.not(decomposed, secret)
  const same = [decomposed, ...['\u3000', '\u00a0', '\u2003'].map(space => decomposed.replaceAll(' ', space))]
  for (const text of same) t.is(await loginStatus(username, text), 200)
  const others = [secret.toLowerCase(), secret.toUpperCase(), ` ${secret}`, `${secret} `, secret.replace(' ', '  ')]
  for (const text of [...others, secret.replace('A', 'Ａ'), secret.replace('ç', 'c')])
    t.is(await loginStatus(username, text), 404, text)
})

test('a login renews a hash of another cost, once', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const dearer = await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL!, AUTH_BCRYPT_COST: '5' })
  const first = await storedHash(token)
  t.regex(first, /^hmac1:\$2b\$04\$/)
  t.is(await loginStatus(username, 'not the password', dearer), 404)
  t.is(await storedHash(token), first)
  t.is(await loginStatus(username, password, dearer), 200)
  // After the response, when a thread is idle.
  await waitForValue(
    () => storedHash(token),
    value => value !== first,
  )
  const second = await storedHash(token)
  t.regex(second, /^hmac1:\$2b\$05\$/)
  t.is(await loginStatus(username, password, dearer), 200)
  t.is(await storedHash(token), second)
})

test('the owner of a bare hash of another system can sign in, which replaces the hash', async t => {
  const start = 'x'.repeat(72)
  for (const kind of ['$2a$', '$2b$', '$2y$']) {
    const { username, token } = await service.signUp('ROLE_CLIENT')
    await storeHash(token, bcrypt.hashSync(`${start}1`, 4).replace('$2b$', kind))
    t.is(await loginStatus(username, 'y'), 404)
    t.is(await loginStatus(username, `${start}1`), 200)
    await waitForValue(
      () => storedHash(token),
      hash => hash.startsWith('hmac1:$2b$04$'),
    )
    // The part that the other system truncated is significant from now on.
    t.is(await loginStatus(username, `${start}1`), 200)
    t.is(await loginStatus(username, `${start}2`), 404)
  }
})

test('an unreadable hash, and the hash of an answer, match no password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const bare = '$2b$31$abcdefghijklmnopqrstuuabcdefghijklmnopqrstuvwxyz01234'
  for (const hash of ['', 'x', 'hmac1:', 'hmac1:x', password, `plain:${password}`, bare, '$1$a$b']) {
    await storeHash(token, hash)
    t.is(await loginStatus(username, password), 404, hash)
  }
  const answer = 'tartaruga de couro 7'
  await saveAnswer(service, token, 1, answer)
  const [stored] = await service.registry.answers.of(idOf(token))
  await storeHash(token, stored!.answerHash)
  t.is(await loginStatus(username, answer), 404)
})

test('common passwords and words from the user’s own data are refused at sign-up and later', async t => {
  const names = { username: 'capivara.do.brejo', nickname: 'Dona Capivara' }
  const email = 'capivara42@example.org'
  const own = { city: 'Presidente Prudente', institution: 'Escola do Brejo Alto', email }
  const { token } = await service.signUp('ROLE_CLIENT', { ...own, ...names })
  const phone = await service.signUp('ROLE_CLIENT', { username: '(21)98888-7777' })
  const common = [
    'password',
    'PASSWORD',
    '12345678',
    'qwertyuiop',
    'iloveyou',
    ' password1',
    'ｐａｓｓｗｏｒｄ',
    'short',
  ]
  const words = ['Presidente Prudente', 'presidenteprudente', 'escola do brejo alto', email, 'capivara42']
  for (const bad of [...common, ...words]) {
    refused(t, await update(token, bad), 400, 'INVALID_PASSWORD')
    t.deepEqual(wrongFields(await signUpWith(bad, own)), ['password'], bad)
  }
  for (const bad of ['capivara.do.brejo', 'CAPIVARA.DO.BREJO', 'dona capivara', 'DonaCapivara'])
    refused(t, await update(token, bad), 400, 'INVALID_PASSWORD')
  for (const bad of ['21988887777', '(21) 98888-7777', '+5521988887777', '988887777', '98888-7777'])
    refused(t, await update(phone.token, bad), 400, 'INVALID_PASSWORD')
})

test('guessing at a stolen table of hashes needs the master key', async t => {
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  for (const { token } of users) await saveAnswer(service, token, 1, 'azul')
  const hashes = await Promise.all(users.map(({ token }) => storedHash(token)))
  t.not(hashes[0], hashes[1])
  const [answer] = await service.registry.answers.of(idOf(users[0]!.token))
  const digest = (algorithm: string, text: string) => createHash(algorithm).update(text).digest('base64')
  const keyed = (key: string | Buffer, text: string) => createHmac('sha384', key).update(text).digest('base64')
  for (const [context, text, stored] of [
    ['password', password, hashes[0]!],
    ['answer', 'azul', answer!.answerHash],
  ] as const) {
    t.true(stored.startsWith('hmac1:$2b$'))
    const hash = stored.slice('hmac1:'.length)
    const guesses = [text, text.slice(0, 72), ...['sha256', 'sha384', 'sha512'].map(each => digest(each, text))]
    for (const each of [`password\0${text}`, `answer\0${text}`]) guesses.push(digest('sha384', each), keyed('', each))
    for (const guess of guesses) t.false(await bcrypt.compare(guess, hash))
    // With the key, the same guess is right, which shows that the comparison works.
    t.true(await bcrypt.compare(keyed(service.registry.dataKeys.pepper(), `${context}\0${text}`), hash))
  }
})
