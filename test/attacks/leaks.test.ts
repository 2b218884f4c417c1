/** A service that logs everything it can, through all operations: no secret appears in its log. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { ask } from '../_helpers/database.js'
import { enterByAnswers, enterByKey, sendKey } from '../_helpers/recovery.js'
import { createRequest, password, type RequestOptions, signUpForm } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

test('no secret that passes through the service appears in its log', async t => {
  const { http, databaseUrl, output, alive } = await spawnService(t, {
    AUTH_LOG_LEVEL: 'trace',
    SMTP_URL: 'smtp://user:mailsecret@127.0.0.1:9',
  })
  const sql = (text: string) => ask(databaseUrl, text)
  const secrets: string[] = [password, 'mailsecret', Buffer.alloc(32, 7).toString('base64')]
  const secret = (name: string) => {
    secrets.push(`${name}-${randomUUID()}`)
    return secrets.at(-1)!
  }
  const request = createRequest(http)
  const post = (path: string, options: RequestOptions = {}) => request('POST', path, { once: true, ...options })

  const own = secret('password')
  const email = 'ana@example.org'
  const username = '(11)98765-4321'
  const answers = { securityquestion: '1', securityanswer: secret('answer') }
  const form = signUpForm({ username, nickname: 'ana', password: own, email, roles: ['ROLE_INSTITUTION'], ...answers })
  const { status, text: token } = await post('/users/signup', { body: form })
  t.is(status, 200)
  secrets.push(token, token.split('.')[2]!)
  // Duplicate, incomplete and wrong values, because errors might quote them.
  await post('/users/signup', { body: { ...form, password: secret('password') } })
  await post('/users/signup', { body: `{"password":"${secret('password')}"` })
  await post('/users/signup', { body: { ...form, password: [secret('password')], dateofborn: secret('date') } })
  await post('/users/login', { query: { username, password: own } })
  await post('/users/login', { query: { username, password: secret('wrong') } })
  await post('/users/login', { query: { username: secret('mistyped'), password: own } })
  await request('GET', '/users/login', { query: { username, password: secret('method') } })
  await post(`/users/nowhere/${secret('path')}`, { query: { password: secret('nowhere') } })
  await post('/users/login', {
    body: `username=${username}&password=%E0${secret('form')}`,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
  })
  await post('/users/activate', { query: { username, activationkey: secret('key') }, token })
  await enterByKey({ request }, username, secret('key'))
  await post('/users/setemail', { token, body: { email: 'b@example.org', password: secret('password') } })
  await post('/users/setemail', { token, body: { email: 'b@example.org', password: own } })
  await post('/users/me/username', { token, body: { username: `${username}s`, password: secret('password') } })
  await post('/users/me/username', { token, body: { username: 'me', password: own } })
  await post('/users/confirmemail', { token, body: { code: secret('code') } })
  await request('GET', '/users/me', { token: `authsvc_${secret('service')}` })
  await enterByAnswers({ request }, username, secret('answer'))
  await sendKey({ request }, username, email)
  await request('GET', '/users/me', { query: { access_token: secret('token') }, token: secret('bad-token') })
  await request('GET', `/users/${secret('name')}`, { token })
  await post('/auth.v1.Users/Login', { body: { username, password: secret('connect') } })
  await post('/auth.v1.Users/Login', { body: { username: { password: secret('connect') } } })
  await post('/auth.v1.Users/VerifyToken', { body: { token: secret('token') } })
  // Faults of the database quote rows and values.
  await sql(`ALTER TABLE users ADD CONSTRAINT broken CHECK (nickname <> 'bia') NOT VALID`)
  const broken = { ...form, username: secret('username'), nickname: 'bia', password: secret('password') }
  const failed = await post('/users/signup', { body: broken })
  t.is(failed.status, 503)
  t.notRegex(failed.text, /constraint|Failing row|broken/)
  const update = () =>
    post('/forgotpasswords/passwordupdatebyusername', { query: { newPassword: secret('password') }, token })
  await sql('ALTER TABLE emails RENAME TO away')
  const query = { username: secret('username'), email: 'x@example.org' }
  t.is((await post('/forgotpasswords/sendkeybyemail', { query })).status, 503)
  t.is((await update()).status, 503)
  await sql('ALTER TABLE away RENAME TO emails')
  t.is((await update()).status, 200)
  const log = await waitFor(() => output().includes('e-mail delayed') && output(), output)
  t.true(alive())
  // The log has each call, and the faults.
  t.true(log.split('\n').filter(line => line.includes('"msg":"call"')).length >= 15)
  t.true(log.includes('"msg":"call failed"'))
  const found = secrets.filter(text => log.includes(text) || log.includes(encodeURIComponent(text)))
  t.deepEqual(found, [])
})
