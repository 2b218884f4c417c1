/** Regaining access: by answers to security questions, by a mailed key; and the password update. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { usernameKey } from '../../server/rules/names.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, type SignedUp, serviceForFile, startTestService, type TestService } from '../_helpers/service.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ SMTP_URL: mailbox.url }))
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
  eleven: [() => Array(11).fill(zero()), 400, 'MALFORMED_REQUEST'],
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
  t.is((await service.registry.answers.of(idOf(token))).length, 3)
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

/** Answers as they were saved, each with what a telephone may make of it, and with what stays another answer. */
const typed: readonly (readonly [saved: string, same: readonly string[], others: readonly string[]])[] = [
  ["Olho d'Água", [...'’‘´`ʼ＇'].map(mark => `olho d${mark}agua`), ['Olho dÁgua', 'Olho d Água', 'Olho d"Água']],
  ['Olho d’Água', ["Olho d'Água", 'Olho d´Água.'], ['Olho dÁgua']],
  ['Maria-Helena', [...'–—‑−‐－'].map(dash => `Maria${dash}Helena`), ['MariaHelena', 'Maria Helena', 'Maria_Helena']],
  [
    'S. Paulo',
    ['S. Paulo.', 's. paulo...', 'S. Paulo .', 'S. Paulo…'],
    ['S Paulo', '.S. Paulo', 'S. Paulo!', 'S. Paulo,'],
  ],
  ['Rex.', ['Rex', 'rex. '], ['Re.x', 'Rex?']],
]

test('apostrophes, hyphens and full stops at the end of answers are equal however they are typed, and nothing else is', async t => {
  for (const [saved, same, others] of typed) {
    const { username, token } = await answered()
    t.is((await save(token, answer(0, saved))).status, 200)
    const enter = (text: string) => login(username, [answer(0, text), answer(1, 'Água')])
    for (const text of [saved, ...same]) t.is((await enter(text)).status, 200, text)
    for (const text of others) refused(t, await enter(text), 422, 'INVALID_ANSWERS')
  }
})

test('an empty answer, no question and no body are answered with 400', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  for (const body of [
    undefined,
    {},
    answer(0, ''),
    answer(0, ' \u00a0'),
    answer(0, ' ... '),
    answer(0, null),
    { answer: 'azul' },
  ]) {
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
  t.is((await service.registry.answers.of(idOf(other.token))).length, 1)
})

// Mailed keys: request, e-mail, sign-in, and refusals.
let last = 0
/** A unique client address. */
const newAddress = () => `203.0.113.${++last}`
const newEmail = () => `ana.${randomUUID()}@example.org`

const requestKey = (query: Record<string, string>, headers: Record<string, string> = {}) =>
  service.request('POST', '/forgotpasswords/sendkeybyemail', {
    query,
    headers: { 'x-forwarded-for': newAddress(), ...headers },
  })
const enter = (username: string, key: string, address = newAddress()) =>
  service.request('POST', '/forgotpasswords/loginbyusernameandkey', {
    query: { username, key },
    headers: { 'x-forwarded-for': address },
  })

/** A user and the key mailed to it. */
async function mailed(headers: Record<string, string> = {}) {
  const email = newEmail()
  const user = await service.signUp('ROLE_CLIENT', { email })
  const { status, text } = await requestKey({ username: user.username, email }, headers)
  if (`${status}${text}` !== '200') throw new Error(text)
  const entry = await mailbox.nextEmail(email)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec(entry.text ?? '')?.[1] ?? ''
  return { ...user, email, entry, key }
}

/** What a user learns of its ways back. */
async function waysBack(on: TestService, token: string) {
  const { json } = await on.request('POST', '/auth.v1.Users/GetMe', { token, body: { withWaysBack: true } })
  return json.waysBack
}
const isProved = async (on: TestService, token: string) => (await waysBack(on, token)).emailProved === true

test('the own record says how many answers count, and since when there are any, if it is asked for ways back', async t => {
  const { token } = await answered()
  const { answersSince, ...rest } = await waysBack(service, token)
  t.deepEqual(rest, { answers: 3 })
  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.save-answer', limit: 9 })
  t.is(Date.parse(answersSince), Math.min(...events.map(({ at }) => at.getTime())))
  // The text of a sign-up doesn't count yet.
  const text = { securityquestion: 'Nome do meu barco?', securityanswer: 'Saveiro' }
  const { token: other } = await service.signUp('ROLE_CLIENT', text)
  const [signUp] = await service.registry.audit.list({ subjectId: idOf(other), action: 'user.sign-up', limit: 9 })
  const { answersSince: since, ...none } = await waysBack(service, other)
  t.deepEqual(none, {})
  t.true(Math.abs(Date.parse(since) - signUp!.at.getTime()) < 5_000, since)
  t.deepEqual(await waysBack(service, (await service.signUp('ROLE_CLIENT')).token), {})
})

test('the mailed key signs in once, and proves the address; the token names the method', async t => {
  const { username, token, key } = await mailed()
  t.is(key.length, 8)
  t.false(await isProved(service, token))
  const { status, text } = await enter(username, key)
  t.is(status, 200, text)
  const { amr, sub, exp, iat } = claimsOf(text)
  t.deepEqual({ amr, sub, seconds: exp - iat }, { amr: ['otp'], sub: String(idOf(token)), seconds: 3600 })
  t.true(await isProved(service, text))
  refused(t, await enter(username, key), 422, 'INVALID_KEY')
  const query = { newPassword: 'tatu-canastra 12' }
  t.is((await update(text, query)).status, 200)
  t.truthy(await service.login(username, query.newPassword))
})

/** A key as people copy it. */
const copied: Record<string, (key: string) => string> = {
  'in lower case, with space around it': key => ` ${key.toLowerCase()} `,
  'with a space': key => `${key.slice(0, 4)} ${key.slice(4)}`,
  'with hyphens and dashes': key => `${key.slice(0, 2)}-${key.slice(2, 4)}–${key.slice(4, 6)}‑${key.slice(6)}`,
  'with a full stop': key => `${key}.`,
  'with a line break and a tab': key => `${key.slice(0, 4)}\r\n\t${key.slice(4)}`,
  'with invisible characters': key => `\ufeff${key.slice(0, 4)}\u200b\u00ad${key.slice(4)}\u2060\u200e`,
  'with spaces that don’t break': key => `\u00a0${key.slice(0, 4)}\u202f${key.slice(4)}\u2009`,
  'in full width': key => key.replace(/./g, each => String.fromCharCode(each.charCodeAt(0) + 0xfee0)),
  'in quotes and bold': key => `*“${key}”*`,
}

test('only letters and digits of a mailed key count, however it is copied', async t => {
  for (const [how, copy] of Object.entries(copied)) {
    const { username, key } = await mailed()
    const name = username.replace(/\D/g, '')
    const wrong = `${key.slice(1)}${key[0] === 'A' ? 'B' : 'A'}`
    refused(t, await enter(name, copy(wrong)), 422, 'INVALID_KEY')
    const { status, text } = await enter(name, copy(key))
    t.is(status, 200, `${how} ${text}`)
  }
})

test('a wrong key, no key and an unknown user get the same answer', async t => {
  const { username } = await mailed()
  const { username: keyless } = await service.signUp('ROLE_CLIENT')
  const details = new Set<string>()
  for (const [name, key] of [
    [username, 'ABCD2345'],
    [username, ''],
    [username, 'A'.repeat(300)],
    [keyless, 'ABCD2345'],
    [randomUUID(), 'ABCD2345'],
    ['', 'ABCD2345'],
  ] as const) {
    const answer = await enter(name, key)
    refused(t, answer, 422, 'INVALID_KEY')
    details.add(answer.json.detail)
  }
  t.is(details.size, 1)
})

test('after 5 wrong attempts from an address the correct key fails from there, but works from elsewhere', async t => {
  const { username, key } = await mailed()
  const address = newAddress()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', address), 422, 'INVALID_KEY')
  refused(t, await enter(username, key, address), 422, 'INVALID_KEY')
  t.is((await enter(username, key)).status, 200)
  const lucky = await mailed()
  for (let i = 0; i < 4; i++) refused(t, await enter(lucky.username, 'ABCD2345', address), 422, 'INVALID_KEY')
  t.is((await enter(lucky.username, lucky.key, address)).status, 200)
})

test('all addresses of an IPv6 /64 share the 5 attempts', async t => {
  const { username, key } = await mailed()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', `2001:db8::${i}`), 422, 'INVALID_KEY')
  refused(t, await enter(username, key, '2001:db8::abcd'), 422, 'INVALID_KEY')
  t.is((await enter(username, key, '2001:db8:0:1::1')).status, 200)
})

test('a new key has 5 new attempts', async t => {
  const { username, token } = await mailed()
  const address = newAddress()
  for (let i = 0; i < 5; i++) refused(t, await enter(username, 'ABCD2345', address), 422, 'INVALID_KEY')
  await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'WXYZ6789')
  t.is((await enter(username, 'WXYZ6789', address)).status, 200)
})

test('a proved address without a username gets the usernames that it belongs to, and no key', async t => {
  const email = newEmail()
  const names = ['ana.souza', 'ana_souza@escola.example', 'www.ana.souza'].map(
    name => `${randomUUID().slice(0, 4)}${name}`,
  )
  const users = []
  for (const username of [...names, 'suspensa', 'outra', 'sem prova'])
    users.push(await service.signUp('ROLE_CLIENT', { username, email: username === 'outra' ? newEmail() : email }))
  const { database } = service.registry
  const ids = users.map(({ token }) => idOf(token))
  const without = ids.at(-1)!
  await database.sequelize.query(`UPDATE users SET email_proved = true WHERE id IN (${ids}) AND id <> ${without}`)
  await database.sequelize.query(`UPDATE users SET suspended = true WHERE id = ${ids[3]}`)
  const { status, text } = await requestKey({ email: email.toUpperCase(), userName: 'ana.souza' })
  t.is(`${status}${text}`, '200')
  const entry = await mailbox.nextEmail(email)
  const lines = (entry.text ?? '').split('\n')
  t.deepEqual(
    lines.filter(line => names.includes(line)),
    names,
  )
  t.notRegex(entry.text ?? '', /suspensa|outra|sem prova|: [2-9A-HJ-NP-Z]{8}$/m)
  const rows = await database.sequelize.query(`SELECT FROM mailed_keys WHERE user_id IN (${ids})`)
  t.deepEqual(rows[0], [])
  // The quota of keys: one a minute.
  for (let times = 0; times < 3; times++) t.is((await requestKey({ email })).status, 200)
  const unproved = newEmail()
  await service.signUp('ROLE_CLIENT', { email: unproved })
  const asked = await requestKey({ email: unproved })
  t.is(`${asked.status}${asked.text}`, '200')
  const asks = `SELECT FROM emails WHERE parameters ->> 'email' IN ('${email}', '${unproved}')`
  await waitForValue(async () => (await database.sequelize.query(asks))[0].length, 0)
  const sent = (to: string) => mailbox.emails.filter(({ to: all }) => all?.[0]?.address === to).length
  t.deepEqual([sent(email), sent(unproved)], [1, 0])
  const events = await service.registry.audit.list({ subjectId: ids[0]!, action: 'recovery.send-usernames', limit: 9 })
  t.is(events.length, 1)
})

test('an e-mail to a proved address shows a username as it is typed, one to another address shows no link', async t => {
  const email = newEmail()
  const username = `ana.souza${randomUUID().slice(0, 8)}`
  const { token } = await service.signUp('ROLE_CLIENT', { username, email })
  await requestKey({ username, email })
  const shown = async () => (await mailbox.nextEmail(email)).text ?? ''
  t.true((await shown()).includes(username.replace('.', '·')))
  await service.registry.database.sequelize.query(`UPDATE users SET email_proved = true WHERE id = ${idOf(token)}`)
  t.is((await update(token, { newPassword: next })).status, 200)
  t.true((await shown()).includes(username))
})

test('an address that is missing, or that mail can’t be sent to, is answered with 422', async t => {
  for (const email of [
    ...['', ' ', 'ana', 'ana@', '@example.org', 'ana@exa mple.org', 'ana@example..org', 'a@b@c'],
    ...['"mallory@example.org, x"@example.org'],
    `${'a'.repeat(65)}@b.org`,
  ])
    refused(t, await requestKey({ username: 'ana', email }), 422, 'INVALID_EMAIL')
  refused(t, await requestKey({ username: 'ana' }), 422, 'INVALID_EMAIL')
  refused(t, await requestKey({}), 422, 'INVALID_EMAIL')
})

test('AUTH_RECOVERY_EMAIL=any sends an existing user’s key to any given address, which proves none', async t => {
  const other = await startTestService(t, { SMTP_URL: mailbox.url, AUTH_RECOVERY_EMAIL: 'any' })
  const { username } = await other.signUp('ROLE_CLIENT', { email: newEmail() })
  const [any, dummyHash] = [newEmail(), newEmail()]
  const send = (query: Record<string, string>) => other.request('POST', '/forgotpasswords/sendkeybyemail', { query })
  t.is((await send({ username: randomUUID(), email: dummyHash })).status, 200)
  t.is((await send({ username, email: any })).status, 200)
  const key = /: ([2-9A-HJ-NP-Z]{8})$/m.exec((await mailbox.nextEmail(any)).text ?? '')?.[1] ?? ''
  const login = await other.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key } })
  t.deepEqual(claimsOf(login.text).amr, ['otp'])
  t.false(await isProved(other, login.text))
  t.false(mailbox.emails.some(({ to }) => to?.[0]?.address === dummyHash))
})

test('e-mails are in Portuguese unless the request asks for English', async t => {
  t.regex((await mailed()).entry.text ?? '', /Sua chave: /)
  t.regex((await mailed({ 'accept-language': 'en-GB, pt;q=0.5' })).entry.text ?? '', /Your key: /)
  t.regex((await mailed({ 'accept-language': 'fr' })).entry.text ?? '', /Sua chave: /)
})

test('the key for a ROLE_INSTITUTION is mailed to the organization, and activates that user once', async t => {
  const organization = await service.organization({ email: newEmail() })
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const query = { username, emailpartner: organization.email }
  const { status, text } = await service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  t.is(`${status}${text}`, '200')
  const entry = await mailbox.nextEmail(organization.email)
  const activationkey = /: ([\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12})$/m.exec(entry.text ?? '')?.[1] ?? ''
  t.true(entry.text?.includes(username))
  const other = await service.signUp('ROLE_INSTITUTION')
  const activate = (who: { token: string; username: string }) =>
    service.request('POST', '/users/activate', { token: who.token, query: { username: who.username, activationkey } })
  refused(t, await activate(other), 422, 'ACTIVATION_REFUSED')
  t.is((await activate({ token, username })).text, username)
  const { json } = await service.request('GET', '/users/me', { token })
  t.is(`${json.active} ${json.partnerOrganization.id}`, `1 ${organization.id}`)
})

test('the address of an unknown or inactive organization is answered with 404', async t => {
  const { id, email: emailpartner } = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const send = (query: Record<string, string>) =>
    service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query })
  refused(t, await send({ username, emailpartner: newEmail() }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username, emailpartner: 'no address' }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
  refused(t, await send({ username }), 400, 'MISSING_PARAMETER')
  await service.registry.organizations.setActive(id, false)
  refused(t, await send({ username, emailpartner }), 404, 'ORGANIZATION_EMAIL_NOT_FOUND')
})

test('an account gives at most 10 wrong addresses of organizations an hour, all replicas together, also at once', async t => {
  const [one, two] = [
    service,
    await startTestService(t, { DATABASE_URL: service.env.DATABASE_URL!, SMTP_URL: mailbox.url }),
  ]
  const { email: emailpartner } = await service.organization({ email: newEmail() })
  const owner = await service.signUp('ROLE_INSTITUTION')
  const send = ({ username, token }: typeof owner, address: string, { request } = one) =>
    request('POST', '/1.0.0/users/sendadminkeybyemailpartner', { token, query: { username, emailpartner: address } })
  // Right ones don't count.
  for (let index = 0; index < 2; index++) t.is((await send(owner, emailpartner)).status, 200)
  const answers = await Promise.all(
    Array.from({ length: 30 }, (_, index) => send(owner, newEmail(), [one, two][index % 2])),
  )
  const statuses = answers.map(({ status }) => status).sort()
  t.deepEqual(statuses, [...Array(10).fill(404), ...Array(20).fill(429)])
  for (const by of [one, two]) {
    const beyond = await send(owner, emailpartner, by)
    refused(t, beyond, 429, 'TOO_MANY_ATTEMPTS')
    const seconds = Number(beyond.headers.get('retry-after'))
    t.true(seconds > 0 && seconds <= 3600, `${seconds}`)
  }
  const other = await service.signUp('ROLE_INSTITUTION')
  t.is((await send(other, emailpartner)).status, 200)
})

// The password update: the policy, the permissions, and a complete recovery of an account.
const update = (token: string, query: Record<string, string>) =>
  service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })
const signIn = (username: string, secret: string) =>
  service.request('POST', '/users/login', { query: { username, password: secret } })
const next = 'bem-te-vi de peito amarelo'

test('the new password signs in, the old one doesn’t, and the response is empty', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { status, text, headers } = await update(token, { username: username.replace(/\D/g, ''), newPassword: next })
  t.is(`${status}${text}${headers.get('content-type')}`, '200null')
  t.is((await signIn(username, next)).status, 200)
  refused(t, await signIn(username, password), 404, 'INVALID_CREDENTIALS')
})

test('a new password that the rules refuse is answered with 400, and the old one stays', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const secret of ['seven77', 'a'.repeat(257), 'Password123', 'abc\u0000defgh']) {
    const answer = await update(token, { newPassword: secret })
    refused(t, answer, 400, 'INVALID_PASSWORD')
    t.deepEqual(wrongFields(answer), ['newPassword'])
  }
  t.is((await signIn(username, password)).status, 200)
})

test('no new password is answered with 400', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  refused(t, await update(token, { username }), 400, 'MISSING_PARAMETER')
  refused(t, await update(token, { username, newPassword: '' }), 400, 'MISSING_PARAMETER')
})

test('an administrator, who may set every password, gets 404 for an unknown user', async t => {
  const admin = await service.adminToken()
  refused(t, await update(admin, { username: randomUUID(), newPassword: next }), 404, 'USER_NOT_FOUND')
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is((await update(admin, { username, newPassword: next })).status, 200)
  t.is((await signIn(username, next)).status, 200)
  refused(t, await service.request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  t.is((await service.request('GET', '/users/me', { token: admin })).status, 200)
})
