/** Abuse of the RPCs for a user's own account: to take it over, to impersonate or delete its owner, to mail or read others. */
import { randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import type { Email } from 'postal-mime'
import type { Transaction } from '../../server/database/database.js'
import { sql } from '../../server/database/sql.js'
import { usernameKey } from '../../server/rules/names.js'
import { openLocal, openSignedIn, wrongFieldsOf } from '../_helpers/administration.js'
import { anyAddress, from, known, login, statuses } from '../_helpers/crowd.js'
import { hold } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { enterByAnswers, enterByKey, saveAnswer, updatePassword } from '../_helpers/recovery.js'
import {
  type Answer,
  password,
  serviceForFile,
  serviceWithClock,
  signUpForm,
  startTestService,
  type TestService,
} from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
const day = 86_400
const newPassword = 'tatu-canastra 12'

const newEmail = () => `ana.${randomUUID()}@example.org`
const newName = () => `maria ${randomUUID()}`

const post = (on: TestService, path: string, token: string, body: unknown = undefined, at = anyAddress()) =>
  on.request('POST', path, { token, body, headers: from(at) })
const setEmail = (token: string, email = newEmail(), secret = password, on = service) =>
  post(on, '/users/setemail', token, { email, password: secret })
const confirmEmail = (token: string, code: string, on = service, at?: string) =>
  post(on, '/users/confirmemail', token, { code }, at)
const setUsername = (token: string, username = newName(), secret = password, on = service, at?: string) =>
  post(on, '/users/me/username', token, { username, password: secret }, at)
const deleteMe = (token: string, secret = password, on = service) =>
  post(on, '/users/me/delete', token, { password: secret })
const deleteAnswers = (token: string, secret = password, on = service) =>
  post(on, '/users/me/answers/delete', token, { password: secret })
const exportMe = (token: string, on = service) => on.request('GET', '/users/me/export', { token })
const signUpAs = (username: string, on = service) =>
  on.request('POST', '/users/signup', { body: signUpForm({ username }) })

const emailsTo = (email: string, subject = /./) =>
  mailbox.emails.filter(each => each.to?.[0]?.address === email && subject.test(each.subject ?? '')).length
const userOf = (token: string, { registry } = service) => registry.users.byId(idOf(token))
const eventsOf = async (id: number, action: string, { registry } = service) =>
  (await registry.audit.list({ subjectId: id, action, limit: 99 })).map(({ outcome, reason, object }) =>
    [outcome, reason, object].filter(Boolean).join(' '),
  )
const atOnce = (count: number, work: (index: number) => Promise<Answer>) =>
  Promise.all(Array.from({ length: count }, (_, index) => work(index)))
const isTaken = (t: ExecutionContext, answer: Answer) => {
  refused(t, answer, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(answer), ['username'])
}

/** Until nothing is left in the queue. */
async function quiet({ registry }: TestService): Promise<void> {
  const left = async () => registry.database.run<object>(sql`SELECT id, attempts FROM emails ORDER BY id`)
  await waitFor(async () => (await left()).length === 0, left)
}

/** A code that was mailed for another address. */
async function mailedCode(token: string, on = service): Promise<{ email: string; code: string }> {
  const email = newEmail()
  const { status, text } = await setEmail(token, email, password, on)
  if (status !== 200) throw new Error(text)
  const { text: mail = '' }: Email = await mailbox.nextEmail(email)
  return { email, code: /: ([2-9A-HJ-NP-Z]{8})$/m.exec(mail)?.[1] ?? '' }
}

/** What asks for the password once more. */
const guarded = {
  'user.ask-email': (token: string, secret?: string, on?: TestService) => setEmail(token, newEmail(), secret, on),
  'user.set-own-username': (token: string, secret?: string, on?: TestService) =>
    setUsername(token, newName(), secret, on),
  'user.delete-own': deleteMe,
  'user.delete-own-answers': deleteAnswers,
  'user.save-answer': (token: string, secret = password, on = service) =>
    saveAnswer(on, token, 1, 'azul', { password: secret }),
}

for (const [action, act] of Object.entries(guarded)) {
  const waits = (t: ExecutionContext, answer: Answer) =>
    action === 'user.save-answer' ? refused(t, answer, 403, 'ACCESS_DENIED') : refused(t, answer, 409, 'WRONG_STATE')

  test(`${action}: a stolen token without the password changes nothing, and guessing the password locks`, async t => {
    const { token, username } = await service.signUp('ROLE_CLIENT', { email: newEmail() })
    const before = await userOf(token)
    for (let index = 0; index < 10; index++)
      refused(t, await act(token, `guess number ${index}`), 404, 'INVALID_CREDENTIALS')
    // Now even the correct password is refused, there and at login.
    refused(t, await act(token), 429, 'TOO_MANY_ATTEMPTS')
    refused(t, await login(service, username), 429, 'TOO_MANY_ATTEMPTS')
    t.deepEqual(await userOf(token), before)
    t.deepEqual(await eventsOf(idOf(token), action), [
      'refused INVALID_CREDENTIALS',
      'refused TOO_MANY_ATTEMPTS failures:10',
    ])
    const { attempts, counterKeys } = service.registry
    await attempts.clear([counterKeys.account('password', usernameKey(username))])
    t.is((await act(token)).status, 200)
  })

  test(`${action}: a new password has no effect for a day if a token, an administrator’s or a key of 15 minutes ago set it`, async t => {
    const on = await serviceWithClock(t, { SMTP_URL: mailbox.url })
    const { clock, registry } = on
    const local = await openLocal(t, on, { reason: 'teste' })
    const byKey = (seconds: number) => async (token: string, username: string) => {
      await registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
      const { text: entered } = await enterByKey(on, username, 'ABCD2345')
      await clock.pass(seconds / 2)
      const { text: refreshed } = await on.request('GET', '/users/refresh', { token: entered })
      await clock.pass(seconds / 2)
      return updatePassword(on, refreshed, newPassword)
    }
    type Way = (token: string, username: string) => Promise<unknown>
    const ways: Record<string, readonly [Way, waits: boolean]> = {
      token: [token => updatePassword(on, token, newPassword), true],
      administrator: [async (_, name) => updatePassword(on, await on.adminToken(), newPassword, name), true],
      'old key': [byKey(15 * 60 + 1), true],
      key: [byKey(15 * 60), false],
      // Regardless of earlier uses of the token.
      Administration: [
        async (token, user) => {
          await updatePassword(on, token, `${newPassword}!`)
          await local.setPassword({ user, password: newPassword })
        },
        false,
      ],
    }
    for (const [way, [change, isOld]] of Object.entries(ways)) {
      const { token, username } = await on.signUp('ROLE_CLIENT', { email: newEmail() })
      await change(token, username)
      const session = await on.login(username, newPassword)
      const answer = await act(session, newPassword, on)
      if (!isOld) {
        t.is(answer.status, 200, way)
        continue
      }
      waits(t, answer)
      const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)/.exec(answer.json.detail) ?? []
      t.true(Math.abs(Date.parse(time) - clock.now() - day * 1000) < 1000, answer.json.detail)
      // No password is compared, so none is counted or hashed.
      for (let index = 0; index < 11; index++) waits(t, await act(session, 'wrong one 1', on))
      t.deepEqual(await eventsOf(idOf(token), action, on), [])
      await clock.pass(day - 2)
      const late = await on.login(username, newPassword)
      waits(t, await act(late, newPassword, on))
      await clock.pass(2)
      t.is((await act(late, newPassword, on)).status, 200)
    }
  })
}

/** What changes or reads an account with its own token, and its event. */
const own: Record<string, (token: string, code: string) => Promise<Answer>> = {
  'user.ask-email': token => setEmail(token),
  'user.set-own-username': token => setUsername(token),
  'user.delete-own': token => deleteMe(token),
  'user.delete-own-answers': token => deleteAnswers(token),
  'user.change-email': (token, code) => confirmEmail(token, code),
  'user.revoke-own-tokens': token => post(service, '/users/revokemytokens', token),
  'user.export-own': token => exportMe(token),
  'user.save-answer': token => saveAnswer(service, token, 1, 'azul'),
  'user.save-answer*': token => saveAnswer(service, token, 1, 'azul', { password }),
  'user.change-password': token => updatePassword(service, token),
  'user.edit-own': token => service.request('PATCH', '/users/me', { token, body: { record: { city: 'Recife' } } }),
}

for (const [action, act] of Object.entries(own)) {
  test.serial(`${action}: a request that started before its session was revoked has no effect`, async t => {
    const { database, users } = service.registry
    const byToken = { byToken: true }
    const ways = {
      suspend: users.suspend,
      revokeTokens: users.revokeTokens,
      changePassword: (id: number, t: Transaction) => users.changePassword({ id, usernameKey: 'x' }, 'x', byToken, t),
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
  const [{ token }, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  const { code, email } = await mailedCode(token)
  const wrong = (code.startsWith('2') ? '3' : '2') + code.slice(1)
  refused(t, await confirmEmail(other.token, code), 422, 'INVALID_KEY')
  const address = anyAddress()
  for (const given of [wrong, wrong, wrong, wrong, wrong, code])
    refused(t, await confirmEmail(token, given, service, address), 422, 'INVALID_KEY')
  for (let index = 0; index < 12; index++) refused(t, await confirmEmail(token, wrong), 422, 'INVALID_KEY')
  for (let index = 0; index < 10; index++) await setEmail(token, newEmail(), 'a guess')
  refused(t, await setEmail(token), 429, 'TOO_MANY_ATTEMPTS')
  t.is((await userOf(token))?.email, null)
  t.is((await confirmEmail(token, code)).status, 200)
  t.is((await userOf(token))?.email, email)
})

test('only the newest code is valid, and it expires after 15 minutes', async t => {
  const on = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await on.signUp('ROLE_CLIENT')
  const codes: string[] = []
  for (const seconds of [61, 15 * 60, 14 * 60]) {
    codes.push((await mailedCode(token, on)).code)
    await on.clock.pass(seconds)
    for (const code of codes.slice(0, codes.length === 2 ? 2 : -1))
      refused(t, await confirmEmail(token, code, on), 422, 'INVALID_KEY')
  }
  t.is((await confirmEmail(token, codes[2]!, on)).status, 200)
})

test('of 20 simultaneous confirmations with one code, one changes the address, and the former address gets one notice', async t => {
  const before = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email: before })
  const { email, code } = await mailedCode(token)
  const { 200: succeeded, 422: wrong = 0, 429: waits = 0 } = statuses(await atOnce(20, () => confirmEmail(token, code)))
  t.deepEqual([succeeded, wrong + waits], [1, 19])
  t.is((await userOf(token))?.email, email)
  const seen = (await eventsOf(idOf(token), 'user.change-email')).filter(each => each.startsWith('ok'))
  t.deepEqual(seen, ['ok'])
  // A key that waits in the queue isn't sent to a replaced address.
  const parameters = { userId: idOf(token), to: before }
  await service.registry.emails.add({ kind: 'recovery-key', stage: 'ready', parameters }, 'en')
  await mailbox.nextEmail(before)
  await quiet(service)
  t.is(emailsTo(before), 1)
})

test('an account mails one code per minute and five per hour, and one recipient gets five per hour from all accounts', async t => {
  const on = await serviceWithClock(t, { SMTP_URL: mailbox.url })
  const { token } = await on.signUp('ROLE_CLIENT')
  const victim = newEmail()
  const waits = async () => {
    const answer = await setEmail(token, newEmail(), password, on)
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    return Number(answer.headers.get('retry-after')) > 60
  }
  for (let index = 0; index < 5; index++) {
    t.is((await setEmail(token, newEmail(), password, on)).status, 200)
    // The first four wait for the minute, the fifth for the hour.
    t.is(await waits(), index === 4)
    await on.clock.pass(61)
  }
  t.true(await waits())
  // The answer doesn't reveal that the address reached its limit.
  for (let index = 0; index < 12; index++)
    t.is((await setEmail((await on.signUp('ROLE_CLIENT')).token, victim, password, on)).status, 200)
  await quiet(on)
  t.is(emailsTo(victim), 5)
})

test('a former username and its look-alikes are taken for all other users for 30 days, and never for its user', async t => {
  const on = await serviceWithClock(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const [former, name] = [newName(), newName()]
  const [owner, thief] = [await on.signUp('ROLE_CLIENT', { username: former }), await on.signUp('ROLE_CLIENT')]
  const cyrillic = former.replace('a', 'а')
  const rename = async (from: string, to: string) => setUsername(await on.login(from), to, password, on)
  const exists = async () => (await on.request('POST', '/users/existsByUsername', { query: { username: former } })).text
  t.is((await setUsername(owner.token, name, password, on)).status, 200)
  for (const seconds of [0, 30 * day - 3]) {
    await on.clock.pass(seconds)
    const api = await openSignedIn(t, on)
    for (const username of [former, former.toUpperCase(), cyrillic]) {
      isTaken(t, await signUpAs(username, on))
      isTaken(t, await rename(thief.username, username))
      const form = { username, nickname: randomUUID(), state: 'SP', city: 'Bauru', role: 'ROLE_CLIENT' }
      t.deepEqual(await wrongFieldsOf(api.createUser({ form })), ['form.username'])
      const update = { user: thief.username, form, updateMask: { paths: ['username'] } }
      t.deepEqual(await wrongFieldsOf(api.updateUser(update)), ['form.username'])
    }
    t.is(await exists(), 'true')
    refused(t, await login(on, former), 404, 'INVALID_CREDENTIALS')
  }
  // It has the name again, and released the other one at that moment.
  t.is((await rename(name, cyrillic)).status, 200)
  t.is((await rename(cyrillic, name)).status, 200)
  // Free before its row is deleted, and reserved for its next user when that user changes it.
  await on.clock.pass(30 * day)
  t.is(await exists(), 'false')
  const next = newName()
  t.is((await rename(thief.username, former)).status, 200)
  t.is((await rename(former, next)).status, 200)
  isTaken(t, await rename(name, former))
  t.is((await rename(next, former)).status, 200)
  isTaken(t, await rename(former, name))
})

test('a user has at most ten reserved former usernames', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const names = Array.from({ length: 10 }, newName)
  for (const name of names) t.is((await setUsername(token, name)).status, 200)
  const answer = await setUsername(token)
  refused(t, answer, 409, 'WRONG_STATE')
  t.regex(answer.json.detail, /\d{4}-\d\d-\d\dT/)
  // One of them isn’t an additional one.
  t.is((await setUsername(token, names[0]!)).status, 200)
})

test.serial('of 40 that take a username at once one succeeds, and none while its user changes it', async t => {
  const users = await Promise.all(Array.from({ length: 20 }, () => service.signUp('ROLE_CLIENT')))
  const take = (name: string, other = name) => [
    ...users.map(({ token }) => setUsername(token, name)),
    ...users.map(() => signUpAs(other)),
  ]
  for (const alike of ['a', 'а']) {
    const name = newName()
    const answers = await Promise.all(take(name, name.replace('a', alike)))
    t.deepEqual(statuses(answers.filter(({ status }) => status < 400)), { 200: 1 })
    // Each sign-up may be a repeated one, which compares the password: an attempt, of which ten may fail.
    for (const answer of answers.filter(({ status }) => status !== 200 && status !== 429)) isTaken(t, answer)
  }
  const { token, username } = await service.signUp('ROLE_CLIENT', { username: newName() })
  const [changed, ...answers] = await Promise.all([setUsername(token), ...take(username)])
  t.is(changed!.status, 200)
  t.deepEqual(
    [...new Set(answers.map(({ status }) => status))].filter(status => status !== 429),
    [422],
  )
})

test.serial('a change waits for another that is about to take a look-alike, and is refused then', async t => {
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
  isTaken(t, (await answer)!)
})

test('concurrent changes of a user are applied one after another', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const names = Array.from({ length: 5 }, newName)
  const answers = await Promise.all(names.map(name => setUsername(token, name)))
  const done = names.filter((_, index) => answers[index]!.status === 200)
  const name = (await userOf(token))!.username
  t.true(done.includes(name))
  const keys = sql`SELECT username_key AS key FROM former_usernames WHERE user_id = ${idOf(token)}`
  const former = (await service.registry.database.run<{ key: string }>(keys)).map(({ key }) => key)
  t.deepEqual(former.sort(), [usernameKey(username), ...done.filter(each => each !== name)].sort())
})

test.serial('a change waits for a sign-in of its user, and holds nothing that the sign-in needs', async t => {
  const { counterKeys, database } = service.registry
  const { token } = await service.signUp('ROLE_CLIENT')
  const at = anyAddress()
  const signIn = await hold(t, service.env.DATABASE_URL!)
  // Shorter than the deadlock_timeout of PostgreSQL, because the service would retry after a deadlock.
  await signIn.query(`SET lock_timeout = '500ms'`)
  await signIn.query('BEGIN')
  await signIn.query('SELECT FROM users WHERE id = $1 FOR KEY SHARE', [idOf(token)])
  const answer = setUsername(token, newName(), password, service, at)
  t.is(await endsOrWaits(database, answer), 'waits')
  const network = counterKeys.knownNetwork(at)
  await signIn.query('INSERT INTO known_addresses (user_id, address) VALUES ($1, $2)', [idOf(token), network])
  await signIn.query('COMMIT')
  t.is((await answer).status, 200)
})

test('a new username resets no count of failures: of passwords and answers, at unknown and known addresses and devices', async t => {
  const home = anyAddress()
  const { token, username } = await known(service, home)
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  const attempts: Record<string, (name: string, secret?: string) => Promise<Answer>> = {
    'an unknown address': (name, secret = 'wrong') => login(service, name, anyAddress(), secret),
    'a known address': (name, secret = 'wrong') => login(service, name, home, secret),
    'a known network': (name, secret = 'wrong') => login(service, name, home.replace(/\.\d+$/, '.250'), secret),
    'a device': (name, secret = 'wrong') => login(service, name, anyAddress(), secret, { token }),
    answers: name => enterByAnswers(service, name, 'sim'),
  }
  const fail = async (times: number, name: string, attempt: (typeof attempts)[string]) => {
    for (let index = 0; index < times; index++) t.true([404, 422].includes((await attempt(name)).status))
  }
  for (const attempt of Object.values(attempts)) await fail(9, username, attempt)
  const name = newName()
  t.is((await setUsername(token, name)).status, 200)
  for (const [what, attempt] of Object.entries(attempts)) {
    await fail(1, name, attempt)
    t.is((await attempt(name)).status, 429, what)
  }
})

test('of 8 simultaneous deletions with one token one succeeds, with one event and one e-mail', async t => {
  const email = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  t.deepEqual(statuses(await atOnce(8, () => deleteMe(token))), { 200: 1, 500: 7 })
  t.deepEqual(await eventsOf(idOf(token), 'user.delete-own'), ['ok'])
  await mailbox.nextEmail(email)
  t.is(emailsTo(email), 1)
})

test('an account has five exports a day over all replicas, independent of other accounts', async t => {
  const one = await serviceWithClock(t)
  const { clock } = one
  const other = await startTestService(t, { DATABASE_URL: one.env.DATABASE_URL! }, { clock })
  const { token, username } = await one.signUp('ROLE_CLIENT')
  const outsider = await one.signUp('ROLE_CLIENT')
  const answers = await atOnce(7, index => exportMe(token, index % 2 ? one : other))
  t.deepEqual(statuses(answers), { 200: 5, 429: 2 })
  for (const each of [one, other]) {
    const answer = await exportMe(token, each)
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    t.is(answer.headers.get('retry-after'), '86400')
    t.is((await exportMe(outsider.token, each)).status, 200)
  }
  await clock.pass(86_390)
  refused(t, await exportMe(await one.login(username), other), 429, 'TOO_MANY_ATTEMPTS')
  await clock.pass(11)
  t.is((await exportMe(await one.login(username), other)).status, 200)
})
