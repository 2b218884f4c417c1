/** Users change their own records, at every endpoint: profile, username, e-mail address; and delete their accounts. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { openAdministration, openSignedIn, reasonOf, signedInForFile } from '../_helpers/administration.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({
  AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
  AUTH_CORS_ORIGINS: 'https://app.example.org',
  SMTP_URL: mailbox.url,
}))
const admin = signedInForFile(service)

const newName = () => `ana ${randomUUID()}`
const newEmail = () => `ana.${randomUUID()}@example.org`
const me = (token: string) => service.request('GET', '/users/me', { token })
const exists = async (what: 'username' | 'nickname', name: string) => {
  const path = what === 'username' ? 'existsByUsername' : 'existsByNickname'
  return (await service.request('POST', `/users/${path}`, { query: { [what]: name } })).json
}

const patch = (token: string | undefined, body: unknown) =>
  service.request('PATCH', '/users/me', { ...(token !== undefined && { token }), body })
const recordOf = async (token: string) => (await me(token)).json
const edits = async (token: string) =>
  (await service.registry.audit.list({ subjectId: idOf(token), action: 'user.edit-own', limit: 100 })).map(
    ({ object, outcome, actor_id }) => [object, outcome, actor_id],
  )

const profile = () => ({
  nickname: `Ana ${randomUUID()}`,
  dateofborn: '29/02/1992',
  gender: 'F',
  state: 'PE',
  city: 'Olinda',
  institution: 'Escola do Mar',
  institutiontype: 'E',
})

test('a user changes its profile, and gets the record that GetMe returns and one event with the names of the fields', async t => {
  const values = profile()
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const answer = await patch(token, { record: values })
  t.is(answer.status, 200, answer.text)
  t.is(answer.headers.get('cache-control'), 'no-store')
  t.like(answer.json, { ...values, username, role: 'ROLE_CLIENT' })
  t.deepEqual(answer.json, await recordOf(token))
  t.deepEqual(await edits(token), [
    ['fields:nickname,dateofborn,gender,state,city,institutiontype,institution', 'ok', idOf(token)],
  ])
})

test('the update mask decides which fields change, and clears those without a value', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const answer = await patch(token, {
    record: { city: 'Recife', state: 'AM', gender: '' },
    updateMask: 'city,gender,dateofborn,institution',
  })
  t.is(answer.status, 200, answer.text)
  const { nickname, state, institutiontype } = values
  t.like(answer.json, { city: 'Recife', nickname, state, institutiontype })
  for (const field of ['gender', 'dateofborn', 'institution']) t.false(field in answer.json, field)
  t.deepEqual(await edits(token), [['fields:city,gender,dateofborn,institution', 'ok', idOf(token)]])
  // Without a mask, a field that is present and blank is also cleared.
  const cleared = await patch(token, { record: { institutiontype: ' ' } })
  t.is(cleared.status, 200, cleared.text)
  t.false('institutiontype' in cleared.json)
})

test('an update without a difference changes nothing and leaves no event', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const before = await recordOf(token)
  for (const body of [{}, { record: {} }, { updateMask: '' }, { record: values }, { record: { city: ' Olinda ' } }]) {
    const answer = await patch(token, body)
    t.is(answer.status, 200, answer.text)
    t.deepEqual(answer.json, before)
  }
  t.deepEqual(await edits(token), [])
})

test('every invalid field is named as at sign-up, and nothing changes', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const before = await recordOf(token)
  const wrong: Record<string, unknown> = {
    nickname: 'ana\u200bana',
    dateofborn: '30/02/1992',
    gender: 'X',
    state: 'PER',
    city: 'x'.repeat(256),
    institution: 'a\nb',
    institutiontype: 'F',
  }
  const fields = Object.keys(wrong)
    .map(field => `record.${field}`)
    .sort()
  const all = await patch(token, { record: wrong })
  refused(t, all, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(all), fields)
  for (const [field, value] of Object.entries(wrong)) {
    const one = await patch(token, { record: { ...values, [field]: value } })
    refused(t, one, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(one), [`record.${field}`])
  }
  // A required field can't be cleared.
  const missing = await patch(token, { updateMask: 'nickname,state,city' })
  refused(t, missing, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(missing), ['record.city', 'record.nickname', 'record.state'])
  const long = await patch(token, { record: { city: `e${'\u0301\u0323'.repeat(7_000)}` } })
  refused(t, long, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(long), ['record.city'])
  t.deepEqual(await recordOf(token), before)
  t.deepEqual(await edits(token), [])
})

test('an update mask with a field outside the profile is refused, and other fields of a record are ignored', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const before = await recordOf(token)
  for (const path of ['role', 'username', 'email', 'active', 'partnerOrganization', 'record.city', '*', 'no_field']) {
    const answer = await patch(token, { record: { city: 'Recife', role: 'ROLE_ADMIN' }, updateMask: `city,${path}` })
    refused(t, answer, 400)
    t.true(['INVALID_ARGUMENT', 'MALFORMED_REQUEST'].includes(answer.json.reason), path)
  }
  const named = await patch(token, { record: { city: 'Recife' }, updateMask: 'city,role' })
  refused(t, named, 400, 'INVALID_ARGUMENT')
  t.deepEqual(wrongFields(named), ['update_mask'])
  t.deepEqual(await recordOf(token), before)
  // A client may send back a whole record.
  const whole = await patch(token, { record: { ...before, role: 'ROLE_ADMIN', active: 1, city: 'Recife' } })
  t.is(whole.status, 200, whole.text)
  t.deepEqual(whole.json, { ...before, city: 'Recife' })
})

test('an undocumented body is refused, after the check of the token', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const body of ['{', '[]', undefined, { record: 7 }, { record: { city: 7 } }, { updateMask: ['city'] }]) {
    refused(t, await patch(token, body), 400, 'MALFORMED_REQUEST')
    refused(t, await patch(undefined, body), 403, 'ACCESS_DENIED')
  }
  t.deepEqual(wrongFields(await patch(token, { record: { city: 7 }, updateMask: 7 })), ['record.city', 'updateMask'])
  for (const path of ['/1.0.0/users/me', '/1.0.2/users/me']) {
    refused(t, await service.request('PATCH', path, { token, body: {} }), 405)
  }
  const { headers } = await service.request('OPTIONS', '/users/me', {
    headers: { origin: 'https://app.example.org', 'access-control-request-method': 'PATCH' },
  })
  t.regex(headers.get('access-control-allow-methods') ?? '', /\bPATCH\b/)
})

test('a nickname that another user has, or that looks like one, is refused with a suggestion', async t => {
  const nickname = `Capim ${randomUUID()}`
  const other = await service.signUp('ROLE_CLIENT', { nickname })
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const taken of [nickname, nickname.toUpperCase(), nickname.replace('a', 'а')]) {
    const answer = await patch(token, { record: { nickname: taken, city: 'Recife' } })
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), ['record.nickname'])
    t.regex(answer.json.errors[0].message, /is free/)
  }
  t.not((await recordOf(token)).city, 'Recife')
  // The user’s own name in another case is available to it.
  for (const own of [nickname.toUpperCase(), nickname.replace('a', 'а')]) {
    t.is((await patch(other.token, { record: { nickname: own } })).json.nickname, own)
  }
})

test('of 20 users who take one nickname at once, one succeeds', async t => {
  const nickname = `Caju ${randomUUID()}`
  const users = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_CLIENT')))
  const answers = await Promise.all(users.map(({ token }) => patch(token, { record: { nickname } })))
  t.is(answers.filter(({ status }) => status === 200).length, 1)
  for (const answer of answers.filter(({ status }) => status !== 200)) refused(t, answer, 422, 'INVALID_SIGN_UP')
})

test('refused nicknames count against the limit of look-ups, and own changes don’t; beyond it, no change of a nickname says whether one is free', async t => {
  // Its clock is stopped, so that no look-up is refunded.
  const service = await serviceWithClock(t)
  const { nickname: taken } = await service.signUp('ROLE_CLIENT')
  const { token } = await service.signUp('ROLE_CLIENT')
  const headers = { 'x-forwarded-for': '203.0.113.77' }
  const take = (nickname: string) =>
    service.request('PATCH', '/users/me', { token, body: { record: { nickname } }, headers })
  for (let index = 0; index < 299; index++)
    await service.request('POST', '/users/existsByNickname', { query: { nickname: 'x' }, headers })
  for (let index = 0; index < 3; index++) t.is((await take(`Umbu ${randomUUID()}`)).status, 200)
  refused(t, await take(taken), 422, 'INVALID_SIGN_UP')
  refused(t, await take(taken), 429, 'TOO_MANY_ATTEMPTS')
  refused(t, await take(`Umbu ${randomUUID()}`), 429, 'TOO_MANY_ATTEMPTS')
  const city = { record: { city: 'Palmas' } }
  t.is((await service.request('PATCH', '/users/me', { token, body: city, headers })).status, 200)
})

// Users change their own username, at every endpoint.

const setUsername = (token: string | undefined, username: unknown, secret: unknown = password, headers = {}) =>
  service.request('POST', '/users/me/username', {
    ...(token !== undefined && { token }),
    body: { username, password: secret },
    headers,
  })
const tryLogin = (username: string) => service.request('POST', '/users/login', { query: { username, password } })

test('a user changes its username with the password; tokens stay valid, and only the new name signs in', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const name = newName()
  const answer = await setUsername(token, ` ${name} `)
  t.is(`${answer.status}${answer.text}`, '200')
  t.is((await recordOf(token)).username, name)
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
  t.is((await recordOf(token)).username, username)
})

test('another spelling of the username needs no reservation, and the same username changes nothing', async t => {
  const email = `${randomUUID()}@example.org`
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  t.is((await setUsername(token, username)).status, 200)
  const spelling = username.replace(/\D/g, '')
  t.is((await setUsername(token, spelling)).status, 200)
  t.is((await recordOf(token)).username, spelling)
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

// Users change their own e-mail address, and log out everywhere, at every endpoint.

let last = 0
const newAddress = () => `203.0.113.${++last}`
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

test('the former address gets a notice of the change, without the new address', async t => {
  const before = newEmail()
  const { token, username } = await service.signUp('ROLE_CLIENT', { email: before })
  const email = newEmail()
  await setEmail(token, email, password, { 'accept-language': 'en' })
  const code = codeIn((await mailbox.nextEmail(email)).text)
  t.is((await post('/users/confirmemail', token, { code }, { 'accept-language': 'en' })).status, 200)
  const notice = await mailbox.nextEmail(before)
  t.is(notice.subject, 'The e-mail address of your account was changed')
  t.true(notice.text?.includes(username))
  t.false(notice.text?.includes(email))
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
    refused(t, await me(token), 500, 'INVALID_TOKEN')
  }
})

// Users delete their own accounts, and administrators restore them.

const deleteMe = (token: string, body: unknown = { password }, headers: Record<string, string> = {}) =>
  service.request('POST', '/users/me/delete', { token, body, headers })
const inDays = (days: number, locale: string) =>
  new Date(Date.now() + days * 86_400_000).toLocaleDateString(locale, { dateStyle: 'long', timeZone: 'UTC' })

test('a deleted account is hidden at once and keeps its names, and an e-mail notifies the owner of the erasure date and a contact', async t => {
  const email = newEmail()
  const { token, username, nickname } = await service.signUp('ROLE_CLIENT', { email })
  const address = '203.0.113.77'
  const answer = await deleteMe(token, { password }, { 'x-forwarded-for': address })
  t.is(`${answer.status}${answer.text}`, '200')

  refused(t, await me(token), 500, 'INVALID_TOKEN')
  refused(t, await tryLogin(username), 404, 'INVALID_CREDENTIALS')
  const token2 = await serviceKey(service, ['users.read'])
  const seen = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: token2 })
  refused(t, seen, 404, 'USER_NOT_FOUND')
  t.true((await exists('username', username)) && (await exists('nickname', nickname)))

  const { subject, text = '' } = await mailbox.nextEmail(email)
  t.is(subject, 'Sua conta foi excluída')
  t.true(text.includes(username) && text.includes(address))
  t.true(text.includes(inDays(30, 'pt-BR')), text)
  t.regex(text, /administrador pode restaurar a conta.*\n?.*sua instituição/)

  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.delete*', limit: 9 })
  t.deepEqual(
    events.map(({ action, outcome, actor, actor_id, address }) => [action, outcome, actor, actor_id, address]),
    [['user.delete-own', 'ok', 'user', idOf(token), address]],
  )
  t.is((await admin.getUser({ user: username })).user!.record!.id, idOf(token))
})

test('DeleteMe over gRPC deletes the account, and its e-mail is in the language of the call', async t => {
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const email = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  const metadata = { 'accept-language': 'en' }
  await client.call(Users.method.deleteMe, { password }, { token, metadata })
  const error = await t.throwsAsync(client.call(Users.method.getMe, {}, { token }))
  t.is(refusalOf(error).info?.reason, 'INVALID_TOKEN')
  const { subject, text = '' } = await mailbox.nextEmail(email)
  t.is(subject, 'Your account was deleted')
  t.true(text.includes(inDays(30, 'en')), text)
})

test('a deletion is refused without the password, in a wrong shape, and outside of the base path', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  refused(t, await deleteMe(token, {}), 400, 'MISSING_PARAMETER')
  refused(t, await deleteMe(token, { password: '  ' }), 400, 'MISSING_PARAMETER')
  refused(t, await deleteMe(token, { password: 5 }), 400, 'MALFORMED_REQUEST')
  refused(t, await service.request('POST', '/users/me/delete', { token }), 400, 'MALFORMED_REQUEST')
  refused(t, await service.request('POST', '/users/me/delete', { body: { password } }), 403, 'ACCESS_DENIED')
  refused(t, await service.request('GET', '/users/me/delete', { token }), 405)
  for (const revision of ['1.0.0', '1.0.2']) {
    for (const path of ['delete', 'export', 'events']) {
      const method = path === 'delete' ? 'POST' : 'GET'
      const body = path === 'delete' ? { body: { password } } : {}
      refused(t, await service.request(method, `/${revision}/users/me/${path}`, { token, ...body }), 404, 'NOT_FOUND')
    }
  }
  t.is((await me(token)).status, 200)
})

test('an administrator can’t be deleted by its public session, and the refusal refers to Administration', async t => {
  const token = await service.adminToken()
  const answer = await deleteMe(token)
  refused(t, answer, 409, 'WRONG_STATE')
  t.regex(answer.json.detail, /Administration.*auth-admin users delete/)
  t.is((await me(token)).status, 200)
})

test('an administrator deletes itself at Administration, but not as the last active one', async t => {
  const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const first = await openSignedIn(t, own)
  const form = { username: 'ana', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  await first.createUser({ form, active: true, confirm: 'ana' })
  const { token } = await openAdministration(t, own).signIn({ username: 'ana', password })
  const ana = openAdministration(t, own, token)
  t.true((await ana.deleteUser({ user: 'ana' })).changed)
  t.is(await reasonOf(ana.getSession({})), 'INVALID_TOKEN')
  t.is(await reasonOf(openAdministration(t, own).signIn({ username: 'ana', password })), 'INVALID_CREDENTIALS')
  t.is(await reasonOf(first.deleteUser({ user: 'admin' })), 'LAST_ADMINISTRATOR')
  t.is(await reasonOf(first.getSession({})), 'none')
})
