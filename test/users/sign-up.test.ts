/** Sign-up: each field's rule, taken names, their look-alikes on every replica, and the new user. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createAdmission } from '../../server/limits/admission.js'
import { createPasswordPolicy } from '../../server/passwords/policy.js'
import { createRegistrar } from '../../server/registration/registrar.js'
import { Refusal } from '../../server/requests/refusal.js'
import { signUp as register, type SignUpDeps } from '../../server/users/sign-up.js'
import { openModels } from '../_helpers/models.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, serviceForFile, signUpForm } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const replica = serviceForFile(() => ({ DATABASE_URL: service.env.DATABASE_URL! }))

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
const signUp = (fields: Record<string, unknown> = {}, at = service) =>
  at.request('POST', '/users/signup', { body: form(fields) })

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
    ...['city', 'dateofborn', 'gender', 'institutiontype', 'nickname', 'password', 'roles', 'state'],
    ...['termsofusage', 'username'],
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

// Look-alikes of taken names are refused on every replica, and no other names are.

for (const field of ['username', 'nickname']) {
  test(`${field}: a look-alike of a taken one is answered with 422`, async t => {
    t.is((await signUp({ [field]: `Seringueira ${field}` })).status, 200)
    for (const alike of [`Sеringueira ${field}`, `SERINGUEIRА ${field}`, `ѕeringueira ${field}`]) {
      const answer = await signUp({ [field]: alike }, replica)
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field])
      t.regex(answer.json.errors[0].message, /looks like one that is taken/)
    }
    for (const different of [`Seringueirа ${field} 2`, `Seríngueira ${field}`, `Seringue1ra ${field}`])
      t.is((await signUp({ [field]: different })).status, 200, different)
  })

  test(`${field}: when the name in mixed scripts is taken first, the plain one is refused as its look-alike`, async t => {
    t.is((await signUp({ [field]: `Jаtobá ${field}` })).status, 200)
    t.deepEqual(wrongFields(await signUp({ [field]: `Jatobá ${field}` })), [field])
  })
}

test('a nickname suggested instead of a look-alike is free', async t => {
  await signUp({ nickname: 'Castanheira' })
  const answer = await signUp({ nickname: 'Cаstanheira' })
  const [, free] = /, (.+) is free/.exec(answer.json.errors[0].message)!
  t.is((await signUp({ nickname: free })).status, 200)
})

test('a look-alike of the administrator’s name is refused', async t => {
  for (const username of [
    'аdmin',
    'аdrnin',
    'ADMІN',
    'admi\u0307n',
    'ADMI\u0307N',
    'admİn',
    'admı\u0307n',
    'admi\u0307\u0307n',
  ])
    t.deepEqual(wrongFields(await signUp({ username })), ['username'])
})

test('a name that looks like a telephone number is refused when the number is taken, in any spelling', async t => {
  t.is((await signUp({ username: '(68)99876-5432' })).status, 200)
  for (const username of ['68 99876 54З2', '+55 (68) 99876-5Ч32'.replace('Ч', '4').replace('3', 'З'), 'б8998765432'])
    t.deepEqual(wrongFields(await signUp({ username })), ['username'], username)
})

test('a name may be in any single script, even if a look-alike in another script is taken', async t => {
  for (const username of [
    'Анна Сергеевна',
    'Anna Sergueievna',
    '山田 たろう',
    '山田 タロウ',
    '김민수',
    'محمد',
    'Ольга',
  ])
    t.is((await signUp({ username, nickname: username })).status, 200, username)
})

for (const field of ['username', 'nickname']) {
  test(`${field}: one that differs from a taken one in marks that don’t show is refused, others with marks are not`, async t => {
    const names = [`Jiji Souza ${field}`, `João Avelar ${field}`, `Nguyễn Hạnh ${field}`, `Jūratė Žukaitė ${field}`]
    for (const name of names) t.is((await signUp({ [field]: name })).status, 200)
    for (const alike of [
      `Ji\u0307ji Souza ${field}`,
      `j\u0307iji souza ${field}`,
      `Jİji Souza ${field}`,
      `Jıji\u0307 Souza ${field}`,
      `Joã\u0303o Avelar ${field}`,
      `Nguyễ\u0303n Hạnh ${field}`,
      `Jūratė\u0307 Žukaitė ${field}`,
    ]) {
      const answer = await signUp({ [field]: alike }, replica)
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field])
    }
    // Invisible marks are refused as such.
    for (const invisible of [`Ji\u034fji Souza ${field}`, `Ji\ufe00ji Souza ${field}`])
      t.deepEqual(wrongFields(await signUp({ [field]: invisible })), [field])
    for (const different of [
      `Jíji Souza ${field}`,
      `Joao Avelar ${field}`,
      `Nguyen Hanh ${field}`,
      `Nguyên Hạnh ${field}`,
      `Jurate Zukaite ${field}`,
      `Ji\u0307\u0301ji Souza ${field}`,
    ])
      t.is((await signUp({ [field]: different })).status, 200, different)
  })
}

test('a name with a control character finds nobody, at every endpoint', async t => {
  const name = `controle ${randomUUID()}`
  const { text: token } = await signUp({ username: name, nickname: name })
  const post = (path: string, body: object, bearer?: string) =>
    service.request('POST', path, { body, ...(bearer !== undefined && { token: bearer }) })
  const adminToken = await service.adminToken()
  t.is((await post('/users/existsByUsername', { username: name })).text, 'true')
  t.is((await post('/users/login', { username: name, password })).status, 200)
  for (const character of ['\0', '\t', '\n', '\x1b', '\x85', '\u2028'])
    for (const username of [`${character}${name}`, `${name}${character}`, name.replace('o', `o${character}`)]) {
      const what = JSON.stringify(username)
      t.is((await post('/users/existsByUsername', { username })).text, 'false', what)
      t.is((await post('/users/existsByNickname', { nickname: username })).text, 'false', what)
      refused(t, await post('/users/login', { username, password }), 404, 'INVALID_CREDENTIALS')
      const path = `/users/${encodeURIComponent(username)}`
      refused(t, await service.request('GET', path, { token: adminToken }), 404, 'USER_NOT_FOUND')
      t.not((await service.request('GET', path, { token })).status, 200)
      refused(t, await post('/users/activate', { username, activationkey: randomUUID() }, adminToken), 422)
      refused(t, await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'x' }), 422, 'INVALID_KEY')
      const newPassword = { username, newPassword: `${password} 2` }
      refused(t, await post('/forgotpasswords/passwordupdatebyusername', newPassword, adminToken), 404)
      const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'x' }))
      const query = { username }
      const byAnswers = service.request('POST', '/forgotpasswords/loginbyusernameandanswers', { query, body: answers })
      refused(t, await byAnswers, 404, 'USER_NOT_FOUND')
    }
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
  const deps = {
    ...models,
    registrar: createRegistrar(models),
    admission: createAdmission({ ...models, factor: 1, now: Date.now }),
    turns: { begin: async () => ({ [Symbol.dispose]() {} }) },
    pool: { check() {} },
    passwords: { hash: () => hash() },
    policy: createPasswordPolicy({ minLength: 8 }),
    tokens: { issue: async () => 'token' },
    timeZone: 'America/Sao_Paulo',
    now: Date.now,
  } as unknown as SignUpDeps
  const run = register(deps) as (request: object, context: object) => Promise<object>
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
