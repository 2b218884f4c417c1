/** Sign-up: each field's rule, taken names, their look-alikes on every replica, and the new user. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Parts } from '../../server/calls/parts.js'
import { createRateLimits } from '../../server/limits/rate-limits.js'
import { createPasswordPolicy } from '../../server/passwords/policy.js'
import { createRegistrar } from '../../server/registration/registrar.js'
import { Refusal } from '../../server/requests/refusal.js'
import { signUp as register } from '../../server/users/sign-up.js'
import { profileNames, requiredNames, wrongValues } from '../_helpers/fields.js'
import { openModels } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const replica = serviceForFile(() => ({ DATABASE_URL: service.env.DATABASE_URL! }))

const signUp = (fields: Record<string, unknown> = {}, at = service) =>
  at.request('POST', '/users/signup', { body: signUpForm(fields) })

const required = [...requiredNames, 'password', 'roles', 'termsofusage', 'username'].sort()

test('required fields that are missing, null, empty or blank are answered with 422 and named', async t => {
  for (const value of [undefined, null, '', '  \u00a0 ']) {
    const all = { ...Object.fromEntries(required.map(field => [field, value])) }
    const answer = await signUp(value === '' ? { ...all, roles: [], termsofusage: false } : all)
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), required, JSON.stringify(value))
  }
})

test('all wrong fields are listed once each, including taken names and wrong types', async t => {
  const { username, nickname } = await service.signUp('ROLE_CLIENT')
  t.deepEqual(wrongFields(await service.request('POST', '/users/signup', { body: {} })), required)
  const wrong = {
    username,
    nickname: nickname.toUpperCase(),
    state: 5,
    termsofusage: 'yes',
    roles: 'ROLE_CLIENT',
    city: '',
  }
  const answer = await signUp({ ...wrongValues, ...wrong, password: 'short' })
  refused(t, answer, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(answer), [...profileNames, 'password', 'roles', 'termsofusage', 'username'].sort())
})

test('a Brazilian telephone number is one account in every spelling, and is shown as at sign-up', async t => {
  const { text: token } = await signUp({ username: ' (71)98765-4321 ' })
  for (const spelling of ['(71)98765-4321', '(71) 98765-4321', '71987654321', '71 98765 4321', '+5571987654321']) {
    t.deepEqual(wrongFields(await signUp({ username: spelling })), ['username'], spelling)
    const login = await service.request('POST', '/users/login', { query: { username: spelling, password } })
    t.is(login.status, 200, spelling)
  }
  t.is((await service.request('GET', '/users/me', { token })).json.username, '(71)98765-4321')
  t.is((await signUp({ username: 'tel 71987654321' })).status, 200)
  t.is((await signUp({ username: '(71)98765-4322' })).status, 200)
})

test('a nickname that is taken, or looks like one, is refused with a free suggestion', async t => {
  t.is((await signUp({ nickname: 'Castanheira' })).status, 200)
  for (const nickname of ['Castanheira', 'Cаstanheira']) {
    const [{ reason, message, suggestion }] = (await signUp({ nickname })).json.errors
    t.is(reason, nickname === 'Castanheira' ? 'TAKEN' : 'LOOKS_LIKE_ANOTHER')
    t.true(message.endsWith(` is taken, ${suggestion} is free.`) || message.endsWith(` taken, ${suggestion} is free.`))
    t.is((await signUp({ nickname: suggestion })).status, 200, message)
  }
})

test('the suggested nickname looks like none that is taken', async t => {
  const latin = ['Amora', ...Array.from({ length: 90 }, (_, index) => `Amora${10 + index}`)]
  for (const { status } of await Promise.all(latin.map(nickname => signUp({ nickname })))) t.is(status, 200)
  const [{ suggestion }] = (await signUp({ nickname: 'Amorа' })).json.errors
  t.is((await signUp({ nickname: suggestion })).status, 200, suggestion)
})

test('each wrong field has a code', async t => {
  t.is((await signUp({ username: 'codificada' })).status, 200)
  const wrong = {
    ...{ username: 'Codificada', state: 'SPO', city: '', institution: 'x'.repeat(256), gender: 'X' },
    ...{ dateofborn: '01/01/3000', email: 'ana@', password: 'short', termsofusage: false, roles: [] },
  }
  const { username, ...form } = wrong
  const codes = (json: { errors: { field: string; reason: string }[] }) =>
    Object.fromEntries(json.errors.map(({ field, reason }) => [field, reason]))
  t.deepEqual(codes((await signUp(form)).json), {
    state: 'MALFORMED',
    city: 'MISSING',
    institution: 'TOO_LONG',
    gender: 'UNKNOWN_VALUE',
    dateofborn: 'OUT_OF_RANGE',
    email: 'MALFORMED',
    password: 'TOO_SHORT',
    termsofusage: 'NOT_ACCEPTED',
    roles: 'MISSING',
  })
  t.deepEqual(codes((await signUp({ username })).json), { username: 'TAKEN' })
  const more = { username: 'me', nickname: 'a\u200bb', password: 'password1', roles: ['ROLE_KING'], city: 'a\nb' }
  t.deepEqual(codes((await signUp(more)).json), {
    username: 'RESERVED',
    nickname: 'FORBIDDEN_CHARACTERS',
    password: 'TOO_COMMON',
    roles: 'UNKNOWN_VALUE',
    city: 'FORBIDDEN_CHARACTERS',
  })
  const own = { username: 'jacaranda do norte', password: 'jacaranda do norte' }
  t.deepEqual(codes((await signUp(own)).json), { password: 'REPEATS_OWN_DATA' })
})

test('a username may equal another user’s nickname', async t => {
  const { nickname } = await service.signUp('ROLE_CLIENT')
  t.is((await signUp({ username: nickname })).status, 200)
})

test('sign-up returns a token of the new user, who is inactive', async t => {
  const { status, text: token, headers } = await signUp()
  t.is(status, 200)
  t.is(headers.get('cache-control'), 'no-store')
  const { json } = await service.request('GET', '/users/me', { token })
  t.is(json.active, 0)
  t.is(json.id, idOf(token))
  const { active, roles, amr } = claimsOf(token)
  t.deepEqual({ active, roles, amr }, { active: false, roles: [], amr: ['pwd'] })
})

test('a security question in any case and without accents, or by number, stores its answer', async t => {
  const [first, second] = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const plain = first.question.normalize('NFD').replace(/\p{M}/gu, '').toUpperCase()
  for (const [securityquestion, mine, other] of [
    [`  ${plain} `, first, second],
    [String(second.id), second, first],
  ]) {
    const username = `pergunta ${randomUUID()}`
    const { text: token } = await signUp({ username, securityquestion, securityanswer: 'Lobo-guará' })
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    await service.request('POST', path, { token, body: { forgotpasswordquestionsid: other.id, answer: 'Anta' } })
    const body = [
      { forgotpasswordquestionsid: mine.id, answer: 'Lobo-guará' },
      { forgotpasswordquestionsid: other.id, answer: 'anta' },
    ]
    const query = { username }
    const login = await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', { query, body })
    t.is(login.status, 200, login.text)
  }
})

test('a custom security question is kept as text and stores no answer', async t => {
  const username = `própria ${randomUUID()}`
  const { text: token } = await signUp({ username, securityquestion: 'A cor do céu?', securityanswer: 'azul' })
  t.is((await service.request('GET', '/users/me', { token })).json.securityquestion, 'A cor do céu?')
  t.deepEqual(await service.registry.answers.of(idOf(token)), [])
})

for (const [path, field, value] of [
  ['existsByUsername', 'username', (user: { username: string }) => user.username.replace(/\D/g, '')],
  ['existsByNickname', 'nickname', (user: { nickname: string }) => ` ${user.nickname.toUpperCase()} `],
] as const) {
  for (const base of ['', '/1.0.0', '/1.0.2']) {
    test(`POST ${base}/users/${path} returns whether a name is taken, without a token`, async t => {
      const user = await service.signUp('ROLE_CLIENT')
      const ask = (query: Record<string, string>) => service.request('POST', `${base}/users/${path}`, { query })
      const taken = await ask({ [field]: value(user) })
      t.is(`${taken.status} ${taken.headers.get('content-type')} ${taken.text}`, '200 application/json true')
      t.is((await ask({ [field]: randomUUID() })).text, 'false')
      refused(t, await ask({}), 400, 'MISSING_PARAMETER')
      refused(t, await ask({ [field]: ' ' }), 400, 'MISSING_PARAMETER')
    })
  }
}

test('only the fields of a wrong type are named, in any order of fields', async t => {
  const valid = signUpForm({ gender: 'F', institution: 'Escola', dateofborn: '01/02/2003' })
  const wrong: Record<string, unknown> = {
    city: 5,
    termsofusage: 'yes',
    institution: ['x'],
    gender: {},
    dateofborn: true,
  }
  const fields = Object.entries(valid)
  const orders = [fields, fields.toReversed(), [...fields.slice(5), ...fields.slice(0, 5)]]
  for (const order of orders)
    for (const names of [...Object.keys(wrong).map(name => [name]), ['city', 'gender'], Object.keys(wrong)]) {
      const form = Object.fromEntries(order.map(([name, value]) => [name, names.includes(name) ? wrong[name] : value]))
      const answer = await service.request('POST', '/users/signup', { body: form })
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), names.toSorted(), Object.keys(form).join())
    }
  // Roles themselves, before and after another wrong field.
  for (const body of [
    { ...valid, roles: ['ROLE_CLIENT', 5], city: 5 },
    { ...valid, city: 5, roles: 'ROLE_CLIENT' },
  ])
    t.deepEqual(wrongFields(await service.request('POST', '/users/signup', { body })), ['city', 'roles'])
})

// Look-alikes of taken names are refused on every replica, and no other names are.

for (const field of ['username', 'nickname']) {
  test(`${field}: a look-alike of a taken one is answered with 422`, async t => {
    t.is((await signUp({ [field]: `Seringueira ${field}` })).status, 200)
    for (const alike of [`Sеringueira ${field}`, `SERINGUEIRА ${field}`, `Seri\u0307ngueira ${field}`]) {
      const answer = await signUp({ [field]: alike }, replica)
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field])
      t.regex(answer.json.errors[0].message, /looks like one that is taken/)
    }
    for (const different of [`Seringueirа ${field} 2`, `Seríngueira ${field}`, `Seringue1ra ${field}`])
      t.is((await signUp({ [field]: different })).status, 200, different)
    // The name in mixed scripts may be taken first.
    t.is((await signUp({ [field]: `Jаtobá ${field}` })).status, 200)
    t.deepEqual(wrongFields(await signUp({ [field]: `Jatobá ${field}` })), [field])
  })
}

test('a name with a control character finds no user, at every endpoint', async t => {
  const name = `controle ${randomUUID()}`
  const { text: token } = await signUp({ username: name, nickname: name })
  const [username, adminToken] = [`\t${name}`, await service.adminToken()]
  const post = (path: string, body: object, bearer?: string) =>
    service.request('POST', path, { body, ...(bearer !== undefined && { token: bearer }) })
  t.is((await post('/users/existsByUsername', { username: name })).text, 'true')
  t.is((await post('/users/existsByUsername', { username })).text, 'false')
  t.is((await post('/users/existsByNickname', { nickname: username })).text, 'false')
  refused(t, await post('/users/login', { username, password }), 404, 'INVALID_CREDENTIALS')
  const path = `/users/${encodeURIComponent(username)}`
  refused(t, await service.request('GET', path, { token: adminToken }), 404, 'USER_NOT_FOUND')
  t.not((await service.request('GET', path, { token })).status, 200)
  refused(t, await post('/users/activate', { username, activationkey: randomUUID() }, adminToken), 422)
  refused(t, await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'x' }), 422, 'INVALID_KEY')
  const newPassword = { username, newPassword: `${password} 2` }
  refused(t, await post('/forgotpasswords/passwordupdatebyusername', newPassword, adminToken), 404)
  const body = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'x' }))
  const byAnswers = { query: { username }, body }
  const answered = await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', byAnswers)
  refused(t, answered, 404, 'USER_NOT_FOUND')
})

test('look-ups by a look-alike find no user', async t => {
  t.is((await signUp({ username: 'copaíba' })).status, 200)
  const exists = (username: string) => service.request('POST', '/users/existsByUsername', { query: { username } })
  t.is((await exists('COPAÍBA')).text, 'true')
  t.is((await exists('cоpaíba')).text, 'false')
})

test('of look-alikes that sign up concurrently on two replicas, one succeeds', async t => {
  const letters: Record<string, string> = { a: 'а', o: 'о', e: 'е', p: 'р', c: 'с' }
  for (let round = 0; round < 6; round++) {
    const field = round % 2 === 0 ? 'username' : 'nickname'
    const name = `pau ceroca ${round}`
    const places = [...name].flatMap((letter, at) => (letters[letter] ? [at] : []))
    // The name itself, and as many others, each with a Cyrillic letter in another place.
    const names = [name, ...places.map(at => name.slice(0, at) + letters[name[at]!] + name.slice(at + 1))]
    const answers = await Promise.all(
      names.map((each, index) => signUp({ [field]: each }, index % 2 === 0 ? service : replica)),
    )
    t.is(answers.filter(({ status }) => status === 200).length, 1)
    for (const answer of answers.filter(({ status }) => status !== 200)) t.deepEqual(wrongFields(answer), [field])
  }
})

test('at most 100 names in one script may look the same', async t => {
  const { sequelize } = service.registry.database
  await sequelize.query(
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
       password_hash, state, city, terms_of_usage, role)
     SELECT n, n, 'lllllllll', n, n, n, '', 'AC', 'Xapuri', true, 'ROLE_CLIENT'
     FROM (SELECT translate(n::bit(9)::text, '01', 'l1') AS n FROM generate_series(0, 98) AS n) AS named`,
  )
  t.is((await signUp({ username: '1l1111111' })).status, 200)
  t.deepEqual(wrongFields(await signUp({ username: '11l111111' })), ['username'])
})

// A sign-up while too many hashes wait, on real buckets.

test('a sign-up without time to hash is refunded to the bucket of its address, any other is not', async t => {
  const models = await openModels(t)
  const address = '198.51.100.9'
  let hash: () => Promise<string[]> = async () => ['hash']
  const parts = {
    registry: models,
    limits: { rateLimits: createRateLimits({ ...models, factor: 1, now: Date.now }) },
    hashing: { pool: { check() {} }, passwords: { hash: () => hash() } },
    access: { tokens: { issue: async () => 'token' } },
    registration: {
      registrar: createRegistrar(models),
      rules: { policy: createPasswordPolicy({ minLength: 8 }), timeZone: 'America/Sao_Paulo', now: Date.now },
    },
    settings: { strict: 'off' },
  } as unknown as Parts
  const run = register(parts) as (request: object, context: object) => Promise<object>
  const call = { address, requestId: 'x', deadline: Date.now() + 60_000, malformedFields: [] }
  const level = async () => {
    const [[bucket]] = await models.database.sequelize.query('SELECT ceil(level) AS level FROM buckets')
    return Number((bucket as { level: number }).level)
  }
  const refuse = async (reason: Reason) => {
    hash = async () => {
      throw new Refusal(reason, { retryAfter: 1 })
    }
    t.is(((await t.throwsAsync(run(signUpForm(), { call }))) as Refusal).reason, reason)
  }
  await run(signUpForm(), { call })
  t.is(await level(), 1)
  await refuse(Reason.OVERLOADED)
  t.is(await level(), 1)
  await refuse(Reason.DEADLINE_EXCEEDED)
  t.is(await level(), 2)
})
