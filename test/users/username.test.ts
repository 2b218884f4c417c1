/** Users change their own username, at every endpoint. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, serviceWithClock, type TestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))

const newName = () => `ana ${randomUUID()}`
const setUsername = (token: string | undefined, username: unknown, secret: unknown = password, headers = {}) =>
  service.request('POST', '/users/me/username', {
    ...(token !== undefined && { token }),
    body: { username, password: secret },
    headers,
  })
const tryLogin = (username: string, { request }: TestService = service) =>
  request('POST', '/users/login', { query: { username, password } })

test('a user changes its username with the password; tokens stay valid, and only the new name signs in', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const name = newName()
  const answer = await setUsername(token, ` ${name} `)
  t.is(`${answer.status}${answer.text}`, '200')
  t.is((await service.request('GET', '/users/me', { token })).json.username, name)
  refused(t, await tryLogin(username), 404, 'INVALID_CREDENTIALS')
  const session = await service.login(name.toUpperCase())
  t.is(claimsOf(session).sub, claimsOf(token).sub)
  t.is(claimsOf(session).username, name)
  const { text: refreshed } = await service.request('GET', '/users/refresh', { token })
  t.is(claimsOf(refreshed).username, name)
  const { text } = await service.request('POST', '/auth.v1.Users/VerifyToken', { body: { token } })
  t.like(JSON.parse(text), { active: true, username: name })
  const events = await service.registry.audit.list({
    subjectId: idOf(token),
    action: 'user.set-own-username',
    limit: 9,
  })
  t.deepEqual(
    events.map(({ outcome, object, actor_id }) => [outcome, object, actor_id]),
    [['ok', null, idOf(token)]],
  )
})

test('the user is notified by e-mail, in its language', async t => {
  for (const [language, subject, text] of [
    ['en', 'Your username was changed', /new username/],
    ['pt', 'Seu nome de usuário foi alterado', /novo nome/],
  ] as const) {
    const email = `${randomUUID()}@example.org`
    const { token, username } = await service.signUp('ROLE_CLIENT', { email })
    const name = `ana-${randomUUID().slice(0, 8)}`
    t.is((await setUsername(token, name, password, { 'accept-language': language })).status, 200)
    const notice = await mailbox.nextEmail(email)
    t.is(notice.subject, subject)
    t.regex(notice.text ?? '', text)
    t.true(notice.text?.includes(name))
    t.false(notice.text?.includes(username))
  }
})

test('a missing or invalid username is refused as at sign-up, and nothing changes', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const { username: other } = await service.signUp('ROLE_CLIENT')
  const missing = await service.request('POST', '/users/me/username', { token, body: {} })
  refused(t, missing, 400, 'MISSING_PARAMETER')
  t.deepEqual(wrongFields(missing), ['password', 'username'])
  for (const wrong of [
    'me',
    'SignUp',
    '#12',
    'a\nb',
    'ana\u200bana',
    'x'.repeat(256),
    'e\u0301\u0323'.repeat(12_000),
  ]) {
    const answer = await setUsername(token, wrong)
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), ['username'])
  }
  // All spellings of a telephone number are one username.
  for (const taken of [other, other.replace(/\D/g, ''), `+55 ${other}`, 'Admin', 'аdmin']) {
    const answer = await setUsername(token, taken)
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), ['username'])
    t.regex(answer.json.errors[0].message, /taken/)
  }
  refused(t, await setUsername(token, password), 422, 'INVALID_SIGN_UP')
  refused(t, await setUsername(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await setUsername(token, newName(), 'wrong password 1'), 404, 'INVALID_CREDENTIALS')
  refused(t, await setUsername(token, newName(), 'x'.repeat(257)), 404, 'INVALID_CREDENTIALS')
  refused(t, await setUsername(undefined, newName()), 403, 'ACCESS_DENIED')
  t.is((await service.request('GET', '/users/me', { token })).json.username, username)
})

test('another spelling of the username needs no reservation, and the same username changes nothing', async t => {
  const email = `${randomUUID()}@example.org`
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  t.is((await setUsername(token, username)).status, 200)
  const spelling = username.replace(/\D/g, '')
  t.is((await setUsername(token, spelling)).status, 200)
  t.is((await service.request('GET', '/users/me', { token })).json.username, spelling)
  t.is((await tryLogin(username)).status, 200)
  const rows = await service.registry.database.run(sql`SELECT FROM former_usernames WHERE user_id = ${idOf(token)}`)
  t.is(rows.length, 0)
  await mailbox.nextEmail(email)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length, 1)
})

test('refused usernames count against the limit of look-ups of the network, and a change doesn’t', async t => {
  // Its clock is stopped, so that no look-up is refunded.
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.02' })
  const { username: taken } = await service.signUp('ROLE_CLIENT')
  const { token } = await service.signUp('ROLE_CLIENT')
  const headers = { 'x-forwarded-for': '203.0.113.77' }
  const take = (username: string) =>
    service.request('POST', '/users/me/username', { token, body: { username, password }, headers })
  for (let index = 0; index < 2; index++) t.is((await take(newName())).status, 200)
  for (let index = 0; index < 6; index++) refused(t, await take(taken), 422, 'INVALID_SIGN_UP')
  const beyond = await take(taken)
  refused(t, beyond, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(beyond.headers.get('retry-after')) > 0)
  refused(t, await take(newName()), 429, 'TOO_MANY_ATTEMPTS')
  const { status } = await service.request('POST', '/users/existsByUsername', { query: { username: 'x' }, headers })
  t.is(status, 429)
  headers['x-forwarded-for'] = '198.51.100.7'
  t.is((await take(newName())).status, 200)
})
