/** Failed sign-ins are counted, and too many are answered with 429; the owner is never locked out. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { password, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

let last = 0
/** A client address that nobody else has. */
const newAddress = () => `198.51.100.${++last}`

const login = (username: string, secret: string, address: string) =>
  service.request('POST', '/users/login', {
    query: { username, password: secret },
    headers: { 'x-forwarded-for': address },
  })

async function fail(times: number, username: string, address: string) {
  for (let i = 0; i < times; i++) await login(username, 'wrong password', address)
}

for (const who of ['a user', 'nobody']) {
  test(`after 10 failures on the name of ${who}, even the right password is answered with 429`, async t => {
    const username = who === 'nobody' ? randomUUID() : (await service.signUp('ROLE_CLIENT')).username
    const address = newAddress()
    for (let i = 0; i < 10; i++) {
      refused(t, await login(username, 'wrong password', address), 404, 'INVALID_CREDENTIALS')
    }
    const answer = await login(username.toUpperCase(), password, newAddress())
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    const wait = Number(answer.headers.get('retry-after'))
    t.true(Number.isInteger(wait) && wait > 840 && wait <= 900)
  })
}

test('a success clears the account’s count', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = newAddress()
  await fail(9, username, address)
  t.is((await login(username, password, address)).status, 200)
  await fail(9, username, address)
  t.is((await login(username, password, address)).status, 200)
})

test('an address that the account signed in from is not held up by failures elsewhere', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const home = newAddress()
  t.is((await login(username, password, home)).status, 200)
  await fail(11, username, newAddress())
  refused(t, await login(username, password, newAddress()), 429, 'TOO_MANY_ATTEMPTS')
  t.is((await login(username, password, home)).status, 200)
})

test('failures with answers and keys count with those of logins', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const [question] = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
  const body = [{ forgotpasswordquestionsid: question.id, answer: 'azul' }]
  const headers = { 'x-forwarded-for': newAddress() }
  const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
  await service.request('POST', path, { token, body: body[0] })
  const byAnswers = () =>
    service.request('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username }, body, headers })
  const byKey = () =>
    service.request('POST', '/forgotpasswords/loginbyusernameandkey', { query: { username, key: 'ABCD2345' }, headers })
  for (let i = 0; i < 4; i++) refused(t, await byAnswers(), 422, 'INVALID_ANSWERS')
  for (let i = 0; i < 3; i++) refused(t, await byKey(), 422, 'INVALID_KEY')
  await fail(3, username, newAddress())
  for (const answer of [await byAnswers(), await byKey(), await login(username, password, newAddress())]) {
    refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
    t.true(Number(answer.headers.get('retry-after')) > 0)
  }
  t.is((await service.request('GET', '/users/me', { token })).json.id, idOf(token))
})

test('100 failures from one address hold up that address alone', async t => {
  const { username } = await service.signUp('ROLE_CLIENT')
  const address = newAddress()
  for (let i = 0; i < 10; i++) {
    await Promise.all(Array.from({ length: 10 }, () => login(randomUUID(), 'wrong password', address)))
  }
  refused(t, await login(username, password, address), 429, 'TOO_MANY_ATTEMPTS')
  t.is((await login(username, password, newAddress())).status, 200)
})

test('more than 20 requests for an e-mail within the hour from one address are answered with 429', async t => {
  const headers = { 'x-forwarded-for': newAddress() }
  const ask = () =>
    service.request('POST', '/forgotpasswords/sendkeybyemail', {
      query: { username: randomUUID(), email: 'x@example.org' },
      headers,
    })
  for (let i = 0; i < 20; i++) t.is((await ask()).status, 200)
  const answer = await ask()
  refused(t, answer, 429, 'TOO_MANY_ATTEMPTS')
  t.true(Number(answer.headers.get('retry-after')) > 3000)
})
