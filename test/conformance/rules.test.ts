/** The numbered rules of the published interface. Tests of the operations have the details. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { refused } from '../_helpers/problem.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { claimsOf, forge, idOf, nowInSeconds } from '../_helpers/tokens.js'

const service = serviceForFile()
const bases = ['', '/1.0.0', '/1.0.2']
const jwt = /^[\w-]+\.[\w-]+\.[\w-]+$/

let questions: number[]
test.before(async () => {
  const { json } = await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')
  questions = json.map(({ id }: { id: number }) => id)
})

/** The service below one base path. */
function at(base: string) {
  const send = (method: string, path: string, options?: Parameters<typeof service.request>[2]) =>
    service.request(method, base + path, options)
  const me = async (token: string) => (await send('GET', '/users/me', { token })).json
  return { send, me }
}

async function withAnswers(): Promise<SignedUp> {
  const user = await service.signUp('ROLE_CLIENT')
  for (const id of questions.slice(0, 2)) {
    const body = { forgotpasswordquestionsid: id, answer: `resposta ${id}` }
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    await service.request('POST', path, { token: user.token, body })
  }
  return user
}

for (const base of bases) {
  const { send, me } = at(base)
  const name = (rule: string) => `${base || 'base path'}: ${rule}`

  test(name('what the service does 1: all new users are inactive'), async t => {
    for (const role of ['ROLE_ADMIN', 'ROLE_INSTITUTION', 'ROLE_CLIENT']) {
      const { token } = await service.signUp(role)
      t.deepEqual([(await me(token)).active, (await me(token)).role], [0, role])
    }
  })

  test(
    name('what the service does 2 and 8: a ROLE_INSTITUTION provides keys that activate ROLE_CLIENT users'),
    async t => {
      const { providerKey } = await service.institution(await service.organization())
      const { username, token } = await service.signUp('ROLE_CLIENT')
      const answer = await send('POST', '/users/activate', { token, query: { username, activationkey: providerKey } })
      t.is(answer.status, 200)
      t.is((await me(token)).active, 1)
    },
  )

  test(name('what the service does 3 and 4: login gives a JWT that opens me and the look-up'), async t => {
    const { username } = await service.signUp('ROLE_CLIENT')
    const { text: token } = await send('POST', '/users/login', { query: { username, password } })
    t.regex(token, jwt)
    t.is((await me(token)).username, username)
    t.is((await send('GET', `/users/${encodeURIComponent(username)}`, { token })).json.username, username)
  })

  test(name('what the service does 5: refresh gives a fresh token'), async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const { text } = await send('GET', '/users/refresh', { token })
    t.regex(text, jwt)
    t.not(text, token)
    t.is((await me(text)).id, idOf(token))
  })

  test(name('recovery 1: fewer than 2 correct answers are answered with 422'), async t => {
    const { username } = await withAnswers()
    const body = questions
      .slice(0, 2)
      .map(id => ({ forgotpasswordquestionsid: id, answer: `resposta ${questions[0]}` }))
    refused(t, await send('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username }, body }), 422)
  })

  test(name('recovery 2: an unknown user or an answer that does not exist is answered with 404'), async t => {
    const { username } = await withAnswers()
    const body = questions.slice(0, 3).map(id => ({ forgotpasswordquestionsid: id, answer: `resposta ${id}` }))
    const login = (who: string, answers: unknown) =>
      send('POST', '/forgotpasswords/loginbyusernameandanswers', { query: { username: who }, body: answers })
    refused(t, await login(randomUUID(), body.slice(0, 2)), 404)
    refused(t, await login(username, body), 404)
    t.regex((await login(username, body.slice(0, 2))).text, jwt)
  })

  test(name('recovery 3: an invalid username or key is answered with 422'), async t => {
    const { username, token } = await service.signUp('ROLE_CLIENT')
    await service.registry.mailedKeys.replace(idOf(token), 'recovery', 'ABCD2345')
    const login = (query: Record<string, string>) => send('POST', '/forgotpasswords/loginbyusernameandkey', { query })
    refused(t, await login({ username, key: 'ABCD2346' }), 422)
    refused(t, await login({ username: randomUUID(), key: 'ABCD2345' }), 422)
    refused(t, await login({ username }), 422)
    refused(t, await login({ key: 'ABCD2345' }), 422)
    refused(t, await login({}), 422)
    t.regex((await login({ username, key: 'ABCD2345' })).text, jwt)
  })

  test(name('recovery 4: an invalid e-mail address is answered with 422'), async t => {
    for (const query of [{ username: 'ana', email: 'ana' }, { username: 'ana' }, {}] as Record<string, string>[]) {
      refused(t, await send('POST', '/forgotpasswords/sendkeybyemail', { query }), 422)
    }
  })

  test(name('recovery 5 and 6: an unknown user or question is answered with 404'), async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const admin = await service.adminToken()
    const query = { username: randomUUID(), newPassword: 'tamanduá-mirim 1' }
    refused(t, await send('POST', '/forgotpasswords/passwordupdatebyusername', { token: admin, query }), 404)
    const path = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    const answer = { forgotpasswordquestionsid: questions[0], answer: 'a' }
    refused(t, await send('POST', path, { token: admin, body: { ...answer, usersid: 2_000_000_000 } }), 404)
    refused(t, await send('POST', path, { token, body: { ...answer, forgotpasswordquestionsid: 999_999 } }), 404)
  })

  test(name('users 3 and 4: a wrong pair and an unknown user are answered with 404'), async t => {
    const { username } = await service.signUp('ROLE_CLIENT')
    refused(t, await send('POST', '/users/login', { query: { username, password: 'wrong password' } }), 404)
    refused(t, await send('POST', '/users/login', { query: { username: randomUUID(), password } }), 404)
    refused(t, await send('GET', `/users/${randomUUID()}`, { token: await service.adminToken() }), 404)
  })

  test(name('authentication 3: me without a token is answered with 403 and an access-denied message'), async t => {
    const answer = await send('GET', '/users/me')
    refused(t, answer, 403, 'ACCESS_DENIED')
    t.regex(answer.json.detail, /access denied/i)
  })

  test(name('authentication 4: an expired or invalid token is answered with 500'), async t => {
    const { token } = await service.signUp('ROLE_CLIENT')
    const now = nowInSeconds()
    for (const bad of ['bad', await forge(service, token, { iat: now - 7200, exp: now - 1 })]) {
      refused(t, await send('GET', '/users/me', { token: bad }), 500, 'INVALID_TOKEN')
      refused(t, await send('POST', '/users/activate', { token: bad }), 500, 'INVALID_TOKEN')
      refused(t, await send('POST', '/forgotpasswords/passwordupdatebyusername', { token: bad }), 500, 'INVALID_TOKEN')
    }
  })

  test(name('string results: the username of an activation, a token of everything else'), async t => {
    const { activationkey } = await service.organization()
    const body = {
      username: `${randomUUID()} É`,
      nickname: randomUUID(),
      password,
      state: 'AC',
      city: 'Xapuri',
      termsofusage: true,
      roles: ['ROLE_INSTITUTION'],
    }
    const { text: token } = await send('POST', '/users/signup', { body })
    t.is(claimsOf(token).username, body.username)
    const query = { username: body.username, activationkey }
    t.is((await send('POST', '/users/activate', { token, query })).text, body.username)
  })
}

test('after the installation the default administrator exists, is active and can administer', async t => {
  const token = await service.adminToken()
  const { json } = await service.request('GET', '/users/me', { token })
  t.deepEqual([json.username, json.role, json.active], ['admin', 'ROLE_ADMIN', 1])
})

test('versioning: a user signed up through one revision exists in the other, with the same token', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  for (const base of bases) {
    t.is((await at(base).me(token)).username, username)
    t.is((await at(base).send('POST', '/users/login', { query: { username, password } })).status, 200)
  }
})
