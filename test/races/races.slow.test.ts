import test from 'ava'
import { refused, wrongFields } from '../_helpers/problem.js'
import { type Answer, serviceForFile, signUpForm } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
const many = 100

const atOnce = (work: (index: number) => Promise<Answer>, times = many) =>
  Promise.all(Array.from({ length: times }, (_, index) => work(index)))

test.serial(
  'of 100 simultaneous sign-ups with one username, one succeeds, the others are answered with 422, and there is one row',
  async t => {
    // In different spellings of one telephone number.
    const spellings = ['(63)98765-4321', '63987654321', '(63) 98765-4321', '+55 63 98765-4321']
    const answers = await atOnce(index =>
      service.request('POST', '/users/signup', { body: signUpForm({ username: spellings[index % 4] }) }),
    )
    t.is(answers.filter(({ status }) => status === 200).length, 1)
    for (const answer of answers.filter(({ status }) => status !== 200)) {
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), ['username'])
    }
    t.is((await service.registry.administeredUsers.list({ text: '+5563987654321', limit: many })).length, 1)
  },
)

test.serial(
  'of 100 simultaneous sign-ups with one nickname, one succeeds, and the others get a suggestion',
  async t => {
    const nickname = 'Capim Dourado'
    const answers = await atOnce(() => service.request('POST', '/users/signup', { body: signUpForm({ nickname }) }))
    t.is(answers.filter(({ status }) => status === 200).length, 1)
    for (const answer of answers.filter(({ status }) => status !== 200)) {
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.regex(answer.json.errors[0].message, /Capim Dourado\d+ is free/)
    }
    t.is((await service.registry.administeredUsers.list({ text: 'capim dourado', limit: many })).length, 1)
  },
)

test.serial('of 100 simultaneous activations of one user, one succeeds', async t => {
  const { activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, activationkey }
  const answers = await atOnce(() => service.request('POST', '/users/activate', { token, query }))
  t.is(answers.filter(({ status }) => status === 200).length, 1)
  for (const answer of answers.filter(({ status }) => status !== 200)) {
    // Ten may be in progress at once.
    if (answer.status === 429) t.is(answer.headers.get('retry-after'), '1')
    else refused(t, answer, 422, 'ACTIVATION_REFUSED')
  }
  const [rows] = await service.registry.database.sequelize.query(
    'SELECT count(*)::int AS n FROM provider_keys WHERE user_id = $1',
    { bind: [idOf(token)] },
  )
  t.deepEqual(rows, [{ n: 1 }])
})

test.serial('100 simultaneous activations of clients with one provider key all succeed', async t => {
  const { providerKey } = await service.institution(await service.organization())
  const users = await Promise.all(Array.from({ length: many }, () => service.signUp('ROLE_CLIENT')))
  const answers = await atOnce(index => {
    const { username, token } = users[index]!
    return service.request('POST', '/users/activate', { token, query: { username, activationkey: providerKey } })
  })
  t.true(answers.every(({ status }) => status === 200))
})

test.serial('100 simultaneous saves of one answer all succeed, and there is one row', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const [{ id }] = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  const answers = await atOnce(index =>
    service.request('POST', path, { token, body: { forgotpasswordquestionsid: id, answer: `resposta ${index}` } }),
  )
  t.deepEqual([...new Set(answers.map(({ status }) => status))], [200])
  t.is((await service.registry.questions.answers(idOf(token))).length, 1)
})

test.serial('of 100 simultaneous password updates with one token, one succeeds', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const passwords = Array.from({ length: many }, (_, index) => `jararaca-verde-${index}`)
  const answers = await atOnce(index =>
    service.request('POST', '/forgotpasswords/passwordupdatebyusername', {
      token,
      query: { newPassword: passwords[index]! },
    }),
  )
  const winners = passwords.filter((_, index) => answers[index]!.status === 200)
  t.is(winners.length, 1)
  for (const answer of answers) if (answer.status !== 200) t.true([500, 503].includes(answer.status), answer.text)
  t.truthy(await service.login(username, winners[0]))
})
