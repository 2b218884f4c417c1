/** Answers to security questions: saving them, and signing in with two of them. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { usernameKey } from '../../server/rules/names.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'

const service = serviceForFile()
let questions: number[]
test.before(async () => {
  const { json } = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  questions = json.map(({ id }: { id: number }) => id)
})

const answer = (index: number, text: unknown) => ({ forgotpasswordquestionsid: questions[index], answer: text })
const save = (token: string | undefined, body?: unknown) =>
  service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { ...(token && { token }), body })
const login = (username: string | undefined, body?: unknown) =>
  service.request('POST', '/forgotpasswords/loginbyusernameandanswers', {
    ...(username && { query: { username } }),
    body,
  })

/** A user who answered the first three questions. */
async function answered(): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT')
  const given = ['São João del-Rei', 'Água', 'Três Corações']
  for (const [index, text] of given.entries()) {
    const { status, text: problem } = await save(user.token, answer(index, text))
    if (status !== 200) throw new Error(problem)
  }
  return user
}

test('two correct answers of two sign in, and the token names the method', async t => {
  const { username, token } = await answered()
  const { status, text } = await login(username, [answer(0, 'São João del-Rei'), answer(1, 'Água')])
  t.is(status, 200, text)
  const { amr, sub, exp, iat } = claimsOf(text)
  t.deepEqual({ amr, sub, seconds: exp - iat }, { amr: ['kba'], sub: String(idOf(token)), seconds: 3600 })
  t.is((await service.request('GET', '/users/me', { token: text })).status, 200)
})

const [rio, agua, tres] = ['São João del-Rei', 'Água', 'Três Corações']
const [zero, one] = [() => answer(0, rio), () => answer(1, agua)]

/** What an account that answered the first three questions is answered with. */
const lists: Record<string, readonly [body: () => unknown, status: number, reason?: string]> = {
  'two right of three': [() => [answer(0, 'wrong'), one(), answer(2, tres)], 200],
  'two right in another case, without accents, with more space': [
    () => [answer(0, '  SAO   JOAO DEL-REI '), answer(2, 'tres\u00a0corac\u0327o\u0303es')],
    200,
  ],
  'ten, of which two are right': [() => Array.from({ length: 10 }, (_, index) => (index % 2 ? one() : zero())), 200],
  'a right one twice, and another': [() => [zero(), zero(), one()], 200],
  'a right one twice': [() => [zero(), answer(0, 'são joão del-rei')], 422, 'INVALID_ANSWERS'],
  'a right one ten times': [() => Array(10).fill(zero()), 422, 'INVALID_ANSWERS'],
  'a second chance at the same question': [() => [zero(), answer(1, 'x'), one()], 422, 'INVALID_ANSWERS'],
  'one right': [() => [zero()], 422, 'INVALID_ANSWERS'],
  'one right of two': [() => [zero(), answer(1, 'wrong')], 422, 'INVALID_ANSWERS'],
  'one right and an empty one': [() => [zero(), answer(1, '')], 422, 'INVALID_ANSWERS'],
  'one right and none': [() => [zero(), { forgotpasswordquestionsid: questions[1] }], 422, 'INVALID_ANSWERS'],
  'none right': [() => [answer(0, 'x'), answer(1, 'y'), answer(2, 'z')], 422, 'INVALID_ANSWERS'],
  'an empty list': [() => [], 422, 'INVALID_ANSWERS'],
  'no body': [() => undefined, 422, 'INVALID_ANSWERS'],
  'a question never answered': [() => [zero(), one(), answer(3, 'x')], 404, 'ANSWER_NOT_FOUND'],
  'an unknown question': [
    () => [zero(), one(), { forgotpasswordquestionsid: 999_999, answer: 'x' }],
    404,
    'ANSWER_NOT_FOUND',
  ],
  'no question': [() => [zero(), one(), { answer: 'x' }], 404, 'ANSWER_NOT_FOUND'],
  eleven: [() => Array(11).fill(zero()), 400, 'TOO_MANY_ANSWERS'],
  ...Object.fromEntries(
    ['{}', '{"answer":"a"}', '"a"', '[7]', '[[]]', '[{"answer":7}]', '[{"forgotpasswordquestionsid":"a"}]', '['].map(
      body => [body, [() => body, 400, 'MALFORMED_REQUEST']],
    ),
  ),
}

test('fewer than two correct answers to two different questions don’t sign in, and lists are refused as documented', async t => {
  const { username } = await answered()
  for (const [what, [body, status, reason]] of Object.entries(lists)) {
    await service.registry.attempts.clear([service.registry.counterKeys.account('answers', usernameKey(username))])
    const given = await login(username, body())
    if (reason) refused(t, given, status, reason)
    else t.is(given.status, status, what)
  }
  refused(t, await login(randomUUID(), [zero(), one()]), 404, 'USER_NOT_FOUND')
})

test('a refusal gives no hint of how many answers were correct', async t => {
  const { username } = await answered()
  const tell = async (...answers: string[]) => {
    const { status, json, headers } = await login(
      username,
      answers.map((text, index) => answer(index, text)),
    )
    return { status, ...json, requestId: '', type: headers.get('content-type') }
  }
  t.deepEqual(await tell(rio, 'verde'), await tell('azul', 'verde'))
})

test('ids in the body are ignored, and numbers may be strings', async t => {
  const { username } = await answered()
  const body = [
    { id: 77, usersid: 1, forgotpasswordquestionsid: String(questions[0]), answer: 'São João del-Rei' },
    { id: '78', usersid: '1', ...answer(1, 'Água'), more: true },
  ]
  t.is((await login(username, body)).status, 200)
})

const path = '/forgotpasswords/loginbyusernameandanswers'
const formType = { 'content-type': 'application/x-www-form-urlencoded' }
const formOf = (fields: Record<string, string>) => String(new URLSearchParams(fields))

test('the answers may stand beside the username, in an object or a form', async t => {
  const { username } = await answered()
  const answers = [answer(0, 'São João del-Rei'), answer(1, 'Água')]
  const list = JSON.stringify(answers)
  const query = { username }
  for (const options of [
    { body: { username, answers } },
    { body: { answers, username, more: [{}] } },
    { body: { username, answers }, query },
    { body: { answers }, query },
    { body: { username: null, answers }, query },
    { body: formOf({ username, answers: list }), headers: formType },
    { body: formOf({ answers: list, more: 'x', username }), headers: formType },
    { body: formOf({ answers: list }), headers: formType, query },
    { body: answers, query },
  ]) {
    for (const base of ['', '/1.0.0', '/1.0.2']) {
      const { status, text } = await service.request('POST', `${base}${path}`, options)
      t.is(status, 200, `${JSON.stringify(options)} ${text}`)
    }
  }
  for (const options of [
    { body: { username, answers: [] } },
    { body: { username, answers: null } },
    { body: formOf({ username, answers: '' }), headers: formType },
    { body: formOf({ username, answers: '[]' }), headers: formType },
  ])
    refused(t, await service.request('POST', path, options), 422, 'INVALID_ANSWERS')
  for (const options of [{ body: { answers } }, { body: formOf({ answers: list }), headers: formType }])
    refused(t, await service.request('POST', path, options), 400, 'MISSING_PARAMETER')
})

test('answers of the wrong type are named, and two different usernames refused', async t => {
  const { username } = await answered()
  const list = JSON.stringify([answer(0, 'São João del-Rei'), answer(1, 'Água')])
  const wrong = [{ forgotpasswordquestionsid: 'one', answer: 'x' }, answer(1, 7), null]
  const named = ['answers[0].forgotpasswordquestionsid', 'answers[1].answer', 'answers[2]']
  for (const [options, fields] of [
    [{ body: wrong, query: { username } }, named],
    [{ body: { username, answers: wrong } }, named],
    [{ body: formOf({ username, answers: JSON.stringify(wrong) }), headers: formType }, named],
    [{ body: { username, answers: 'x' } }, ['answers']],
    [{ body: { username, answers: answer(0, 'x') } }, ['answers']],
    [{ body: '"x"', query: { username } }, ['answers']],
    [{ body: { username } }, []],
    [{ body: formOf({ username }), headers: formType }, []],
    [{ body: { username: 5, answers: [] } }, []],
    [{ body: { username: `${username}x`, answers: [] }, query: { username } }, []],
    [{ body: formOf({ username, answers: '[{' }), headers: formType }, []],
    [{ body: formOf({ username, answers: '\ud800' }), headers: formType }, []],
    [{ body: `${formOf({ username, answers: list })}&answers=[]`, headers: formType }, []],
  ] as const) {
    const answer = await service.request('POST', path, options)
    refused(t, answer, 400, 'MALFORMED_REQUEST')
    t.deepEqual(wrongFields(answer), [...fields], JSON.stringify(options))
  }
})

test('an answer to save of the wrong type is named, after the checks of the caller', async t => {
  const { token } = await answered()
  const wrong = { forgotpasswordquestionsid: 'one', answer: ['x'], usersid: 1.5 }
  refused(t, await save(undefined, wrong), 403)
  const answer = await save(token, wrong)
  refused(t, answer, 400, 'MALFORMED_REQUEST')
  t.deepEqual(wrongFields(answer), ['answer', 'forgotpasswordquestionsid', 'usersid'])
})

test('saving again replaces the answer', async t => {
  const { username, token } = await answered()
  const saved = await save(token, answer(0, 'Ouro Preto'))
  t.is(`${saved.status}${saved.text}`, '200')
  refused(t, await login(username, [answer(0, 'São João del-Rei'), answer(1, 'Água')]), 422, 'INVALID_ANSWERS')
  t.is((await login(username, [answer(0, 'ouro preto'), answer(1, 'Água')])).status, 200)
  t.is((await service.registry.questions.answers(idOf(token))).length, 3)
})

test('an answer may have 255 characters, and each is significant', async t => {
  const { username, token } = await answered()
  const long = `${'ã'.repeat(254)}b`
  t.is((await save(token, answer(0, long))).status, 200)
  t.is((await login(username, [answer(0, long), answer(1, 'Água')])).status, 200)
  const other = `${'ã'.repeat(254)}c`
  refused(t, await login(username, [answer(0, other), answer(1, 'Água')]), 422, 'INVALID_ANSWERS')
  refused(t, await save(token, answer(0, `${long}b`)), 400, 'MALFORMED_REQUEST')
})

test('an empty answer, no question and no body are answered with 400', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const body of [undefined, {}, answer(0, ''), answer(0, ' \u00a0'), answer(0, null), { answer: 'azul' }]) {
    refused(t, await save(token, body), 400, 'MISSING_PARAMETER')
  }
  for (const body of ['[]', '"x"', '{', '{"usersid":"x"}', '{"usersid":1.5}', '{"answer":{}}']) {
    refused(t, await save(token, body), 400, 'MALFORMED_REQUEST')
  }
})

test('the password may stand beside the fields of an answer: a wrong one saves nothing, null is none', async t => {
  const { username, token } = await answered()
  for (const wrong of ['not this one', '', 'x'.repeat(257)]) {
    refused(t, await save(token, { ...answer(0, 'Ouro Preto'), password: wrong }), 404, 'INVALID_CREDENTIALS')
  }
  for (const malformed of [7, {}, ['a']]) {
    refused(t, await save(token, { ...answer(0, 'Ouro Preto'), password: malformed }), 400, 'MALFORMED_REQUEST')
  }
  refused(t, await save(token, { password }), 400, 'MISSING_PARAMETER')
  t.is((await login(username, [answer(0, 'São João del-Rei'), answer(1, 'Água')])).status, 200)
  t.is((await save(token, { ...answer(0, 'Ouro Preto'), password })).status, 200)
  t.is((await save(token, { ...answer(1, 'Mariana'), password: null })).status, 200)
  t.is((await login(username, [answer(0, 'Ouro Preto'), answer(1, 'Mariana')])).status, 200)
})

test('an unknown or retired question is answered with 404, and old answers to a retired one still count', async t => {
  const { username, token } = await answered()
  refused(t, await save(token, { forgotpasswordquestionsid: 999_999, answer: 'a' }), 404, 'QUESTION_NOT_FOUND')
  const text = `Pergunta ${randomUUID()}`
  const { add, setActive } = service.registry.questions
  const { id } = await add({ question: text, questionKey: text.toLowerCase() })
  const own = { forgotpasswordquestionsid: id, answer: 'ipê' }
  t.is((await save(token, own)).status, 200)
  await setActive(id, false)
  refused(t, await save(token, own), 404, 'QUESTION_NOT_FOUND')
  t.is((await login(username, [own, answer(1, 'Água')])).status, 200)
})

test('an unknown user is answered with 404, another existing one with 403, for an administrator with 200', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const other = await service.signUp('ROLE_CLIENT')
  refused(t, await save(token, { ...answer(0, 'a'), usersid: 2_000_000_000 }), 404, 'USER_NOT_FOUND')
  refused(t, await save(token, { ...answer(0, 'a'), usersid: idOf(other.token) }), 403, 'ACCESS_DENIED')
  t.is((await save(token, { ...answer(0, 'a'), usersid: idOf(token) })).status, 200)
  t.is((await save(await service.adminToken(), { ...answer(0, 'a'), usersid: idOf(other.token) })).status, 200)
  t.is((await service.registry.questions.answers(idOf(other.token))).length, 1)
})
