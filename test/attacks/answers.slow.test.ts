/** Abuse of answers by a thief of a token or of an administrator's answers. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import { openLocal } from '../_helpers/administration.js'
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

/** What revokes the tokens of a user. */
const revocations: Record<string, (t: ExecutionContext, service: TestService, user: SignedUp) => Promise<unknown>> = {
  'logging out everywhere': (_t, service, { token }) => service.request('POST', '/users/revokemytokens', { token }),
  'a password update by another session': async (_t, service, { username }) =>
    update(service, await service.login(username), password),
  'a password update by a mailed key': async (_t, service, user) =>
    update(service, await enterByKey(service, user), password),
  'a password update by an administrator': async (_t, service, { username }) => {
    const body = { username, newPassword: password }
    await post(service, 'passwordupdatebyusername', { token: await service.adminToken(), body })
  },
  SetPassword: async (t, service, { username }) =>
    (await openLocal(t, service, { reason: 'teste' })).setPassword({ user: username, password }),
  'RevokeTokens of an administrator': async (t, service, { username }) =>
    (await openLocal(t, service)).revokeTokens({ user: username }),
  'suspension and its end': async (t, service, { username }) => {
    const local = await openLocal(t, service)
    await local.suspendUser({ user: username })
    await local.resumeUser({ user: username })
  },
  'deletion and its end': async (t, service, { username }) => {
    const local = await openLocal(t, service)
    await local.deleteUser({ user: username })
    await local.undeleteUser({ user: username })
  },
  'another role': async (t, service, { username }) =>
    (await openLocal(t, service)).setRole({ user: username, role: 'ROLE_INSTITUTION' }),
  'another organization': async (t, service, { username }) => {
    const { id } = await service.organization()
    await (await openLocal(t, service)).setOrganization({ user: username, organization: `${id}` })
  },
}

for (const [what, revoke] of Object.entries(revocations)) {
  test(`${what} ends a waiting answer, and the former one counts on; one that counts stays`, async t => {
    const [service, clock] = await withClock(t)
    const [a, b, c] = await questions(service)
    const user = await established(service, clock, [a, b])
    const { username } = user
    for (const id of [a, c]) t.is((await save(service, user.token, id, 'roubado')).status, 200)
    await revoke(t, service, user)
    await clock.pass(2 * day)
    t.is((await enter(service, username, [a, b], 'azul')).status, 200)
    // The third question has no answer again.
    t.is((await enter(service, username, [b, c], 'azul')).status, 404)

    const token = await service.login(username)
    for (const id of [a, c]) t.is((await save(service, token, id, 'verde')).status, 200)
    await clock.pass(day + 60)
    await revoke(t, service, { ...user, token: await service.login(username) })
    t.is((await enter(service, username, [a, c], 'verde')).status, 200)
  })
}

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

test('a thief of a session, against an owner without an e-mail address, keeps no way back and takes no answer', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  for (const answersFirst of [false, true]) {
    const { username, token: stolen } = await established(service, clock, [a, b])
    const secret = 'senha do ladrao 1'
    let session = stolen
    if (!answersFirst) {
      t.is((await update(service, stolen, secret)).status, 200)
      session = await service.login(username, secret)
      // The password of the thief proves nothing.
      t.is((await save(service, session, a, 'roubado', { password: secret })).json.reason, 'ACCESS_DENIED')
    }
    for (const id of [a, b]) t.is((await save(service, session, id, 'roubado')).status, 200)
    if (answersFirst) t.is((await update(service, session, secret)).status, 200)

    // Almost a day later the owner notices, and signs in by the former answers.
    await clock.pass(day - 120)
    const entered = await enter(service, username, [a, b], 'azul')
    t.is(entered.status, 200)
    t.is((await update(service, entered.text, password)).status, 200)
    await clock.pass(3 * day)
    t.is((await enter(service, username, [a, b], 'roubado')).status, 422)
    t.is((await enter(service, username, [a, b], 'azul')).status, 200)
    t.is((await enterByPassword(service, username, secret)).status, 404)
  }
})

test('when child, school and administrator change something on the same day, an owner’s former answers count on', async t => {
  const [service, clock] = await withClock(t)
  const [a, b] = await questions(service)
  const organization = await service.organization()
  const school = await service.institution(organization)
  const client = await service.signUp('ROLE_CLIENT')
  const key = { username: client.username, activationkey: school.providerKey }
  t.is((await service.request('POST', '/users/activate', { token: client.token, query: key })).status, 200)
  for (const id of [a, b]) await save(service, client.token, id, 'azul')
  await clock.pass(day + 60)
  const { username } = client
  const local = await openLocal(t, service, { reason: 'teste' })
  const deeds: Record<string, () => Promise<unknown>> = {
    'the child saves answers': async () => {
      const token = await service.login(username)
      for (const id of [a, b]) await save(service, token, id, 'rosa')
    },
    'the child saves answers and sets the same password': async () => {
      const token = await service.login(username)
      for (const id of [a, b]) await save(service, token, id, 'lilás')
      await update(service, token, password)
    },
    'the school deactivates': async () => {
      const token = await service.login(school.username)
      await service.request('POST', '/users/me/members/deactivate', { token, query: { username } })
    },
    'an administrator moves': () => local.setOrganization({ user: username, organization: `${organization.id}` }),
    'an administrator activates': () => local.activateUser({ user: username }),
    'an administrator edits': () =>
      local.updateUser({ user: username, form: { city: 'Recife' }, updateMask: { paths: ['city'] } }),
    'an administrator suspends': () => local.suspendUser({ user: username }),
    'an administrator resumes': () => local.resumeUser({ user: username }),
    'an administrator sets a password': () => local.setPassword({ user: username, password }),
    'an administrator saves answers': async () => {
      const token = await service.adminToken()
      for (const id of [a, b]) await save(service, token, id, 'cinza', { usersid: idOf(client.token) })
    },
  }
  for (const [what, deed] of Object.entries(deeds)) {
    await deed()
    if (what.endsWith('suspends')) continue
    t.is((await enter(service, username, [a, b], 'azul')).status, 200, what)
  }
  // The owner takes all of it back with the session.
  t.is((await service.request('POST', '/users/revokemytokens', { token: await service.login(username) })).status, 200)
  await clock.pass(3 * day)
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
  for (const [revoke, more] of [
    ['suspend', {}],
    ['revokeTokens', {}],
    ['revokeTokens', { password }],
  ] as const) {
    const { token } = await shared.signUp('ROLE_CLIENT')
    let saving: ReturnType<typeof save> | undefined
    await changeTokens(shared.registry, idOf(token), async transaction => {
      await users[revoke](idOf(token), transaction)
      saving = save(shared, token, a, 'azul', more)
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
