/** Users change their own profile, at every endpoint. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused, wrongFields } from '../_helpers/problem.js'
import { serviceForFile, serviceWithClock } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile(() => ({ AUTH_CORS_ORIGINS: 'https://app.example.org' }))

const patch = (token: string | undefined, body: unknown) =>
  service.request('PATCH', '/users/me', { ...(token !== undefined && { token }), body })
const recordOf = async (token: string) => (await service.request('GET', '/users/me', { token })).json
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
