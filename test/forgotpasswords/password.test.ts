/** The password update: the policy, the permissions, and a complete recovery of an account. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { suspend } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const path = '/forgotpasswords/passwordupdatebyusername'
const update = (token: string, query: Record<string, string>) => service.request('POST', path, { token, query })
const login = (username: string, secret: string) =>
  service.request('POST', '/users/login', { query: { username, password: secret } })
const next = 'bem-te-vi de peito amarelo'

test('the new password signs in, the old one doesn’t, and the response is empty', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { status, text, headers } = await update(token, { username, newPassword: next })
  t.is(`${status}${text}${headers.get('content-type')}`, '200null')
  t.is((await login(username, next)).status, 200)
  refused(t, await login(username, password), 404, 'INVALID_CREDENTIALS')
})

test('any spelling of the caller’s username means the caller', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is((await update(token, { username: username.replace(/\D/g, ''), newPassword: next })).status, 200)
})

for (const [what, secret] of [
  ['too short', 'seven77'],
  ['too long', 'a'.repeat(257)],
  ['among the common ones', 'Password123'],
  ['with control characters', 'abc\u0000defgh'],
] as const) {
  test(`a new password that is ${what} is answered with 400, and the old one stays`, async t => {
    const { username, token } = await service.signUp('ROLE_CLIENT')
    const answer = await update(token, { newPassword: secret })
    refused(t, answer, 400, 'INVALID_PASSWORD')
    t.deepEqual(wrongFields(answer), ['newPassword'])
    t.is((await login(username, password)).status, 200)
  })
}

test('a new password that is the username is answered with 400', async t => {
  const name = `Joaquina ${randomUUID()}`
  const { token } = await service.signUp('ROLE_CLIENT', { username: name })
  refused(t, await update(token, { newPassword: name.toLowerCase() }), 400, 'INVALID_PASSWORD')
})

test('a new password that is the nickname is answered with 400', async t => {
  const name = `Joaquina ${randomUUID()}`
  const { token } = await service.signUp('ROLE_CLIENT', { nickname: name })
  refused(t, await update(token, { newPassword: name.toLowerCase() }), 400, 'INVALID_PASSWORD')
})

test('no new password is answered with 400', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  refused(t, await update(token, { username }), 400, 'MISSING_PARAMETER')
  refused(t, await update(token, { username, newPassword: '' }), 400, 'MISSING_PARAMETER')
})

test('an administrator, who may set every password, gets 404 for an unknown user', async t => {
  const admin = await service.adminToken()
  refused(t, await update(admin, { username: randomUUID(), newPassword: next }), 404, 'USER_NOT_FOUND')
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is((await update(admin, { username, newPassword: next })).status, 200)
  t.is((await login(username, next)).status, 200)
  refused(t, await service.request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  t.is((await service.request('GET', '/users/me', { token: admin })).status, 200)
})

test('a suspended user’s password can be set, and still doesn’t sign in', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await suspend(service.registry, idOf(token))
  t.is((await update(await service.adminToken(), { username, newPassword: next })).status, 200)
  refused(t, await login(username, next), 404, 'INVALID_CREDENTIALS')
})

test('a user who forgot the password signs in by two answers and sets a new one', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const questions = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const body = questions
    .slice(0, 2)
    .map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer: `é ${id}` }))
  for (const answer of body) {
    await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body: answer })
  }
  const recovery = await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
    query: { username },
    body,
  })
  t.is((await update(recovery.text, { username, newPassword: next })).status, 200)
  t.is((await login(username, next)).status, 200)
  refused(t, await service.request('GET', '/users/me', { token: recovery.text }), 500, 'INVALID_TOKEN')
})

test('passwords compare equal in every Unicode composition', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is((await update(token, { newPassword: 'coração de mãe' })).status, 200)
  t.is((await login(username, 'corac\u0327a\u0303o\u00a0de ma\u0303e')).status, 200)
})

test('every character of a long password is significant', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is((await update(token, { newPassword: `${'ã'.repeat(255)}1` })).status, 200)
  refused(t, await login(username, `${'ã'.repeat(255)}2`), 404, 'INVALID_CREDENTIALS')
  t.is((await login(username, `${'ã'.repeat(255)}1`)).status, 200)
})
