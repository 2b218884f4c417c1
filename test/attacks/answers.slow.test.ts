/** Abuse of answers by a thief of a token or of an administrator's answers. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import { type Clock, createClock } from '../_helpers/clock.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { freshDatabase } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { password, type SignedUp, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const day = 86_400
const shared = serviceForFile()

async function withClock(t: ExecutionContext, env: Record<string, string> = {}): Promise<[TestService, Clock]> {
  const url = await freshDatabase(t)
  const clock = await createClock(url)
  return [await startTestService(t, { DATABASE_URL: url, ...env }, { clock }), clock]
}

const post = (
  service: TestService,
  path: string,
  { token, body, query = {} }: { token?: string; body?: unknown; query?: Record<string, string> },
) =>
  service.request('POST', `/forgotpasswords/${path}`, {
    query,
    body,
    ...(token !== undefined && { token }),
    headers: from(anyAddress()),
  })

async function questions(service: TestService): Promise<[number, number, number]> {
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  return list.json.map(({ id }: { id: number }) => id)
}

const save = (service: TestService, token: string, forgotpasswordquestionsid: number, answer: string) =>
  post(service, 'saveforgotpasswordquestionsusersanswers', { token, body: { forgotpasswordquestionsid, answer } })

/** Signs in with the same answer to each question. */
const enter = (service: TestService, username: string, ids: readonly number[], answer: string) => {
  const body = ids.map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer }))
  return post(service, 'loginbyusernameandanswers', { query: { username }, body })
}

const update = (service: TestService, token: string, newPassword = `tartaruga ${randomUUID()}`) =>
  post(service, 'passwordupdatebyusername', { token, body: { newPassword } })

test('an answer saved on the first day counts at once, a later one after a day', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const id of [a, b]) t.is((await save(service, token, id, 'azul')).status, 200)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)

  await clock.pass(day + 60)
  const later = await service.login(username)
  for (const id of [a, b]) t.is((await save(service, later, id, 'verde')).status, 200)
  t.is((await enter(service, username, [a, b], 'verde')).status, 422)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  await clock.pass(day - 60)
  t.is((await enter(service, username, [a, b], 'verde')).status, 422)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  await clock.pass(120)
  const entered = await enter(service, username, [a, b], 'verde')
  t.is(entered.status, 200)
  t.deepEqual(claimsOf(entered.text).amr, ['kba'])
  t.is((await enter(service, username, [a, b], 'azul')).status, 422)

  // The answer that counts by now is the former one of the next.
  const again = await service.login(username)
  for (const id of [a, b]) await save(service, again, id, 'rosa')
  t.is((await enter(service, username, [a, b], 'verde')).status, 200)
})

test('a token thief can’t sign in by saved answers after a password change', async t => {
  const [service, clock] = await withClock(t)
  const [a, b, c] = await questions(service)
  const [some, none] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const others = [
    { ...(await service.signUp('ROLE_CLIENT')), answer: 'verde' },
    { ...(await service.signUp('ROLE_CLIENT')), answer: 'rosa' },
  ]
  for (const id of [a, b]) {
    await save(service, some.token, id, 'azul')
    await save(service, others[0]!.token, id, 'azul')
  }
  await clock.pass(day + 60)
  // Answers of other sessions stay: replaced ones and first ones.
  for (const { username, answer } of others) {
    const token = await service.login(username)
    for (const id of [a, b]) await save(service, token, id, answer)
  }
  for (const { username } of [some, none]) {
    const stolen = await service.login(username)
    for (const id of [a, b, c]) t.is((await save(service, stolen, id, 'roubado')).status, 200)
    t.is((await update(service, await service.login(username))).status, 200)
  }
  await clock.pass(2 * day)
  for (const { username, answer } of others) t.is((await enter(service, username, [a, b], answer)).status, 200)
  t.is((await enter(service, some.username, [a, b], 'roubado')).status, 422)
  t.is((await enter(service, some.username, [a, b], 'azul')).status, 200)
  // A question without an answer before has none now.
  t.is((await enter(service, some.username, [a, c], 'roubado')).status, 404)
  t.is((await enter(service, none.username, [a, b, c], 'roubado')).status, 404)
})

test('an answer that already counts survives a password change', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const users = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')] as const
  // One of them had other answers before.
  for (const id of [a, b]) await save(service, users[0].token, id, 'verde')
  await clock.pass(day + 60)
  for (const { username } of users) {
    const token = await service.login(username)
    for (const id of [a, b]) await save(service, token, id, 'azul')
  }
  await clock.pass(day + 60)
  for (const { username } of users) {
    t.is((await update(service, await service.login(username))).status, 200)
    t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  }
})

test('the owner gets an e-mail about a saved answer', async t => {
  const mailbox = await openMailbox(t)
  const service = await startTestService(t, { SMTP_URL: mailbox.url })
  const [a] = await questions(service)
  const email = 'dona@example.org'
  const { token, username } = await service.signUp('ROLE_CLIENT', { email })
  await save(service, token, a, 'azul')
  t.true((await mailbox.nextEmail(email)).text?.includes(username))
})

test('an answer whose request started before its session was revoked is not saved', async t => {
  const { database, users } = shared.registry
  const [a] = await questions(shared)
  for (const revoke of ['suspend', 'revokeTokens'] as const) {
    const { token } = await shared.signUp('ROLE_CLIENT')
    let saving: ReturnType<typeof save> | undefined
    await changeTokens(shared.registry, idOf(token), async transaction => {
      await users[revoke](idOf(token), transaction)
      saving = save(shared, token, a, 'azul')
      // It has authenticated its caller, and waits where it writes, or has already written.
      await endsOrWaits(database, saving)
    })
    t.is((await saving)?.json?.reason, 'INVALID_TOKEN', revoke)
    const [rows] = await database.sequelize.query(`SELECT FROM answers WHERE user_id = ${idOf(token)}`)
    t.is(rows.length, 0, revoke)
  }
})

test('an administrator’s session by answers permits only reading its own record', async t => {
  const [a, b] = await questions(shared)
  const admin = await shared.adminToken()
  for (const id of [a, b]) t.is((await save(shared, admin, id, 'azul')).status, 200)
  const { text: token } = await enter(shared, 'admin', [a, b], 'azul')
  t.deepEqual(claimsOf(token).amr, ['kba'])
  const other: SignedUp = await shared.signUp('ROLE_INSTITUTION')
  const { activationkey } = await shared.organization()
  const ask = (method: string, path: string, body?: object) => shared.request(method, path, { token, body })
  const named = (username: string) => `/users/${encodeURIComponent(username)}`
  t.is((await ask('GET', '/users/me')).status, 200)
  t.is((await ask('GET', named('admin'))).status, 200)
  const closed = {
    'others’ record': ask('GET', named(other.username)),
    'an unknown user’s record': ask('GET', named(randomUUID())),
    refresh: ask('GET', '/users/refresh'),
    activation: ask('POST', '/users/activate', { username: other.username, activationkey }),
    'own answers': save(shared, token, a, 'verde'),
    'own password': update(shared, token),
    'others’ password': post(shared, 'passwordupdatebyusername', {
      token,
      body: { username: other.username, newPassword: 'tartaruga de couro 7' },
    }),
    'activation e-mail': ask('POST', '/1.0.0/users/sendadminkeybyemailpartner', {
      username: other.username,
      emailpartner: 'a@example.org',
    }),
  }
  for (const [name, answer] of Object.entries(closed)) t.is((await answer).status, 403, name)
  t.is(await shared.login('admin', password).then(() => 'unchanged'), 'unchanged')
})
