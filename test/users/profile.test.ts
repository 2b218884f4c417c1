/** Users change their own records, at every endpoint: profile, username, e-mail address; and delete their accounts. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { sql } from '../../server/database/sql.js'
import { signedInForFile } from '../_helpers/administration.js'
import { anyAddress } from '../_helpers/crowd.js'
import { definedNames, profileNames, profileValues, requiredNames, wrongValues } from '../_helpers/fields.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, serviceWithClock } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
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

const profile = (): Record<string, string> => ({ ...profileValues, nickname: `Ana ${randomUUID()}` })

test('a user changes its profile, and gets the record that GetMe returns and one event with the names of the fields', async t => {
  const values = profile()
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const answer = await patch(token, { record: values })
  t.is(answer.status, 200, answer.text)
  t.is(answer.headers.get('cache-control'), 'no-store')
  t.like(answer.json, { ...values, username, role: 'ROLE_CLIENT' })
  t.deepEqual(answer.json, await recordOf(token))
  const events = await edits(token)
  t.deepEqual(
    events.map(([, ...how]) => how),
    [['ok', idOf(token)]],
  )
  t.deepEqual(String(events[0]![0]).replace('fields:', '').split(',').sort(), Object.values(definedNames).sort())
})

test('the update mask decides which fields change, and clears those without a value', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const answer = await patch(token, {
    record: { city: 'Recife', state: 'AM', gender: '' },
    updateMask: 'city,gender,dateofborn,institution',
  })
  t.is(answer.status, 200, answer.text)
  const { gender, dateofborn, institution, ...kept } = values
  t.like(answer.json, { ...kept, city: 'Recife' })
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
  for (const body of [{ record: values }, { record: { city: ` ${values.city} ` } }]) {
    const answer = await patch(token, body)
    t.is(answer.status, 200, answer.text)
    t.deepEqual(answer.json, before)
  }
  t.deepEqual(await edits(token), [])
})

test('an update that names no field of the profile is refused', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const before = await recordOf(token)
  for (const body of [{}, { record: {} }, { updateMask: '' }, { city: 'Recife' }, { record: { role: 'ROLE_ADMIN' } }]) {
    const answer = await patch(token, body)
    refused(t, answer, 400, 'INVALID_ARGUMENT')
    t.deepEqual(wrongFields(answer), ['record'])
    t.regex(answer.json.detail, /^record: .*nickname.*city/)
  }
  t.deepEqual(await recordOf(token), before)
})

test('every invalid field is named as at sign-up, and nothing changes', async t => {
  const values = profile()
  const { token } = await service.signUp('ROLE_CLIENT', values)
  const before = await recordOf(token)
  const fields = profileNames.map(field => `record.${field}`).sort()
  const all = await patch(token, { record: wrongValues })
  refused(t, all, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(all), fields)
  for (const [field, value] of Object.entries(wrongValues)) {
    const one = await patch(token, { record: { ...values, [field]: value } })
    refused(t, one, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(one), [`record.${field}`])
  }
  // A required field can't be cleared.
  const missing = await patch(token, { updateMask: requiredNames.map(name => definedNames[name]).join() })
  refused(t, missing, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(missing), requiredNames.map(name => `record.${name}`).sort())
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
  }
  const named = await patch(token, { record: { city: 'Recife' }, updateMask: 'city,role' })
  refused(t, named, 400, 'INVALID_ARGUMENT')
  t.deepEqual(wrongFields(named), ['updateMask'])
  t.is(named.json.detail, `updateMask: ${named.json.errors[0].message}`)
  t.deepEqual(await recordOf(token), before)
  // A client may send back a whole record.
  const whole = await patch(token, { record: { ...before, role: 'ROLE_ADMIN', active: 1, city: 'Recife' } })
  t.is(whole.status, 200, whole.text)
  t.deepEqual(whole.json, { ...before, city: 'Recife' })
})

test('a body with wrong types is refused, and names all of them', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const body of [undefined, { record: 7 }, { record: { city: 7 } }, { updateMask: ['city'] }])
    refused(t, await patch(token, body), 400, 'MALFORMED_REQUEST')
  t.deepEqual(wrongFields(await patch(token, { record: { city: 7 }, updateMask: 7 })), ['record.city', 'updateMask'])
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

test('a refused nickname or username counts against the limit of look-ups of the network, and a change doesn’t; beyond it no change says whether a name is free', async t => {
  // Its clock is stopped, so that no look-up is refunded. 6 look-ups are permitted.
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.02' })
  const taken = await service.signUp('ROLE_CLIENT')
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const [index, [method, path, bodyOf, name]] of (
    [
      ['PATCH', '/users/me', (nickname: string) => ({ record: { nickname } }), taken.nickname],
      ['POST', '/users/me/username', (username: string) => ({ username, password }), taken.username],
    ] as const
  ).entries()) {
    const headers = { 'x-forwarded-for': `203.0.113.${index}` }
    const take = (name: string) => service.request(method, path, { token, body: bodyOf(name), headers })
    for (let times = 0; times < 2; times++) t.is((await take(newName())).status, 200)
    for (let times = 0; times < 6; times++) refused(t, await take(name), 422, 'INVALID_SIGN_UP')
    for (const each of [name, newName()]) {
      const beyond = await take(each)
      refused(t, beyond, 429, 'TOO_MANY_ATTEMPTS')
      t.true(Number(beyond.headers.get('retry-after')) > 0)
    }
    const city = { record: { city: `Palmas ${index}` } }
    t.is((await service.request('PATCH', '/users/me', { token, body: city, headers })).status, 200)
    const { status } = await service.request('POST', '/users/existsByUsername', { query: { username: 'x' }, headers })
    t.is(status, 429)
  }
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
  const { token, username } = await service.institution(await service.organization())
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
  t.true((await events(token)).includes('user.set-own-username ok'))
})

test('a new username keeps the higher count of failures, its own from before it had a user, or that of the user', async t => {
  for (const [ofUser, ofName] of [
    [1, 9],
    [9, 1],
  ] as const) {
    const { token, username } = await service.signUp('ROLE_CLIENT')
    const name = newName()
    const fail = async (user: string, times: number) => {
      const query = { username: user, password: 'errada-errada' }
      for (let n = 0; n < times; n++)
        refused(
          t,
          await service.request('POST', '/users/login', { query, headers: elsewhere }),
          404,
          'INVALID_CREDENTIALS',
        )
    }
    const elsewhere = { 'x-forwarded-for': anyAddress() }
    await fail(username, ofUser)
    await fail(name, ofName)
    t.is((await setUsername(token, name)).status, 200)
    await fail(name, 1)
    const query = { username: name, password }
    refused(t, await service.request('POST', '/users/login', { query, headers: elsewhere }), 429, 'TOO_MANY_ATTEMPTS')
  }
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
  const wrong = ['me', '#12', 'ana\u200bana', 'x'.repeat(256), 'e\u0301\u0323'.repeat(12_000)]
  // All spellings of a telephone number are one username.
  const taken = [other, `+55 ${other}`, 'Admin', 'аdmin']
  for (const username of [...wrong, ...taken]) {
    const answer = await setUsername(token, username)
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), ['username'])
    t.is(/taken/.test(answer.json.errors[0].message), taken.includes(username))
  }
  refused(t, await setUsername(token, password), 422, 'INVALID_SIGN_UP')
  refused(t, await setUsername(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await setUsername(token, newName(), 'wrong password 1'), 404, 'INVALID_CREDENTIALS')
  refused(t, await setUsername(token, newName(), 'x'.repeat(257)), 404, 'INVALID_CREDENTIALS')
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
  const waysBack = async () =>
    (await service.request('POST', '/auth.v1.Users/GetMe', { token, body: { withWaysBack: true } })).json.waysBack
  t.deepEqual(await waysBack(), { email, emailProved: true })
  refused(t, await confirmEmail(token, codeIn(entry.text)), 422, 'INVALID_KEY')
  const recorded = (await events(token)).filter(event => event.includes('email'))
  t.deepEqual(recorded, ['user.ask-email ok', 'user.change-email ok'])
  const [id, other] = [String(idOf(token)), newEmail()]
  t.true((await admin.getUser({ user: id })).user?.emailProved)
  await admin.updateUser({ user: id, form: { email: other }, updateMask: { paths: ['email'] } })
  t.deepEqual(await waysBack(), { email: other })
})

test('the former address gets a notice of the change, without the new address', async t => {
  const before = newEmail()
  const { token, username } = await service.signUp('ROLE_CLIENT', { email: before })
  const email = newEmail()
  await setEmail(token, email, password, { 'accept-language': 'en' })
  const code = codeIn((await mailbox.nextEmail(email)).text)
  t.is(
    (
      await post(
        '/users/confirmemail',
        token,
        { code: `${code.slice(0, 4)}-${code.slice(4)}.` },
        { 'accept-language': 'en' },
      )
    ).status,
    200,
  )
  const notice = await mailbox.nextEmail(before)
  t.is(notice.subject, 'The e-mail address of your account was changed')
  // The former address may be of a stranger, for whom the telephone number isn't.
  t.true(notice.text?.includes(`·${username.slice(-2)}`))
  t.false(notice.text?.includes(username))
  t.false(notice.text?.includes(email))
})

test('a missing or invalid address is refused, and every wrong field is named', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const missing = await post('/users/setemail', token, {})
  refused(t, missing, 400, 'MISSING_PARAMETER')
  t.deepEqual(wrongFields(missing), ['email', 'password'])
  for (const email of [
    'ana',
    'ana@',
    'ana@gmail',
    'ana@exa mple.org',
    '"a b"@example.org',
    `${'a'.repeat(65)}@b.org`,
  ]) {
    refused(t, await setEmail(token, email), 422, 'INVALID_EMAIL')
  }
  refused(t, await setEmail(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await setEmail(token, newEmail(), 'wrong password 1'), 404, 'INVALID_CREDENTIALS')
  refused(t, await setEmail(token, newEmail(), 'x'.repeat(257)), 404, 'INVALID_CREDENTIALS')
  refused(t, await post('/users/confirmemail', token, {}), 400, 'MISSING_PARAMETER')
  refused(t, await confirmEmail(token, 7), 400, 'MALFORMED_REQUEST')
  refused(t, await confirmEmail(token, 'ABCD2345'), 422, 'INVALID_KEY')
  refused(t, await confirmEmail(token, 'x'.repeat(65)), 422, 'INVALID_KEY')
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

test('a deleted account is hidden and keeps its names, and an e-mail notifies the owner of the erasure date and a contact', async t => {
  const email = newEmail()
  const { token, username, nickname } = await service.signUp('ROLE_CLIENT', { email })
  const address = '203.0.113.77'
  const answer = await deleteMe(token, { password }, { 'x-forwarded-for': address })
  t.is(`${answer.status}${answer.text}`, '200')
  refused(t, await me(token), 500, 'INVALID_TOKEN')
  const reader = await serviceKey(service, ['users.read'])
  const seen = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: reader })
  refused(t, seen, 404, 'USER_NOT_FOUND')
  t.true((await exists('username', username)) && (await exists('nickname', nickname)))

  const { subject, text = '' } = await mailbox.nextEmail(email)
  t.is(subject, 'Sua conta foi excluída')
  t.true(text.includes(username) && text.includes(address))
  const date = new Date(Date.now() + 30 * 86_400_000)
  t.true(text.includes(date.toLocaleDateString('pt-BR', { dateStyle: 'long', timeZone: 'America/Sao_Paulo' })), text)
  t.regex(text, /administrador pode restaurar a conta.*\n?.*sua instituição/)

  const [event] = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.delete*', limit: 9 })
  t.like(event, { action: 'user.delete-own', outcome: 'ok', actor: 'user', actor_id: idOf(token), address })
  t.is((await admin.getUser({ user: username })).user!.record!.id, idOf(token))
})

test('a deletion is refused without the password, in a wrong shape, and of an administrator by its public session', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const body of [{}, { password: '  ' }]) refused(t, await deleteMe(token, body), 400, 'MISSING_PARAMETER')
  for (const body of [{ password: 5 }, undefined])
    refused(t, await service.request('POST', '/users/me/delete', { token, body }), 400, 'MALFORMED_REQUEST')
  t.is((await me(token)).status, 200)
  const administrator = await deleteMe(await service.adminToken())
  refused(t, administrator, 409, 'WRONG_STATE')
  t.regex(administrator.json.detail, /Administration.*auth-admin users delete/)
})
