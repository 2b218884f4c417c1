/** Abuse of the change of a username: to take an account over, to impersonate its owner, or to guess beyond the limits. */
import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { openAdministration, wrongFieldsOf } from '../_helpers/administration.js'
import { anyAddress, from, known } from '../_helpers/crowd.js'
import { hold } from '../_helpers/database.js'
import { changeTokens, endsOrWaits } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
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

const service = serviceForFile()
const day = 86_400

const newName = () => `maria ${randomUUID()}`
interface Options {
  readonly secret?: string
  readonly at?: string
  readonly on?: TestService
}
const setUsername = (
  token: string,
  username: string,
  { secret = password, at = anyAddress(), on = service }: Options = {},
) => on.request('POST', '/users/me/username', { token, body: { username, password: secret }, headers: from(at) })
const login = (username: string, { secret = password, at = anyAddress(), on = service }: Options = {}) =>
  on.request('POST', '/users/login', { body: { username, password: secret }, headers: from(at) })
const nameOf = async (token: string, { registry } = service) => (await registry.users.byId(idOf(token)))?.username
const formerOf = async (token: string, { registry } = service) =>
  registry.database.run<{ key: string }>(
    { name: '', text: 'SELECT username_key AS key FROM former_usernames WHERE user_id = $1' },
    [idOf(token)],
  )
const count = (answers: readonly Answer[], status: number) => answers.filter(each => each.status === status).length

test('a stolen token without the password changes no username, and guessing the password locks', async t => {
  const victim = await service.signUp('ROLE_CLIENT')
  for (let index = 0; index < 10; index++) {
    refused(t, await setUsername(victim.token, newName(), { secret: `guess ${index}` }), 404, 'INVALID_CREDENTIALS')
  }
  // Now even the correct password is refused, there and at login.
  refused(t, await setUsername(victim.token, newName()), 429, 'TOO_MANY_ATTEMPTS')
  refused(t, await login(victim.username), 429, 'TOO_MANY_ATTEMPTS')
  t.is(await nameOf(victim.token), victim.username)
  const filter = { subjectId: idOf(victim.token), action: 'user.set-own-username', limit: 100 }
  t.deepEqual(
    (await service.registry.audit.list(filter)).map(({ outcome, reason, object }) => [outcome, reason, object]),
    [
      ['refused', 'INVALID_CREDENTIALS', null],
      ['refused', 'TOO_MANY_ATTEMPTS', 'failures:10'],
    ],
  )
})

test('a stolen token that sets a new password can’t set a username for a day', async t => {
  const service = await serviceWithClock(t)
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const secret = 'tartaruga de couro 7'
  const query = { newPassword: secret }
  const path = '/forgotpasswords/passwordupdatebyusername'
  t.is((await service.request('POST', path, { token, query })).status, 200)
  await service.clock.pass(day - 2)
  const session = await service.login(username, secret)
  const answer = await setUsername(session, newName(), { secret, on: service })
  refused(t, answer, 409, 'WRONG_STATE')
  const [time = ''] = /\d{4}-\d\d-\d\dT[\d:.]+Z/.exec(answer.json.detail) ?? []
  t.true(Math.abs(Date.parse(time) - service.clock.now() - 2000) < 1000, answer.json.detail)
  await service.clock.pass(2)
  t.is((await setUsername(session, newName(), { secret, on: service })).status, 200)
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

test('a user can return to a former username at once', async t => {
  const { token, username } = await service.signUp('ROLE_CLIENT')
  const name = newName()
  t.is((await setUsername(token, name)).status, 200)
  t.is((await setUsername(token, username)).status, 200)
  t.is((await login(username)).status, 200)
  t.deepEqual(await formerOf(token), [{ key: name }])
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

test('a change that started before its session was revoked changes no username', async t => {
  const { database, users } = service.registry
  for (const revoke of ['suspend', 'revokeTokens'] as const) {
    const { token, username } = await service.signUp('ROLE_CLIENT')
    const id = idOf(token)
    let answer: Promise<Answer> | undefined
    await changeTokens(service.registry, id, async transaction => {
      await users[revoke](id, transaction)
      answer = setUsername(token, newName())
      await endsOrWaits(database, answer)
    })
    refused(t, (await answer)!, 500, 'INVALID_TOKEN')
    t.is(await nameOf(token), username)
    t.is((await formerOf(token)).length, 0)
  }
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
