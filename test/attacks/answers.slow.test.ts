/** Abuse of answers by a thief of a token or of an administrator's answers. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import { openLocal } from '../_helpers/administration.js'
import { type Clock, createClock } from '../_helpers/clock.js'
import { anyAddress, from } from '../_helpers/crowd.js'
import { freshDatabase } from '../_helpers/database.js'
import { openMailbox } from '../_helpers/mailbox.js'
import { password, type SignedUp, startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const day = 86_400

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

const save = (
  service: TestService,
  token: string,
  forgotpasswordquestionsid: number,
  answer: string,
  more: { password?: string; usersid?: number } = {},
) =>
  post(service, 'saveforgotpasswordquestionsusersanswers', {
    token,
    body: { forgotpasswordquestionsid, answer, ...more },
  })

/** Signs in with the same answer to each question. */
const enter = (service: TestService, username: string, ids: readonly number[], answer: string) => {
  const body = ids.map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer }))
  return post(service, 'loginbyusernameandanswers', { query: { username }, body })
}

const enterByPassword = (service: TestService, username: string, secret: string) =>
  service.request('POST', '/users/login', {
    query: { username, password: secret },
    headers: from(anyAddress()),
    once: true,
  })

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

/** A user whose two answers `azul` count, a day and a minute after its sign-up. */
async function established(service: TestService, clock: Clock, ids: readonly number[]): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT')
  for (const id of ids) await save(service, user.token, id, 'azul')
  await clock.pass(day + 60)
  return { ...user, token: await service.login(user.username) }
}

/** A session by a mailed key. */
async function enterByKey(service: TestService, { username, token }: SignedUp): Promise<string> {
  await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
  const { status, text } = await post(service, 'loginbyusernameandkey', { query: { username, key: 'ABCD2345' } })
  if (status !== 200) throw new Error(text)
  return text
}

test('with the password once more, a new answer counts at once, and the former one no longer does', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const { username, token } = await established(service, clock, [a, b])
  // Also instead of a waiting answer.
  t.is((await save(service, token, a, 'roubado')).status, 200)
  for (const id of [a, b]) {
    const { status, text } = await save(service, token, id, 'verde', { password })
    t.is(`${status}${text}`, '200')
  }
  t.is((await enter(service, username, [a, b], 'azul')).status, 422)
  t.is((await enter(service, username, [a, b], 'verde')).status, 200)
  await clock.pass(2 * day)
  t.is((await enter(service, username, [a, b], 'roubado')).status, 422)
  t.is((await enter(service, username, [a, b], 'verde')).status, 200)
})

test('a wrong password saves no answer, counts as one at login does, and ten lock', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const { username, token } = await established(service, clock, [a, b])
  for (let index = 0; index < 10; index++) {
    const wrong = await save(service, token, a, 'verde', {
      password: index ? `guess number ${index}` : 'x'.repeat(257),
    })
    t.is(`${wrong.status} ${wrong.json.reason}`, '404 INVALID_CREDENTIALS')
  }
  // One of them was too long to be compared.
  t.is((await save(service, token, a, 'verde', { password: 'a last guess' })).status, 404)
  t.is((await save(service, token, a, 'verde', { password })).json.reason, 'TOO_MANY_ATTEMPTS')
  t.is((await enterByPassword(service, username, password)).status, 429)
  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.save-answer', limit: 9 })
  t.deepEqual(
    events.filter(({ outcome }) => outcome === 'refused').map(({ reason }) => reason),
    ['INVALID_CREDENTIALS', 'TOO_MANY_ATTEMPTS'],
  )
  await clock.pass(2 * day)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
})

test('a password that a session set within the last day replaces no answer at once, except one by a fresh mailed key', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const user = await established(service, clock, [a, b])
  const { username } = user
  const next = 'tatu-canastra 12'
  t.is((await update(service, user.token, next)).status, 200)
  const session = await service.login(username, next)
  const early = await save(service, session, a, 'verde', { password: next })
  t.is(`${early.status} ${early.json.reason}`, '403 ACCESS_DENIED')
  const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(early.json.detail) ?? []
  t.true(Math.abs(Date.parse(time) - clock.now() - day * 1000) < 60_000, early.json.detail)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  await clock.pass(day)
  t.is((await save(service, await service.login(username, next), a, 'verde', { password: next })).status, 200)
  t.is((await enter(service, username, [a, b], 'azul')).status, 422)

  // By a mailed key of 15 minutes ago, and of a second more.
  const fresh = await enterByKey(service, user)
  await clock.pass(15 * 60 - 5)
  t.is((await update(service, fresh)).status, 200)
  const by = async (seconds: number) => {
    const key = await enterByKey(service, user)
    await clock.pass(seconds)
    const secret = `tartaruga ${randomUUID()}`
    t.is((await update(service, key, secret)).status, 200)
    return (await save(service, await service.login(username, secret), b, 'rosa', { password: secret })).status
  }
  t.is(await by(15 * 60 - 30), 200)
  t.is(await by(15 * 60 + 1), 403)
})

test('a password update in the session that saved an answer, refreshed or not, keeps it waiting, and one in another session ends it', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const [kept, refreshed, twice, ended] = [
    await established(service, clock, [a, b]),
    await established(service, clock, [a, b]),
    await established(service, clock, [a, b]),
    await established(service, clock, [a, b]),
  ]
  /** Saves answers in a session, and updates the password in another session of the same second or in the same one. */
  const act = async ({ username }: SignedUp, next: (token: string) => Promise<string> = async token => token) => {
    const token = await service.login(username)
    const other = await next(token)
    for (const id of [a, b]) t.is((await save(service, token, id, 'verde')).status, 200)
    t.is((await update(service, other, password)).status, 200)
  }
  await act(kept)
  await act(refreshed, async token => (await service.request('GET', '/users/refresh', { token })).text)
  await act(ended, () => service.login(ended.username))
  await act(twice)
  // The next one is no longer in that session.
  t.is((await update(service, await service.login(twice.username), password)).status, 200)
  await clock.pass(day - 60)
  for (const { username } of [kept, refreshed]) t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  await clock.pass(120)
  for (const { username } of [kept, refreshed]) t.is((await enter(service, username, [a, b], 'verde')).status, 200)
  for (const { username } of [twice, ended]) {
    t.is((await enter(service, username, [a, b], 'verde')).status, 422)
    t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  }
})

test('an answer that an administrator saved for a user waits, and ends with the sessions of either', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const users = [await established(service, clock, [a, b]), await established(service, clock, [a, b])] as const
  const stays = await established(service, clock, [a, b])
  const admin = await service.adminToken()
  for (const { token } of [...users, stays]) {
    for (const id of [a, b]) t.is((await save(service, admin, id, 'verde', { usersid: idOf(token) })).status, 200)
  }
  for (const { username } of users) t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  const own = await service.login(users[0].username)
  t.is((await service.request('POST', '/users/revokemytokens', { token: own })).status, 200)
  await clock.pass(day + 60)
  t.is((await enter(service, users[0].username, [a, b], 'azul')).status, 200)
  t.is((await enter(service, stays.username, [a, b], 'verde')).status, 200)

  // The password is that of the caller.
  const again = await service.adminToken()
  const { token, username } = users[1]
  t.is((await save(service, again, a, 'rosa', { usersid: idOf(token), password: 'not this one' })).status, 404)
  for (const id of [a, b]) {
    t.is((await save(service, again, id, 'rosa', { usersid: idOf(token), password })).status, 200)
  }
  t.is((await enter(service, username, [a, b], 'rosa')).status, 200)
  for (const id of [a, b]) t.is((await save(service, again, id, 'roxo', { usersid: idOf(token) })).status, 200)
  t.is((await service.request('POST', '/users/revokemytokens', { token: again })).status, 200)
  await clock.pass(2 * day)
  t.is((await enter(service, username, [a, b], 'rosa')).status, 200)
})

test('an answer that an administrator saved for a user ends with the administrator', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const { token, username } = await established(service, clock, [a, b])
  const local = await openLocal(t, service, { reason: 'teste' })
  const form = { username: 'eva', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  await local.createUser({ form, active: true, confirm: 'eva' })
  const eva = await service.login('eva')
  for (const id of [a, b]) t.is((await save(service, eva, id, 'verde', { usersid: idOf(token) })).status, 200)
  await local.eraseUser({ user: 'eva', confirm: 'eva' })
  await clock.pass(2 * day)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
})

test('an answer given at sign-up counts once its question is linked, although another answer to that question waits', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const text = 'Nome da sua primeira pipa?'
  const local = await openLocal(t, service)
  const { username, token } = await service.signUp('ROLE_CLIENT', { securityquestion: text, securityanswer: 'azul' })
  await save(service, token, b, 'azul')
  await clock.pass(day + 60)
  const session = await service.login(username)
  t.is((await save(service, session, a, 'roubado')).status, 200)
  t.is((await local.linkQuestion({ question: `${a}`, text })).linked, 1)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
  t.is((await service.request('POST', '/users/revokemytokens', { token: session })).status, 200)
  await clock.pass(2 * day)
  t.is((await enter(service, username, [a, b], 'azul')).status, 200)
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
