/** Passwords: the limits of bcrypt, Unicode, and stolen tables. */
import { createHash, createHmac } from 'node:crypto'
import test from 'ava'
import bcrypt from 'bcrypt'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const service = serviceForFile()

const loginStatus = async (username: string, secret: string, at: TestService = service) =>
  (await at.request('POST', '/users/login', { query: { username, password: secret } })).status

const update = (token: string, newPassword: string) =>
  service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query: { newPassword } })

async function storedHash(token: string): Promise<string> {
  const [rows] = await service.registry.database.sequelize.query('SELECT password_hash FROM users WHERE id = $1', {
    bind: [idOf(token)],
  })
  return (rows as [{ password_hash: string }])[0].password_hash
}

const storeHash = (token: string, passwordHash: string) =>
  service.registry.database.sequelize.query('UPDATE users SET password_hash = $1 WHERE id = $2', {
    bind: [passwordHash, idOf(token)],
  })

test('passwords that differ only after their first 72 bytes are different passwords', async t => {
  for (const start of [`${'0123456789'.repeat(7)}ab`, 'ação'.repeat(12), '🐢'.repeat(18)]) {
    t.is(Buffer.byteLength(start), 72)
    const { username, token } = await service.signUp('ROLE_CLIENT', { password: `${start}, one` })
    t.is(await loginStatus(username, `${start}, one`), 200)
    for (const other of [start, `${start}, two`, `${start}, onee`]) t.is(await loginStatus(username, other), 404, other)
    const answer = await update(token, `${start}, three`)
    t.is(answer.status, 200)
    t.is(await loginStatus(username, `${start}, three`), 200)
    t.is(await loginStatus(username, `${start}, one`), 404)
  }
})

test('a NUL doesn’t truncate a password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const other of [`${password}\0`, `${password}\0junk`, '\0', `\0${password}`]) {
    t.is(await loginStatus(username, other), 404)
    refused(t, await update(token, other), 400, 'INVALID_PASSWORD')
    const form = {
      username: 'nul',
      nickname: 'nul',
      password: other,
      state: 'SP',
      city: 'Z',
      termsofusage: true,
      roles: ['ROLE_CLIENT'],
    }
    t.deepEqual(wrongFields(await service.request('POST', '/users/signup', { body: form })), ['password'])
  }
  // Nor does one whose hash another system made.
  await storeHash(token, bcrypt.hashSync('secreta', 4).replace('$2b$', '$2a$'))
  t.is(await loginStatus(username, 'secreta\0junk'), 404)
  t.is(await loginStatus(username, 'secreta'), 200)
})

test('a password is the same in every Unicode composition and with every kind of space, and case, width and surrounding spaces count', async t => {
  const secret = 'Ação do Tuiuiú ñandú'
  const { username } = await service.signUp('ROLE_CLIENT', { password: secret })
  t.not(secret.normalize('NFD'), secret.normalize('NFC'))
  const same = [secret.normalize('NFD'), secret.replaceAll(' ', '\u3000'), secret.replaceAll(' ', '\u00a0')]
  for (const text of [...same, secret.normalize('NFD').replaceAll(' ', '\u2003')])
    t.is(await loginStatus(username, text), 200)
  const others = [
    secret.toLowerCase(),
    secret.toUpperCase(),
    ` ${secret}`,
    `${secret} `,
    secret.replace(' ', '  '),
    secret.replace('A', 'Ａ'),
  ]
  for (const text of [...others, secret.replace('ç', 'c')]) t.is(await loginStatus(username, text), 404, text)
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
    await waitFor(async () => !(await storedHash(token)).startsWith('$2'))
    t.regex(await storedHash(token), /^hmac1:\$2b\$04\$/)
    // The part that the other system truncated is significant from now on.
    t.is(await loginStatus(username, `${start}1`), 200)
    t.is(await loginStatus(username, `${start}2`), 404)
  }
})

test('an unreadable hash matches no password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const broken = [
    '',
    'x',
    'hmac1:',
    'hmac1:x',
    password,
    `plain:${password}`,
    '$2b$31$abcdefghijklmnopqrstuuabcdefghijklmnopqrstuvwxyz01234',
    '$1$a$b',
  ]
  for (const hash of broken) {
    await storeHash(token, hash)
    t.is(await loginStatus(username, password), 404, hash)
  }
})

test('common passwords and words from the user’s own data are refused at sign-up and later', async t => {
  const own = {
    username: 'capivara.do.brejo',
    nickname: 'Dona Capivara',
    city: 'Presidente Prudente',
    institution: 'Escola do Brejo Alto',
  }
  const email = 'capivara42@example.org'
  const { token } = await service.signUp('ROLE_CLIENT', { ...own, email })
  const phone = await service.signUp('ROLE_CLIENT', { username: '(21)98888-7777' })
  const form = {
    ...own,
    nickname: 'Outra Capivara',
    username: 'outra.capivara',
    state: 'SP',
    termsofusage: true,
    roles: ['ROLE_CLIENT'],
    email,
  }
  const common = ['password', 'PASSWORD', '12345678', 'qwertyuiop', 'iloveyou', ' password1', 'ｐａｓｓｗｏｒｄ']
  for (const bad of [
    ...common,
    'short',
    'Presidente Prudente',
    'presidenteprudente',
    'escola do brejo alto',
    email,
    'capivara42',
  ]) {
    refused(t, await update(token, bad), 400, 'INVALID_PASSWORD')
    const answer = await service.request('POST', '/users/signup', { body: { ...form, password: bad } })
    t.deepEqual(wrongFields(answer), ['password'], bad)
  }
  for (const bad of ['capivara.do.brejo', 'CAPIVARA.DO.BREJO', 'dona capivara', 'DonaCapivara']) {
    refused(t, await update(token, bad), 400, 'INVALID_PASSWORD')
  }
  for (const bad of ['21988887777', '(21) 98888-7777', '+5521988887777', '988887777', '98888-7777']) {
    refused(t, await update(phone.token, bad), 400, 'INVALID_PASSWORD')
  }
})

test('guessing at a stolen table of hashes needs the master key', async t => {
  const question = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json[0].id
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  for (const { token } of users) {
    const body = { forgotpasswordquestionsid: question, answer: 'azul' }
    await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  }
  const hashes = await Promise.all(users.map(({ token }) => storedHash(token)))
  const answers = await service.registry.questions.answers(idOf(users[0]!.token))
  t.not(hashes[0], hashes[1])
  const digest = (algorithm: string, text: string) => createHash(algorithm).update(text).digest('base64')
  for (const [text, stored] of [
    [password, hashes[0]!],
    ['azul', answers[0]!.answerHash],
  ] as const) {
    t.true(stored.startsWith('hmac1:$2b$'))
    const hash = stored.slice('hmac1:'.length)
    const guesses = [text, text.slice(0, 72), digest('sha256', text), digest('sha384', text), digest('sha512', text)]
    for (const context of ['password', 'answer']) {
      guesses.push(
        digest('sha384', `${context}\0${text}`),
        createHmac('sha384', '').update(`${context}\0${text}`).digest('base64'),
      )
    }
    for (const guess of guesses) t.false(await bcrypt.compare(guess, hash))
    // With the key, the same guess is right, which shows that the comparison works.
    const context = text === password ? 'password' : 'answer'
    const keyed = createHmac('sha384', service.registry.masterKey.pepper())
      .update(`${context}\0${text}`)
      .digest('base64')
    t.true(await bcrypt.compare(keyed, hash))
  }
})

test('the hash of an answer doesn’t work as the hash of a password', async t => {
  const question = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json[0].id
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const answer = 'tartaruga de couro 7'
  const body = { forgotpasswordquestionsid: question, answer }
  await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  const [stored] = await service.registry.questions.answers(idOf(token))
  await storeHash(token, stored!.answerHash)
  t.is(await loginStatus(username, answer), 404)
})
