/** What AUTH_STRICT refuses, in one process and through a separate gateway, which has no such setting. */
import test from 'ava'
import { openSignedIn } from '../_helpers/administration.js'
import { spawnGateway } from '../_helpers/apart.js'
import { ask } from '../_helpers/database.js'
import { refused } from '../_helpers/problem.js'
import { saveAnswer, updatePassword } from '../_helpers/recovery.js'
import { createRequest, password, serviceForFile, serviceWithClock, signUpForm } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_STRICT: 'on', AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const lax = serviceForFile()

/** Every secret that a parameter can hold, with the operation that has it; `token` where the caller must be known first. */
const secrets: readonly [path: string, secret: Record<string, string>, rest: Record<string, string>][] = [
  ['/users/login', { password: 'x' }, { username: 'nobody' }],
  ['/users/activate', { activationkey: 'x' }, {}],
  ['/forgotpasswords/loginbyusernameandkey', { key: 'x' }, { username: 'nobody' }],
  ['/forgotpasswords/passwordupdatebyusername', { newPassword: 'tatu-canastra 12' }, {}],
  ['/forgotpasswords/passwordupdatebyusername', { new_password: 'tatu-canastra 12' }, {}],
  ['/forgotpasswords/passwordupdatebyusername', { password }, { newPassword: 'tatu-canastra 12' }],
  ['/users/setemail', { password }, { email: 'ana@example.org' }],
  ['/users/confirmemail', { code: 'ABCDEFGH' }, {}],
  ['/users/me/username', { password }, { username: 'ana' }],
  ['/users/me/answers/delete', { password }, {}],
  ['/users/me/delete', { password }, {}],
]

test('secrets in a query are 400 by name, after the caller is known, and not in a body; also from a gateway apart', async t => {
  const { username: own, token } = await service.signUp('ROLE_CLIENT')
  const apart = createRequest((await spawnGateway(t, service.grpc)).http)
  for (const request of [service.request, apart])
    for (const [path, secret, rest] of secrets) {
      const answer = await request('POST', path, {
        query: secret,
        body: path === '/users/activate' ? { username: own } : rest,
        token,
      })
      refused(t, answer, 400, 'MALFORMED_REQUEST')
      t.deepEqual(
        answer.json.errors.map(({ field }: { field: string }) => field),
        // The name of the contract, also where the one of the definitions is given.
        Object.keys(secret).map(name => name.replace('new_password', 'newPassword')),
        path,
      )
    }
  const [known, unknown] = [
    { password: 'x' },
    await service.request('POST', '/users/me/delete', { query: { password: 'x' } }),
  ]
  t.is(unknown.status, 403)
  const { username } = await service.signUp('ROLE_CLIENT')
  t.is((await service.request('POST', '/users/login', { body: { username, password } })).status, 200)
  t.is((await service.request('POST', '/users/login', { query: { username }, body: { password } })).status, 200)
  // Without the setting they work.
  const other = await lax.signUp('ROLE_CLIENT')
  t.is((await lax.request('POST', '/users/login', { query: { username: other.username, password } })).status, 200)
  t.is((await lax.request('POST', '/users/login', { query: { username: other.username, ...known } })).status, 404)
  // A sign-up lists other faults itself.
  const form = signUpForm()
  refused(
    t,
    await service.request('POST', '/users/signup', { query: { password }, body: form }),
    400,
    'MALFORMED_REQUEST',
  )
})

test('logins by answers are 422 for everybody, saving answers 403, and the answer of a sign-up is not stored', async t => {
  const path = '/forgotpasswords/loginbyusernameandanswers'
  const given = [1, 2].map(forgotpasswordquestionsid => ({ forgotpasswordquestionsid, answer: 'Rex' }))
  const form = { ...signUpForm(), securityquestion: '1', securityanswer: 'Rex' }
  const { text: token } = await service.request('POST', '/users/signup', { body: form })
  for (const username of [form.username, 'nobody', undefined])
    for (const body of [given, [], Array(11).fill(given[0])])
      refused(
        t,
        await service.request('POST', path, { ...(username && { query: { username } }), body }),
        422,
        'INVALID_ANSWERS',
      )
  refused(t, await saveAnswer(service, token, 1, 'Rex', { password }), 403, 'ACCESS_DENIED')
  refused(
    t,
    await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { body: {} }),
    403,
  )
  const stored = 'SELECT 1 FROM answers UNION ALL SELECT 1 FROM unmatched_answers'
  const own = { ...signUpForm(), securityquestion: 'Nome do meu barco?', securityanswer: 'Saveiro' }
  t.is((await service.request('POST', '/users/signup', { body: own })).status, 200)
  t.deepEqual(await ask(service.env.DATABASE_URL!, stored), [])
  // The question is shown as the contract has it, and a repeated sign-up is answered.
  const me = await service.request('GET', '/users/me', { token })
  t.truthy(me.json.securityquestion)
  t.is((await service.request('POST', '/users/signup', { body: own })).status, 200)
})

test('a password update needs the present password or a sign-in of the last 15 minutes', async t => {
  const strict = await serviceWithClock(t, { AUTH_STRICT: 'on' })
  const path = '/forgotpasswords/passwordupdatebyusername'
  const update = (token: string, body: object) => strict.request('POST', path, { token, body })
  const next = 'tatu-canastra 12'
  const { username, token } = await strict.signUp('ROLE_CLIENT')
  await strict.clock.pass(901)
  refused(t, await update(token, { newPassword: next }), 400, 'MISSING_PARAMETER')
  const wrong = await update(token, { newPassword: next, password: `${password}?` })
  refused(t, wrong, 404, 'INVALID_CREDENTIALS')
  t.is((await update(token, { newPassword: next, password })).status, 200)
  const login = async (password: string) =>
    (await strict.request('POST', '/users/login', { body: { username, password } })).text
  const fresh = await login(next)
  await strict.clock.pass(900)
  t.is((await update(fresh, { newPassword: `${next}3` })).status, 200)
  // The failures count for the account.
  const last = await login(`${next}3`)
  for (let n = 0; n < 10; n++) t.is((await update(last, { newPassword: next, password: 'x' })).status, 404)
  t.is((await update(last, { newPassword: next, password: `${next}3` })).status, 429)
  // Without the setting a token is enough, and a password that is given must be right.
  const other = await lax.signUp('ROLE_CLIENT')
  const given = { token: other.token, body: { newPassword: next, password: 'x' } }
  refused(t, await lax.request('POST', path, given), 404, 'INVALID_CREDENTIALS')
  t.is((await updatePassword(lax, other.token)).status, 200)
})

test('doctor says what the setting refuses', async t => {
  const { checks } = await (await openSignedIn(t, service)).diagnose({})
  t.regex(checks.find(({ check }) => check === 'strict mode')!.detail, /^AUTH_STRICT is on\..*query.*answers.*password/)
})
