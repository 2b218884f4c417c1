/** The password update: the policy, the permissions, and a complete recovery of an account. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile } from '../_helpers/service.js'

const service = serviceForFile()
const path = '/forgotpasswords/passwordupdatebyusername'
const update = (token: string, query: Record<string, string>) => service.request('POST', path, { token, query })
const login = (username: string, secret: string) =>
  service.request('POST', '/users/login', { query: { username, password: secret } })
const next = 'bem-te-vi de peito amarelo'

test('the new password signs in, the old one doesn’t, and the response is empty', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { status, text, headers } = await update(token, { username: username.replace(/\D/g, ''), newPassword: next })
  t.is(`${status}${text}${headers.get('content-type')}`, '200null')
  t.is((await login(username, next)).status, 200)
  refused(t, await login(username, password), 404, 'INVALID_CREDENTIALS')
})

test('a new password that the rules refuse is answered with 400, and the old one stays', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const secret of ['seven77', 'a'.repeat(257), 'Password123', 'abc\u0000defgh']) {
    const answer = await update(token, { newPassword: secret })
    refused(t, answer, 400, 'INVALID_PASSWORD')
    t.deepEqual(wrongFields(answer), ['newPassword'])
  }
  t.is((await login(username, password)).status, 200)
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
