/** Sign-up: each field's rule, taken names, and the new user. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

const form = (fields: Record<string, unknown> = {}) => ({
  username: `pessoa ${randomUUID()}`,
  nickname: `apelido ${randomUUID()}`,
  password,
  state: 'BA',
  city: 'Salvador',
  termsofusage: true,
  roles: ['ROLE_CLIENT'],
  ...fields,
})
const signUp = (fields: Record<string, unknown> = {}) =>
  service.request('POST', '/users/signup', { body: form(fields) })

const required = ['city', 'nickname', 'password', 'roles', 'state', 'termsofusage', 'username']

for (const field of required) {
  for (const [how, value] of [
    ['missing', undefined],
    ['null', null],
    ['empty', field === 'roles' ? [] : field === 'termsofusage' ? false : ''],
    ...(['roles', 'termsofusage'].includes(field) ? [] : [['blank', '  \u00a0 '] as const]),
  ] as const) {
    test(`${field} that is ${how} is answered with 422 and named`, async t => {
      const answer = await signUp({ [field]: value })
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field])
    })
  }
}

test('all wrong fields are listed once each, including taken names and wrong types', async t => {
  const { username, nickname } = await service.signUp('ROLE_CLIENT')
  t.deepEqual(wrongFields(await service.request('POST', '/users/signup', { body: {} })), required)
  const wrong = { username, nickname, gender: 'X', state: 5, termsofusage: 'yes', roles: 'ROLE_CLIENT', city: '' }
  const answer = await signUp({ ...wrong, dateofborn: '31/02/2000', password: 'short', institutiontype: 'Z' })
  refused(t, answer, 422, 'INVALID_SIGN_UP')
  t.deepEqual(wrongFields(answer), [
    'city',
    'dateofborn',
    'gender',
    'institutiontype',
    'nickname',
    'password',
    'roles',
    'state',
    'termsofusage',
    'username',
  ])
})

const refusedValues: Record<string, readonly unknown[]> = {
  state: ['BAH'],
  gender: ['m'],
  institutiontype: ['S'],
  dateofborn: ['31/04/1990', '01/01/2999', 'yesterday'],
  termsofusage: [false],
  roles: [['ROLE_CLIENT', 'ROLE_CLIENT'], ['role_client'], [7]],
  password: ['seven77', 'é'.repeat(257), 'PASSWORD123'],
  city: ['a'.repeat(256), 'Sal\nvador', 'Sal\u0000vador', 7],
  institution: ['a\u0007b'],
  securityquestion: ['a'.repeat(256)],
  securityanswer: ['a'.repeat(256)],
  username: ['an\u007fa', '\u200b', 'me', ' Login ', '{username}', 'ｓｉｇｎｕｐ', ' ＃１ '],
  nickname: ['a\tb', '\u3164'],
  email: ['not an address'],
}
for (const [field, values] of Object.entries(refusedValues)) {
  test(`a ${field} that the rules refuse is answered with 422 and named`, async t => {
    for (const value of values) {
      const answer = await signUp({ [field]: value })
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field], JSON.stringify(value))
    }
  })
}

test('unusual values within the rules are accepted', async t => {
  for (const fields of [
    { password: 'пароль 長い 🐙 passe', city: "Olho-d'Água das Cunhãs", state: 'é€', institutiontype: 'D' },
    { password: 'é'.repeat(256), city: 'a'.repeat(255), gender: null, unknownfield: { a: [1] } },
    { password: 'eightéé8', gender: '', institutiontype: 'O', email: 'ana.maria+auth@example.org' },
  ]) {
    const { status, text } = await signUp(fields)
    t.is(status, 200, text)
  }
})

for (const [given, shown] of [
  ['29/02/2024', '29/02/2024'],
  ['1990-02-01', '01/02/1990'],
  ['1990-02-01T23:30:00.000Z', '01/02/1990'],
  ['1990-02-01T00:30:00-03:00', '01/02/1990'],
] as const) {
  test(`the date of birth ${given} is shown as ${shown}`, async t => {
    const { text: token } = await signUp({ dateofborn: given })
    t.is((await service.request('GET', '/users/me', { token })).json.dateofborn, shown)
  })
}

for (const [field, first, other] of [
  ['username', 'Ana', 'ana'],
  ['username', 'Ana', '  ANA '],
  ['username', 'Ana', 'Ａｎａ'],
  ['username', 'Conceição', 'CONCEIC\u0327A\u0303O'],
  ['nickname', 'Rosa', ' ROSA'],
  ['nickname', 'Rosa', 'ｒｏｓａ'],
] as const) {
  test(`with the ${field} "${first}" the ${field} "${other}" is taken`, async t => {
    const mark = randomUUID()
    t.is((await signUp({ [field]: `${first}${mark}` })).status, 200)
    const answer = await signUp({
      [field]: other.trimEnd() === other ? `${other}${mark}` : `${other.trimEnd()}${mark} `,
    })
    refused(t, answer, 422, 'INVALID_SIGN_UP')
    t.deepEqual(wrongFields(answer), [field])
  })
}

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

test('a taken nickname is refused with a free suggestion', async t => {
  const { nickname } = await service.signUp('ROLE_CLIENT')
  const answer = await signUp({ nickname })
  const [{ message }] = answer.json.errors
  const free = /taken, (.+) is free/.exec(message)?.[1]
  t.truthy(free, message)
  t.is((await signUp({ nickname: free })).status, 200)
})

test('a username may equal another user’s nickname', async t => {
  const { nickname } = await service.signUp('ROLE_CLIENT')
  t.is((await signUp({ username: nickname })).status, 200)
})

for (const body of ['[]', '"text"', '7', 'null', 'true', '{"username":', '', 'username=ana']) {
  test(`the body ${body || '(none)'} is answered with 400`, async t => {
    const headers = { 'content-type': 'application/json' }
    refused(t, await service.request('POST', '/users/signup', { body, headers }), 400, 'MALFORMED_REQUEST')
  })
}

test('sign-up returns a token of the new user, who is inactive', async t => {
  const { status, text: token, headers } = await signUp()
  t.is(status, 200)
  t.is(headers.get('cache-control'), 'no-store')
  const { json } = await service.request('GET', '/users/me', { token })
  t.is(json.active, 0)
  t.is(json.id, idOf(token))
  const { active, roles, amr } = claimsOf(token)
  t.deepEqual({ active, roles, amr }, { active: false, roles: ['ROLE_CLIENT'], amr: ['pwd'] })
})

test('a sign-up with ROLE_ADMIN is accepted, but its user has no permissions and can’t activate itself', async t => {
  const { username, token } = await service.signUp('ROLE_ADMIN')
  const other = await service.signUp('ROLE_CLIENT')
  const { json } = await service.request('GET', '/users/me', { token })
  t.is(`${json.role} ${json.active}`, 'ROLE_ADMIN 0')
  refused(t, await service.request('GET', `/users/${other.username}`, { token }), 403, 'ACCESS_DENIED')
  const { activationkey } = await service.organization()
  const { providerKey } = await service.institution({ activationkey })
  for (const key of [activationkey, providerKey]) {
    const query = { username, activationkey: key }
    refused(t, await service.request('POST', '/users/activate', { token, query }), 422, 'ACTIVATION_REFUSED')
    const admin = await service.adminToken()
    refused(t, await service.request('POST', '/users/activate', { token: admin, query }), 422, 'ACTIVATION_REFUSED')
  }
})

test('a security question in any case and without accents, or by number, stores its answer', async t => {
  const { json } = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  const [first, second] = json
  const plain = first.question.normalize('NFD').replace(/\p{M}/gu, '').toUpperCase()
  const byText = {
    username: `por texto ${randomUUID()}`,
    securityquestion: `  ${plain} `,
    securityanswer: 'Lobo-guará',
  }
  const byNumber = {
    username: `por número ${randomUUID()}`,
    securityquestion: String(second.id),
    securityanswer: 'Mico',
  }
  for (const [fields, mine, other] of [
    [byText, first, second],
    [byNumber, second, first],
  ] as const) {
    const { text: token } = await signUp(fields)
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    await service.request('POST', path, { token, body: { forgotpasswordquestionsid: other.id, answer: 'Anta' } })
    const body = [
      { forgotpasswordquestionsid: mine.id, answer: fields.securityanswer },
      { forgotpasswordquestionsid: other.id, answer: 'anta' },
    ]
    const query = { username: fields.username }
    const login = await service.request('POST', '/forgotpasswords/loginbyusernameandanswers', { query, body })
    t.is(login.status, 200, login.text)
  }
})

test('a custom security question is kept as text and stores no answer', async t => {
  const username = `própria ${randomUUID()}`
  const { text: token } = await signUp({ username, securityquestion: 'A cor do céu?', securityanswer: 'azul' })
  t.is((await service.request('GET', '/users/me', { token })).json.securityquestion, 'A cor do céu?')
  t.deepEqual(await service.registry.questions.answers(idOf(token)), [])
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
