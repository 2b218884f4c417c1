/** A hundred calls at once that only one of them may win, or that all may. */
import ava, { type ExecutionContext } from 'ava'
import { statuses } from '../_helpers/crowd.js'
import { ask } from '../_helpers/database.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { saveAnswer, updatePassword } from '../_helpers/recovery.js'
import { type Answer, serviceForFile, signUpForm } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const test = ava.serial

const service = serviceForFile()
const many = 100

const atOnce = (work: (index: number) => Promise<Answer>) =>
  Promise.all(Array.from({ length: many }, (_, index) => work(index)))

/** Asserts that one succeeded, and returns the others. */
function oneOf(t: ExecutionContext, answers: readonly Answer[]): Answer[] {
  const others = answers.filter(({ status }) => status !== 200)
  t.is(others.length, many - 1)
  return others
}

test('of 100 simultaneous sign-ups with one username or nickname, one succeeds, and the others are refused for it', async t => {
  const spellings = ['(63)98765-4321', '63987654321', '(63) 98765-4321', '+55 63 98765-4321']
  for (const [field, names, text] of [
    ['username', spellings, '+5563987654321'],
    ['nickname', ['Capim Dourado'], 'capim dourado'],
  ] as const) {
    const signUp = (index: number) =>
      service.request('POST', '/users/signup', { body: signUpForm({ [field]: names[index % names.length] }) })
    for (const answer of oneOf(t, await atOnce(signUp))) {
      // Each may be a repeated sign-up, which compares the password: an attempt.
      if (answer.status === 429) continue
      refused(t, answer, 422, 'INVALID_SIGN_UP')
      t.deepEqual(wrongFields(answer), [field])
      if (field === 'nickname') t.regex(answer.json.errors[0].message, /Capim Dourado\d+ is free/)
    }
    t.is((await service.registry.administeredUsers.list({ text, limit: many })).length, 1)
  }
})

test('of 100 simultaneous activations of one user, one succeeds', async t => {
  const { activationkey } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, activationkey }
  const answers = await atOnce(() => service.request('POST', '/users/activate', { token, query }))
  for (const answer of oneOf(t, answers)) {
    // Ten may be in progress at once.
    if (answer.status === 429) t.is(answer.headers.get('retry-after'), '1')
    else refused(t, answer, 422, 'ACTIVATION_REFUSED')
  }
  const keys = await ask(service.env.DATABASE_URL!, `SELECT FROM provider_keys WHERE user_id = ${idOf(token)}`)
  t.is(keys.length, 1)
})

test('100 simultaneous saves of one answer all succeed, and there is one row', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  t.deepEqual(statuses(await atOnce(index => saveAnswer(service, token, 1, `resposta ${index}`))), { 200: many })
  t.is((await service.registry.answers.of(idOf(token))).length, 1)
})

test('of 100 simultaneous password updates with one token, one succeeds', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const answers = await atOnce(index => updatePassword(service, token, `jararaca-verde-${index}`))
  for (const { status, text } of oneOf(t, answers)) t.true([500, 503].includes(status), text)
  t.truthy(await service.login(username, `jararaca-verde-${answers.findIndex(({ status }) => status === 200)}`))
})
