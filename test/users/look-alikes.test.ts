/** Look-alikes of taken names are refused on every replica, and no other names are. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused, wrongFields } from '../_helpers/problem.js'
import { replicasForFile } from '../_helpers/replicas.js'
import { password } from '../_helpers/service.js'

const replicas = replicasForFile(2)
const [one, other] = [0, 1].map(index => () => replicas[index]!) as [
  () => (typeof replicas)[0],
  () => (typeof replicas)[0],
]

const form = (fields: Record<string, unknown>) => ({
  username: `pessoa ${randomUUID()}`,
  nickname: `apelido ${randomUUID()}`,
  password,
  state: 'AC',
  city: 'Xapuri',
  termsofusage: true,
  roles: ['ROLE_CLIENT'],
  ...fields,
})
const signUp = (fields: Record<string, unknown>, replica = one()) =>
  replica.request('POST', '/users/signup', { body: form(fields) })

for (const field of ['username', 'nickname']) {
  test(`${field}: a look-alike of a taken one is answered with 422`, async t => {
    t.is((await signUp({ [field]: `Seringueira ${field}` })).status, 200)
    for (const alike of [`Sеringueira ${field}`, `SERINGUEIRА ${field}`, `ѕeringueira ${field}`]) {
      const answer = await signUp({ [field]: alike }, other())
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
      const answer = await signUp({ [field]: alike }, other())
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
    one().request('POST', path, { body, ...(bearer !== undefined && { token: bearer }) })
  const adminToken = await one().adminToken()
  t.is((await post('/users/existsByUsername', { username: name })).text, 'true')
  t.is((await post('/users/login', { username: name, password })).status, 200)
  for (const character of ['\0', '\t', '\n', '\x1b', '\x85', '\u2028'])
    for (const username of [`${character}${name}`, `${name}${character}`, name.replace('o', `o${character}`)]) {
      const what = JSON.stringify(username)
      t.is((await post('/users/existsByUsername', { username })).text, 'false', what)
      t.is((await post('/users/existsByNickname', { nickname: username })).text, 'false', what)
      refused(t, await post('/users/login', { username, password }), 404, 'INVALID_CREDENTIALS')
      const path = `/users/${encodeURIComponent(username)}`
      refused(t, await one().request('GET', path, { token: adminToken }), 404, 'USER_NOT_FOUND')
      t.not((await one().request('GET', path, { token })).status, 200)
      refused(t, await post('/users/activate', { username, activationkey: randomUUID() }, adminToken), 422)
      refused(t, await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'x' }), 422, 'INVALID_KEY')
      const newPassword = { username, newPassword: `${password} 2` }
      refused(t, await post('/forgotpasswords/passwordupdatebyusername', newPassword, adminToken), 404)
      const answers = [1, 2].map(id => ({ forgotpasswordquestionsid: id, answer: 'x' }))
      const query = { username }
      const byAnswers = one().request('POST', '/forgotpasswords/loginbyusernameandanswers', { query, body: answers })
      refused(t, await byAnswers, 404, 'USER_NOT_FOUND')
    }
})

test('look-ups by a look-alike find no user', async t => {
  t.is((await signUp({ username: 'copaíba' })).status, 200)
  const exists = (username: string) => one().request('POST', '/users/existsByUsername', { query: { username } })
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
      names.map((each, index) => signUp({ [field]: each }, index % 2 === 0 ? one() : other())),
    )
    t.is(answers.filter(({ status }) => status === 200).length, 1)
    for (const answer of answers.filter(({ status }) => status !== 200)) t.deepEqual(wrongFields(answer), [field])
  }
})

test('at most 100 names in one script may look the same', async t => {
  const { sequelize } = one().registry.database
  await sequelize.query(
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
       password_hash, state, city, terms_of_usage, role)
     SELECT n, n, 'lllllllll', n, n, n, '', 'AC', 'Xapuri', true, 'ROLE_CLIENT'
     FROM (SELECT translate(n::bit(9)::text, '01', 'l1') AS n FROM generate_series(0, 98) AS n) AS named`,
  )
  t.is((await signUp({ username: '1l1111111' })).status, 200)
  t.deepEqual(wrongFields(await signUp({ username: '11l111111' })), ['username'])
})
