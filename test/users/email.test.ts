/** Users change their own e-mail address, and log out everywhere, at every endpoint. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))

let last = 0
const newAddress = () => `203.0.113.${++last}`
const newEmail = () => `ana.${randomUUID()}@example.org`
const post = (path: string, token: string | undefined, body: unknown, headers: Record<string, string> = {}) =>
  service.request('POST', path, {
    ...(token !== undefined && { token }),
    body,
    headers: { 'x-forwarded-for': newAddress(), ...headers },
  })
const setEmail = (token: string, email: unknown, secret: unknown = password, headers?: Record<string, string>) =>
  post('/users/setemail', token, { email, password: secret }, headers)
const confirmEmail = (token: string, code: unknown) => post('/users/confirmemail', token, { code })
const codeIn = (text: string | undefined) => /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text ?? '')?.[1] ?? ''
const emailOf = async (token: string) => (await service.registry.users.byId(idOf(token)))?.email
const events = async (token: string) =>
  (await service.registry.audit.list({ subjectId: idOf(token), limit: 100 })).map(
    ({ action, outcome, reason }) => `${action} ${outcome}${reason ? ` ${reason}` : ''}`,
  )

test('a user without an address sets one with the password and confirms it with the mailed code', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const email = newEmail()
  const asked = await setEmail(token, ` ${email} `)
  t.is(`${asked.status}${asked.text}`, '200')
  t.is(await emailOf(token), null)
  const entry = await mailbox.nextEmail(email)
  t.regex(entry.text ?? '', /quer usar este endereço/)
  t.true(entry.text?.includes(username))
  t.is(await emailOf(token), null)
  const confirmed = await confirmEmail(token, ` ${codeIn(entry.text).toLowerCase()} `)
  t.is(`${confirmed.status}${confirmed.text}`, '200')
  t.is(await emailOf(token), email)
  refused(t, await confirmEmail(token, codeIn(entry.text)), 422, 'INVALID_KEY')
  t.deepEqual(
    (await events(token)).filter(event => event.includes('email')),
    ['user.ask-email ok', 'user.change-email ok'],
  )

  // From here on the account can be recovered.
  await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email } })
  const query = { username, key: codeIn((await mailbox.nextEmail(email)).text) }
  const recovered = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
  t.deepEqual(claimsOf(recovered.text).amr, ['otp'])
})

test('the former address gets a notice of the change, and a key mailed there is void', async t => {
  const before = newEmail()
  const { token, username } = await service.signUp('ROLE_CLIENT', { email: before })
  await service.request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email: before } })
  const key = codeIn((await mailbox.nextEmail(before)).text)
  const email = newEmail()
  await setEmail(token, email, password, { 'accept-language': 'en' })
  const code = codeIn((await mailbox.nextEmail(email)).text)
  t.is((await post('/users/confirmemail', token, { code }, { 'accept-language': 'en' })).status, 200)
  const notice = await mailbox.nextEmail(before)
  t.is(notice.subject, 'The e-mail address of your account was changed')
  t.true(notice.text?.includes(username))
  t.false(notice.text?.includes(email))
  refused(
    t,
    await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key } }),
    422,
    'INVALID_KEY',
  )
})

test('a missing or invalid address is refused, and every wrong field is named', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const missing = await post('/users/setemail', token, {})
  refused(t, missing, 400, 'MISSING_PARAMETER')
  t.deepEqual(wrongFields(missing), ['email', 'password'])
  for (const email of ['ana', 'ana@', 'ana@exa mple.org', '"a b"@example.org', `${'a'.repeat(65)}@b.org`]) {
    refused(t, await setEmail(token, email), 422, 'INVALID_EMAIL')
  }
  refused(t, await setEmail(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await setEmail(token, newEmail(), 'wrong password 1'), 404, 'INVALID_CREDENTIALS')
  refused(t, await setEmail(token, newEmail(), 'x'.repeat(257)), 404, 'INVALID_CREDENTIALS')
  refused(t, await post('/users/confirmemail', token, {}), 400, 'MISSING_PARAMETER')
  refused(t, await confirmEmail(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await confirmEmail(token, 'ABCD2345'), 422, 'INVALID_KEY')
  refused(t, await confirmEmail(token, 'x'.repeat(65)), 422, 'INVALID_KEY')
  refused(t, await post('/users/setemail', undefined, {}), 403, 'ACCESS_DENIED')
})

test('a session by a mailed key changes the address only with the password', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
  const query = { username, key: 'ABCD2345' }
  const { text: session } = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
  refused(t, await setEmail(session, newEmail(), ''), 400, 'MISSING_PARAMETER')
  refused(t, await setEmail(session, newEmail(), 'guessed 1234'), 404, 'INVALID_CREDENTIALS')
  t.is((await setEmail(session, newEmail())).status, 200)
})

test('no answer reveals whether an address belongs to a user', async t => {
  const taken = newEmail()
  await service.signUp('ROLE_CLIENT', { email: taken })
  const [one, two] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const gist = ({ status, text }: { status: number; text: string }) => `${status} ${text}`
  t.is(gist(await setEmail(one.token, taken)), gist(await setEmail(two.token, newEmail())))
  t.is((await confirmEmail(one.token, codeIn((await mailbox.nextEmail(taken)).text))).status, 200)
  t.is(await emailOf(one.token), taken)
})

test('both revisions have the paths', async t => {
  for (const base of ['/1.0.0', '/1.0.2']) {
    const { token } = await service.signUp('ROLE_CLIENT')
    const email = newEmail()
    t.is((await post(`${base}/users/setemail`, token, { email, password })).status, 200)
    const code = codeIn((await mailbox.nextEmail(email)).text)
    t.is((await post(`${base}/users/confirmemail`, token, { code })).status, 200)
    t.is(await emailOf(token), email)
    t.is((await post(`${base}/users/revokemytokens`, token, undefined)).status, 200)
    refused(t, await service.request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  }
})
