/** A service that logs everything it can, through all operations: no secret appears in its log. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import pg from 'pg'
import { password, type RequestOptions } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

test('no secret that passes through the service appears in its log', async t => {
  const { http, databaseUrl, output, alive } = await spawnService(t, {
    AUTH_LOG_LEVEL: 'trace',
    SMTP_URL: 'smtp://user:mailsecret@127.0.0.1:9',
  })
  const database = new pg.Client({ connectionString: databaseUrl })
  await database.connect()
  t.teardown(() => database.end())

  const secrets: string[] = [password, 'mailsecret', Buffer.alloc(32, 7).toString('base64')]
  const secret = (name: string) => {
    const text = `${name}-${randomUUID()}`
    secrets.push(text)
    return text
  }
  const ask = async (
    method: string,
    path: string,
    { query = {}, token, body, headers }: Omit<RequestOptions, 'once'> = {},
  ) => {
    const response = await fetch(`${http}${path}?${new URLSearchParams(query)}`, {
      method,
      headers: {
        'x-request-id': `id-${requests++}`,
        ...(body !== undefined && { 'content-type': 'application/json' }),
        ...(token && { authorization: `Bearer ${token}` }),
        ...headers,
      },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
    return { status: response.status, text: await response.text() }
  }
  const post = (path: string, options: Parameters<typeof ask>[2] = {}) => ask('POST', path, options)
  let requests = 0

  const own = secret('password')
  const answer = secret('answer')
  const username = '(11)98765-4321'
  const form = {
    username,
    nickname: 'ana',
    password: own,
    state: 'SP',
    city: 'Z',
    termsofusage: true,
    roles: ['ROLE_INSTITUTION'],
    securityquestion: '1',
    securityanswer: answer,
    email: 'ana@example.org',
  }
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
  await ask('GET', '/users/login', { query: { username, password: secret('method') } })
  await post(`/users/nowhere/${secret('path')}`, { query: { password: secret('nowhere') } })
  await post('/users/login', {
    body: `username=${username}&password=%E0${secret('form')}`,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
  })
  await post('/users/activate', { query: { username, activationkey: secret('key') }, token })
  await post('/forgotpasswords/loginbyusernameandkey', { query: { username, key: secret('key') } })
  await post('/users/setemail', { token, body: { email: 'b@example.org', password: secret('password') } })
  await post('/users/setemail', { token, body: { email: 'b@example.org', password: own } })
  await post('/users/me/username', { token, body: { username: `${username}s`, password: secret('password') } })
  await post('/users/me/username', { token, body: { username: 'me', password: own } })
  await post('/users/confirmemail', { token, body: { code: secret('code') } })
  await ask('GET', '/users/me', { token: `authsvc_${secret('service')}` })
  await post('/forgotpasswords/loginbyusernameandanswers', {
    query: { username },
    body: [
      { forgotpasswordquestionsid: 1, answer: secret('answer') },
      { forgotpasswordquestionsid: 2, answer: secret('answer') },
    ],
  })
  await post('/forgotpasswords/sendkeybyemail', { query: { username, email: 'ana@example.org' } })
  await ask('GET', '/users/me', { query: { access_token: secret('token') }, token: secret('bad-token') })
  await ask('GET', `/users/${secret('name')}`, { token })
  await post('/auth.v1.Users/Login', { body: { username, password: secret('connect') } })
  await post('/auth.v1.Users/Login', { body: { username: { password: secret('connect') } } })
  await post('/auth.v1.Users/VerifyToken', { body: { token: secret('token') } })
  // Faults of the database quote rows and values.
  await database.query(`ALTER TABLE users ADD CONSTRAINT broken CHECK (nickname <> 'bia') NOT VALID`)
  const failed = await post('/users/signup', {
    body: { ...form, username: secret('username'), nickname: 'bia', password: secret('password') },
  })
  t.is(failed.status, 503)
  t.notRegex(failed.text, /constraint|Failing row|broken/)
  await database.query('ALTER TABLE emails RENAME TO away')
  t.is(
    (await post('/forgotpasswords/sendkeybyemail', { query: { username: secret('username'), email: 'x@example.org' } }))
      .status,
    503,
  )
  t.is(
    (await post('/forgotpasswords/passwordupdatebyusername', { query: { newPassword: secret('password') }, token }))
      .status,
    503,
  )
  await database.query('ALTER TABLE away RENAME TO emails')
  const updated = await post('/forgotpasswords/passwordupdatebyusername', {
    query: { newPassword: secret('password') },
    token,
  })
  t.is(updated.status, 200)
  const log = await waitFor(() => output().includes('e-mail delayed') && output(), output)
  t.true(alive())
  // The log has each call, and the faults.
  t.true(log.split('\n').filter(line => line.includes('"msg":"call"')).length >= 15)
  t.true(log.includes('"msg":"call failed"'))
  const found = secrets.filter(text => log.includes(text) || log.includes(encodeURIComponent(text)))
  t.deepEqual(found, [])
})
