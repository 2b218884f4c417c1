/** Abuse of the RPCs for a user's own account: to take it over, to impersonate or delete its owner, to mail or read others. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import type { Email } from 'postal-mime'
import type { Transaction } from '../../server/database/connection.js'
import { sql } from '../../server/database/sql.js'
import { usernameKey } from '../../server/rules/names.js'
import { openAdministration, openLocal, wrongFieldsOf } from '../_helpers/administration.js'
import { anyAddress, from, known } from '../_helpers/crowd.js'
import { hold as connection } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { replicasForFile } from '../_helpers/replicas.js'
import {
  type Answer,
  password,
  type SignedUp,
  serviceForFile,
  serviceWithClock,
  signUpForm,
  type TestService,
} from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
const replicas = replicasForFile(2, { clocked: true })
const day = 86_400
const newPassword = 'tatu-canastra 12'

const newEmail = () => `ana.${randomUUID()}@example.org`
const newName = () => `maria ${randomUUID()}`

interface Options {
  readonly secret?: string
  readonly at?: string
  readonly on?: TestService
}
const post = (path: string, token: string, body: unknown, { at = anyAddress(), on = service }: Options = {}) =>
  on.request('POST', path, { token, body, headers: from(at) })
const setEmail = (token: string, email: string, { secret = password, ...more }: Options = {}) =>
  post('/users/setemail', token, { email, password: secret }, more)
const confirmEmail = (token: string, code: string, at?: string, on?: TestService) =>
  post('/users/confirmemail', token, { code }, { ...(at && { at }), ...(on && { on }) })
const setUsername = (token: string, username: string, { secret = password, ...more }: Options = {}) =>
  post('/users/me/username', token, { username, password: secret }, more)
const deleteMe = (token: string, secret = password, on: TestService = service) =>
  post('/users/me/delete', token, { password: secret }, { on })
const exportMe = (token: string, on: TestService = service) => on.request('GET', '/users/me/export', { token })
const update = (token: string, on: TestService, username?: string) =>
  on.request('POST', '/forgotpasswords/passwordupdatebyusername', {
    token,
    query: { newPassword, ...(username && { username }) },
  })
const login = (username: string, { secret = password, at = anyAddress(), on = service }: Options = {}) =>
  on.request('POST', '/users/login', { body: { username, password: secret }, headers: from(at) })

const codeIn = ({ text }: Email) => /: ([2-9A-HJ-NP-Z]{8})$/m.exec(text ?? '')?.[1] ?? ''
const wrongCode = (code: string) => (code.startsWith('2') ? `3${code.slice(1)}` : `2${code.slice(1)}`)
const emailsTo = (email: string) => mailbox.emails.filter(({ to }) => to?.[0]?.address === email).length
const userOf = (token: string, { registry } = service) => registry.users.byId(idOf(token))
const emailOf = async (token: string, on = service) => (await userOf(token, on))?.email
const nameOf = async (token: string, on = service) => (await userOf(token, on))?.username
const formerOf = async (token: string, { registry } = service) =>
  registry.database.run<{ key: string }>(
    sql`SELECT username_key AS key FROM former_usernames WHERE user_id = ${idOf(token)}`,
  )
const eventsOf = async (id: number, action: string, { registry } = service) =>
  (await registry.audit.list({ subjectId: id, action, limit: 99 })).map(({ outcome, reason, object }) =>
    [outcome, reason, object].filter(Boolean).join(' '),
  )
const count = (answers: readonly Answer[], status: number) => answers.filter(each => each.status === status).length
const forget = ({ username }: SignedUp) =>
  service.registry.attempts.clear([service.registry.counterKeys.account('password', usernameKey(username))])

/** Until nothing is left in the queue. */
async function quiet({ registry }: TestService): Promise<void> {
  const left = async () => registry.database.run<object>(sql`SELECT id, attempts FROM emails ORDER BY id`)
  await waitFor(async () => (await left()).length === 0, left)
}

/** Queues and holds an e-mail that starts a change, for a user of the first token generation. */
async function hold(stage: 'requested' | 'ready', userId: number, to: string): Promise<string> {
  const { database } = service.registry
  const parameters = { userId, to, generation: 0 }
  const text = `INSERT INTO emails (kind, stage, parameters, locale, next_attempt_at)
    VALUES ('email-code', $1, $2, 'en', now() + interval '1 hour') RETURNING id`
  const [row] = await database.run<{ id: string }>({ text, values: [stage, parameters] })
  return row!.id
}

/** A code that was mailed for another address. */
async function mailedCode(token: string, on = service): Promise<{ email: string; code: string }> {
  const email = newEmail()
  const { status, text } = await setEmail(token, email, { on })
  if (status !== 200) throw new Error(text)
  return { email, code: codeIn(await mailbox.nextEmail(email)) }
}

/** What asks for the password once more. */
const guarded = {
  'user.ask-email': (token: string, { secret, on }: Options = {}) =>
    setEmail(token, newEmail(), { ...(secret && { secret }), ...(on && { on }) }),
  'user.set-own-username': (token: string, options?: Options) => setUsername(token, newName(), options),
  'user.delete-own': (token: string, { secret, on }: Options = {}) => deleteMe(token, secret, on),
}

for (const [action, act] of Object.entries(guarded)) {
  const name = (promise: string) => `${action}: ${promise}`

  test(name('a stolen token without the password changes nothing, and guessing the password locks'), async t => {
    const email = newEmail()
    const victim = await service.signUp('ROLE_CLIENT', { email })
    const before = await userOf(victim.token)
    for (let index = 0; index < 10; index++)
      refused(t, await act(victim.token, { secret: `guess number ${index}` }), 404, 'INVALID_CREDENTIALS')
    // Now even the correct password is refused, there and at login.
    refused(t, await act(victim.token), 429, 'TOO_MANY_ATTEMPTS')
    refused(t, await login(victim.username), 429, 'TOO_MANY_ATTEMPTS')
    t.deepEqual(await userOf(victim.token), before)
    t.deepEqual(await eventsOf(idOf(victim.token), action), [
      'refused INVALID_CREDENTIALS',
      'refused TOO_MANY_ATTEMPTS failures:10',
    ])
    await forget(victim)
    t.is((await act(victim.token)).status, 200)
  })

  test(name('a stolen token that sets a new password, or an administrator’s, has no effect for a day'), async t => {
    const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
    const [one, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    t.is((await update(one.token, service)).status, 200)
    t.is((await update(await service.adminToken(), service, other.username)).status, 200)
    for (const { username, token } of [one, other]) {
      const session = await service.login(username, newPassword)
      const answer = await act(session, { secret: newPassword, on: service })
      refused(t, answer, 409, 'WRONG_STATE')
      const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)/.exec(answer.json.detail) ?? []
      t.true(Math.abs(Date.parse(time) - service.clock.now() - day * 1000) < 1000, answer.json.detail)
      // No password is compared, so none is counted or hashed.
      for (let index = 0; index < 11; index++)
        refused(t, await act(session, { secret: 'wrong one 1', on: service }), 409, 'WRONG_STATE')
      t.deepEqual(await eventsOf(idOf(token), action, service), [])
    }
    await service.clock.pass(day - 2)
    const late = await service.login(one.username, newPassword)
    refused(t, await act(late, { secret: newPassword, on: service }), 409, 'WRONG_STATE')
    await service.clock.pass(2)
    t.is((await act(late, { secret: newPassword, on: service })).status, 200)
  })

  test(name('a password update by a mailed key of more than 15 minutes ago counts as one with a token'), async t => {
    const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
    const { registry, clock } = service
    const { username, token } = await service.signUp('ROLE_CLIENT')
    for (const [seconds, reason] of [
      [15 * 60 + 1, 'WRONG_STATE'],
      [15 * 60, undefined],
    ] as const) {
      await registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
      const query = { username, key: 'ABCD2345' }
      const entered = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
      await clock.pass(seconds / 2)
      const { text: refreshed } = await service.request('GET', '/users/refresh', { token: entered.text })
      await clock.pass(seconds / 2)
      t.is((await update(refreshed, service)).status, 200)
      const session = await service.login(username, newPassword)
      t.is((await act(session, { secret: newPassword, on: service })).json?.reason, reason)
    }
  })
}

const answer = { forgotpasswordquestionsid: 1, answer: 'azul' }
const saveAnswer = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'

/** What changes or reads an account with its own token, and its event. */
const own: Record<string, (token: string, code: string) => Promise<Answer>> = {
  'user.ask-email': token => setEmail(token, newEmail()),
  'user.set-own-username': token => setUsername(token, newName()),
  'user.delete-own': token => deleteMe(token),
  'user.change-email': (token, code) => confirmEmail(token, code),
  'user.revoke-own-tokens': token => post('/users/revokemytokens', token, undefined),
  'user.export-own': token => exportMe(token),
  'user.save-answer': token => post(saveAnswer, token, answer),
  'user.save-answer*': token => post(saveAnswer, token, { ...answer, password }),
  'user.change-password': token => update(token, service),
  'user.edit-own': token => service.request('PATCH', '/users/me', { token, body: { record: { city: 'Recife' } } }),
}

for (const [action, act] of Object.entries(own)) {
  test.serial(`${action}: a request that started before its session was revoked has no effect`, async t => {
    const { database, users } = service.registry
    const ways = {
      suspend: users.suspend,
      revokeTokens: users.revokeTokens,
      changePassword: (id: number, transaction: Transaction) =>
        users.changePassword(id, 'x', { byToken: true }, transaction),
    }
    for (const [way, revoke] of Object.entries(ways)) {
      const { token } = await service.signUp('ROLE_CLIENT')
      const id = idOf(token)
      const { code } = action === 'user.change-email' ? await mailedCode(token) : { code: '' }
      const state = async (transaction?: Transaction) => [
        await database.run(sql`SELECT * FROM users WHERE id = ${id}`, transaction),
        await database.run(sql`SELECT * FROM answers WHERE user_id = ${id}`, transaction),
        await database.run(sql`SELECT * FROM emails WHERE parameters->>'userId' = ${`${id}`}`),
      ]
      let before: unknown
      let asked: Promise<Answer> | undefined
      await changeTokens(service.registry, id, async transaction => {
        await revoke(id, transaction)
        before = await state(transaction)
        asked = act(token, code)
        // It has authenticated its caller, and waits where it writes, or has already written.
        await endsOrWaits(database, asked)
      })
      t.is((await asked)?.json?.reason, 'INVALID_TOKEN', way)
      t.deepEqual(await state(), before, way)
      t.deepEqual(await eventsOf(id, action), [], way)
    }
  })
}

test('an address has five guesses at a code, a code works for its own account only, and failures elsewhere don’t void it', async t => {
  const [user, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const { code } = await mailedCode(user.token)
  refused(t, await confirmEmail(other.token, code), 422, 'INVALID_KEY')
  const address = anyAddress()
  for (let index = 0; index < 5; index++) {
    refused(t, await confirmEmail(user.token, wrongCode(code), address), 422, 'INVALID_KEY')
  }
  refused(t, await confirmEmail(user.token, code, address), 422, 'INVALID_KEY')
  for (let index = 0; index < 12; index++) {
    refused(t, await confirmEmail(user.token, wrongCode(code), anyAddress()), 422, 'INVALID_KEY')
  }
  for (let index = 0; index < 10; index++) await setEmail(user.token, newEmail(), { secret: 'a guess' })
  refused(t, await setEmail(user.token, newEmail()), 429, 'TOO_MANY_ATTEMPTS')
  t.is(await emailOf(user.token), null)
  t.is((await confirmEmail(user.token, code)).status, 200)
})

test('only the newest code is valid, and it expires after 15 minutes', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await service.signUp('ROLE_CLIENT')
  const first = await mailedCode(token, service)
  await service.clock.pass(61)
  const second = await mailedCode(token, service)
  refused(t, await confirmEmail(token, first.code, undefined, service), 422, 'INVALID_KEY')
  await service.clock.pass(15 * 60)
  refused(t, await confirmEmail(token, second.code, undefined, service), 422, 'INVALID_KEY')
  const third = await mailedCode(token, service)
  await service.clock.pass(14 * 60)
  t.is((await confirmEmail(token, third.code, undefined, service)).status, 200)
  t.is(await emailOf(token, service), third.email)
})

test('of 20 simultaneous confirmations with one code, one changes the address, and the former address gets one notice', async t => {
  const before = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: before })
  const { email, code } = await mailedCode(token)
  const answers = await Promise.all(Array.from({ length: 20 }, () => confirmEmail(token, code)))
  t.is(answers.filter(({ status }) => status === 200).length, 1)
  t.true(answers.every(({ status }) => [200, 422, 429].includes(status)))
  t.is(await emailOf(token), email)
  await mailbox.nextEmail(before)
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === before).length, 1)
  const filter = { subjectId: idOf(token), action: 'user.change-email', outcome: 'ok', limit: 100 }
  t.is((await service.registry.audit.list(filter)).length, 1)
})

test('a password update by a mailed key, or by SetPassword, lets the owner change the address at once', async t => {
  const { registry } = service
  const byKey = async (username: string, id: number) => {
    await registry.mailedKeys.replace(id, 'recovery', 'ABCD2345')
    const query = { username, key: 'ABCD2345' }
    const { text: token } = await service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query })
    t.is((await update(token, service)).status, 200)
  }
  const byAdministrator = async (username: string) => {
    await (await openLocal(t, service, { reason: 'teste' })).setPassword({ user: username, password: newPassword })
  }
  for (const way of [byKey, byAdministrator]) {
    // Regardless of earlier uses of the token.
    const { token, username } = await service.signUp('ROLE_CLIENT')
    t.is((await update(token, service)).status, 200)
    await way(username, idOf(token))
    const session = await service.login(username, newPassword)
    t.is((await setEmail(session, newEmail(), { secret: newPassword })).status, 200)
  }
})

test.serial(
  'an administrator’s change of the address voids a waiting code and notifies the former address',
  async t => {
    const admin = await openLocal(t, service)
    for (const set of [newEmail(), undefined]) {
      const [before, wanted] = [newEmail(), newEmail()]
      const { token, username } = await service.signUp('ROLE_CLIENT', { email: before })
      // Both e-mails that start a change.
      const ids = [await hold('requested', idOf(token), wanted), await hold('ready', idOf(token), wanted)]
      await admin.updateUser({ user: username, form: set ? { email: set } : {}, updateMask: { paths: ['email'] } })
      const text = 'UPDATE emails SET next_attempt_at = now() WHERE id = ANY($1)'
      await service.registry.database.run({ text, values: [ids] })
      await quiet(service)
      t.is(emailsTo(wanted), 0)
      t.is(await emailOf(token), set ?? null)
      t.regex((await mailbox.nextEmail(before)).subject!, /foi alterado/)
    }
  },
)

test('an account mails one code per minute and five per hour, and one recipient gets five per hour from all accounts', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await service.signUp('ROLE_CLIENT')
  const victim = newEmail()
  for (let index = 0; index < 5; index++) {
    t.is((await setEmail(token, `${index}.${victim}`, { on: service })).status, 200)
    const answer = await setEmail(token, `x.${victim}`, { on: service })
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    // The first four wait for the minute, the fifth for the hour.
    t.is(Number(answer.headers.get('retry-after')) <= 60, index < 4)
    await service.clock.pass(61)
  }
  const answer = await setEmail(token, `x.${victim}`, { on: service })
  refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(answer.headers.get('retry-after')) > 60)

  // The answer doesn't reveal that the address reached its limit.
  for (let index = 0; index < 12; index++) {
    const { token } = await service.signUp('ROLE_CLIENT')
    t.is((await setEmail(token, victim, { on: service })).status, 200)
  }
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === victim).length, 5)
})

test('each former address gets a notice of the change, however quickly changes follow each other', async t => {
  const service = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const first = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: first })
  /** Mails codes from other accounts to an address. */
  const fill = async (address: string, times: number) => {
    for (let index = 0; index < times; index++) {
      const { token } = await service.signUp('ROLE_CLIENT')
      await setEmail(token, address, { on: service })
      await mailbox.nextEmail(address)
    }
  }
  // The first two recipients have reached the limit of this hour, so their notices wait.
  await fill(first, 5)
  const addresses = [first]
  for (let index = 0; index < 3; index++) {
    const { email, code } = await mailedCode(token, service)
    t.is((await confirmEmail(token, code, undefined, service)).status, 200)
    if (index === 0) await fill(email, 4)
    addresses.push(email)
    await service.clock.pass(61)
  }
  const noticesTo = (address: string) =>
    mailbox.emails.filter(({ to, subject }) => to?.[0]?.address === address && /foi alterado/.test(subject ?? ''))
  await mailbox.nextEmail(addresses[2]!)
  t.deepEqual([noticesTo(first).length, noticesTo(addresses[1]!).length], [0, 0])
  await service.clock.pass(3600)
  await quiet(service)
  t.deepEqual(
    addresses.map(address => noticesTo(address).length),
    [1, 1, 1, 0],
  )
})

test('a recovery key that waits in the queue isn’t sent to a replaced address', async t => {
  const { registry } = service
  const before = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: before })
  const { code } = await mailedCode(token)
  t.is((await confirmEmail(token, code)).status, 200)
  await mailbox.nextEmail(before)
  await registry.emails.add(
    { kind: 'recovery-key', stage: 'ready', parameters: { userId: idOf(token), to: before } },
    'en',
  )
  await quiet(service)
  t.is(mailbox.emails.filter(({ to }) => to?.[0]?.address === before).length, 1)
})

test('a former username and its look-alikes are taken for all other users for 30 days, and never for its user', async t => {
  const service = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const former = newName()
  const owner = await service.signUp('ROLE_CLIENT', { username: former })
  const thief = await service.signUp('ROLE_CLIENT')
  const name = newName()
  t.is((await setUsername(owner.token, name, { on: service })).status, 200)
  const administration = async () => {
    const { token } = await openAdministration(t, service).signIn({ username: 'admin', password })
    return openAdministration(t, service, token)
  }
  const [cyrillic, capitals] = [former.replace('a', 'а'), former.toUpperCase()]

  async function isTaken(): Promise<void> {
    const api = await administration()
    const token = await service.login(thief.username)
    for (const username of [former, capitals, cyrillic]) {
      const signUp = await service.request('POST', '/users/signup', { body: signUpForm({ username }) })
      refused(t, signUp, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(signUp), ['username'])
      const set = await setUsername(token, username, { on: service })
      refused(t, set, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(set), ['username'])
      const form = { username, nickname: randomUUID(), state: 'SP', city: 'Bauru', role: 'ROLE_CLIENT' }
      t.deepEqual(await wrongFieldsOf(api.createUser({ form })), ['form.username'])
      const update = { user: thief.username, form, updateMask: { paths: ['username'] } }
      t.deepEqual(await wrongFieldsOf(api.updateUser(update)), ['form.username'])
    }
    for (const username of [former, capitals]) {
      t.is((await service.request('POST', '/users/existsByUsername', { query: { username } })).text, 'true')
    }
    refused(t, await login(former, { on: service }), 404, 'INVALID_CREDENTIALS')
  }
  await isTaken()
  await service.clock.pass(30 * day - 3)
  await isTaken()
  // It has the name again, and released the other one at that moment.
  const session = await service.login(name)
  t.is((await setUsername(session, cyrillic, { on: service })).status, 200)
  t.is((await setUsername(session, name, { on: service })).status, 200)

  await service.clock.pass(30 * day)
  t.is((await service.request('POST', '/users/existsByUsername', { query: { username: former } })).text, 'false')
  t.is((await service.request('POST', '/users/signup', { body: signUpForm({ username: former }) })).status, 200)
  const late = await service.login(thief.username)
  refused(t, await setUsername(late, name, { on: service }), 422, 'INVALID_SIGN_UP')
})

test('an expired former username is free before its row is deleted, and is reserved for its next user when that user changes it', async t => {
  const service = await serviceWithClock(t)
  const former = newName()
  const [first, second] = [
    await service.signUp('ROLE_CLIENT', { username: former }),
    await service.signUp('ROLE_CLIENT'),
  ]
  t.is((await setUsername(first.token, newName(), { on: service })).status, 200)
  await service.clock.pass(30 * day + 1)
  const session = await service.login(second.username)
  t.is((await setUsername(session, former, { on: service })).status, 200)
  t.is((await setUsername(session, newName(), { on: service })).status, 200)
  const earlier = await service.login((await nameOf(first.token, service))!)
  refused(t, await setUsername(earlier, former, { on: service }), 422, 'INVALID_SIGN_UP')
  t.is((await setUsername(session, former, { on: service })).status, 200)
})

test('a user has at most ten reserved former usernames', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const names = Array.from({ length: 11 }, newName)
  for (const name of names.slice(0, 10)) t.is((await setUsername(token, name)).status, 200)
  const answer = await setUsername(token, names[10]!)
  refused(t, answer, 409, 'WRONG_STATE')
  t.regex(answer.json.detail, /\d{4}-\d\d-\d\dT/)
  t.is((await formerOf(token)).length, 10)
  // One of them isn’t an additional one.
  t.is((await setUsername(token, names[0]!)).status, 200)
  t.is((await formerOf(token)).length, 10)
})

test.serial('of 20 accounts and 20 sign-ups that take one username at once, one succeeds', async t => {
  const users = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_CLIENT')))
  for (const alike of [false, true]) {
    const name = newName()
    const other = alike ? name.replace('a', 'а') : name
    const answers = await Promise.all([
      ...users.map(({ token }) => setUsername(token, name)),
      ...users.map(() => service.request('POST', '/users/signup', { body: signUpForm({ username: other }) })),
    ])
    t.is(count(answers, 200), 1)
    for (const answer of answers.filter(({ status }) => status !== 200)) {
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), ['username'])
    }
  }
})

test.serial('a change waits for another one that is about to take a look-alike, and is refused then', async t => {
  const { database, users } = service.registry
  const [one, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const name = newName()
  let answer: Promise<Answer> | undefined
  await database.transact(async transaction => {
    await users.nameProblems([{ username: name }], transaction)
    answer = setUsername(one.token, name.replace('a', 'а'))
    t.is(await endsOrWaits(database, answer), 'waits')
    await users.rename(idOf(other.token), name, { address: '192.0.2.1', locale: 'en' }, transaction)
  })
  refused(t, (await answer)!, 422, 'INVALID_SIGN_UP')
  t.is(await nameOf(one.token), one.username)
})

test.serial('a username stays taken at every moment while its user changes it', async t => {
  const name = newName()
  const { token } = await service.signUp('ROLE_CLIENT', { username: name })
  const others = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_CLIENT')))
  const [own, ...answers] = await Promise.all([
    setUsername(token, newName()),
    ...others.map(other => setUsername(other.token, name)),
    ...others.map(() => service.request('POST', '/users/signup', { body: signUpForm({ username: name }) })),
  ])
  t.is(own.status, 200)
  t.is(count(answers, 422), answers.length)
})

test('concurrent changes of a user are applied one after another', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const names = Array.from({ length: 5 }, newName)
  const answers = await Promise.all(names.map(name => setUsername(token, name)))
  const done = names.filter((_, index) => answers[index]!.status === 200)
  t.true(done.length > 0)
  const name = (await nameOf(token))!
  t.true(done.includes(name))
  const former = [username.replace(/\D/g, ''), ...done.filter(each => each !== name)].sort()
  t.deepEqual((await formerOf(token)).map(({ key }) => key.replace('tel:+55', '')).sort(), former)
})

test.serial('a change waits for a sign-in of its user, and holds nothing that the sign-in needs', async t => {
  const { counterKeys, database } = service.registry
  const { token } = await service.signUp('ROLE_CLIENT')
  const at = anyAddress()
  const signIn = await connection(t, service.env.DATABASE_URL!)
  // Shorter than the deadlock_timeout of PostgreSQL, because the service would retry after a deadlock.
  await signIn.query(`SET lock_timeout = '500ms'`)
  await signIn.query('BEGIN')
  await signIn.query('SELECT FROM users WHERE id = $1 FOR KEY SHARE', [idOf(token)])
  const answer = setUsername(token, newName(), { at })
  t.is(await endsOrWaits(database, answer), 'waits')
  await signIn.query('INSERT INTO known_addresses (user_id, address) VALUES ($1, $2)', [
    idOf(token),
    counterKeys.knownNetwork(at),
  ])
  await signIn.query('COMMIT')
  t.is((await answer).status, 200)
})

/** Failures of a user, until the last one locks. */
async function fail(times: number, attempt: () => Promise<Answer>): Promise<void> {
  for (let index = 0; index < times; index++) {
    const { status, text } = await attempt()
    if (status !== 404 && status !== 422) throw new Error(text)
  }
}

test('a new username resets no count of failures: of passwords and answers, at unknown and known addresses and devices', async t => {
  const home = anyAddress()
  const near = home.replace(/\.\d+$/, '.250')
  const user: SignedUp = await known(service, home)
  const list = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  const body = list.json.slice(0, 2).map(({ id }: { id: number }) => ({ forgotpasswordquestionsid: id, answer: 'sim' }))
  for (const answer of body) {
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    await service.request('POST', path, { token: user.token, body: { ...answer, answer: 'azul' } })
  }
  const secret = 'not the password'
  const attempts = {
    'an unknown address': (username: string) => login(username, { secret }),
    'a known address': (username: string) => login(username, { secret, at: home }),
    'a known network': (username: string) => login(username, { secret, at: near }),
    'a device': (username: string) =>
      service.request('POST', '/users/login', {
        body: { username, password: secret },
        token: user.token,
        headers: from(anyAddress()),
      }),
    answers: (username: string) =>
      service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
        query: { username },
        body,
        headers: from(anyAddress()),
      }),
  }
  for (const attempt of Object.values(attempts)) await fail(9, () => attempt(user.username))
  const name = newName()
  t.is((await setUsername(user.token, name)).status, 200)
  for (const [what, attempt] of Object.entries(attempts)) {
    await fail(1, () => attempt(name))
    t.is((await attempt(name)).status, 429, what)
  }
  // An unlock ends all of them.
  const { counterKeys, attempts: counts } = service.registry
  await counts.clear([counterKeys.account('password', name)])
  // Locks are cached for a moment.
  await sleep(150)
  t.is((await login(name, { at: home })).status, 200)
  t.is(
    (await service.request('POST', '/users/login', { body: { username: name, password }, token: user.token })).status,
    200,
  )
})

test('the password of another account deletes nothing', async t => {
  const [thief, victim] = [
    await service.signUp('ROLE_CLIENT', { password: 'tatu-canastra 12' }),
    await service.signUp('ROLE_CLIENT'),
  ]
  refused(t, await deleteMe(victim.token, 'tatu-canastra 12'), 404, 'INVALID_CREDENTIALS')
  refused(t, await deleteMe(thief.token), 404, 'INVALID_CREDENTIALS')
  for (const { token } of [thief, victim]) t.is((await service.request('GET', '/users/me', { token })).status, 200)
})

test('of 8 simultaneous deletions with one token one succeeds, with one event and one e-mail', async t => {
  const email = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  const answers = await Promise.all(Array.from({ length: 8 }, () => deleteMe(token)))
  t.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(7).fill(500)])
  t.deepEqual(await eventsOf(idOf(token), 'user.delete-own'), ['ok'])
  await mailbox.nextEmail(email)
  t.is(emailsTo(email), 1)
})

test('of a concurrent deletion and another change with one token, one succeeds', async t => {
  const others = {
    '/users/revokemytokens': {},
    '/forgotpasswords/passwordupdatebyusername': { query: { newPassword: 'tatu-canastra 12' } },
  }
  for (const [path, more] of Object.entries(others)) {
    for (let round = 0; round < 5; round++) {
      const { token } = await service.signUp('ROLE_CLIENT')
      const [deletion, change] = await Promise.all([deleteMe(token), service.request('POST', path, { token, ...more })])
      const isDeleted = deletion.status === 200
      const [first, late] = isDeleted ? [deletion, change] : [change, deletion]
      t.is(first.status, 200, path)
      // A deletion that begins before the change of the password and compares it afterwards has a wrong one.
      if (late === deletion && 'query' in more && late.status === 404) refused(t, late, 404, 'INVALID_CREDENTIALS')
      else t.is(late.status, 500, path)
      t.is((await service.registry.users.byId(idOf(token))) === undefined, isDeleted, path)
    }
  }
})

test('an account has five exports a day over all replicas, independent of other accounts', async t => {
  const [one, other] = [replicas[0]!, replicas[1]! as TestService]
  const { token, username } = await one.signUp('ROLE_CLIENT')
  const outsider = await one.signUp('ROLE_CLIENT')
  const atOnce = await Promise.all([one, other, one, other, one, other, one].map(each => exportMe(token, each)))
  t.deepEqual(atOnce.map(({ status }) => status).sort(), [200, 200, 200, 200, 200, 429, 429])
  for (const each of [one, other]) {
    const answer = await exportMe(token, each)
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    t.is(answer.headers.get('retry-after'), '86400')
    t.is((await exportMe(outsider.token, each)).status, 200)
  }
  const { clock } = one as TestService & { clock: { pass(seconds: number): Promise<void> } }
  await clock.pass(86_390)
  refused(t, await exportMe(await one.login(username), other), 429, 'TOO_MANY_ATTEMPTS')
  await clock.pass(11)
  t.is((await exportMe(await one.login(username), other)).status, 200)
  const events = await one.registry.audit.list({ subjectId: idOf(token), action: 'user.export-own', limit: 99 })
  t.deepEqual(
    events.map(({ actor, actor_id }) => [actor, actor_id]),
    Array(6).fill(['user', idOf(token)]),
  )
})
