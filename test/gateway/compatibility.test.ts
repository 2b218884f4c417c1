/** Apps of the older implementation work unchanged, with and without AUTH_COMPATIBILITY. */
import { randomInt, randomUUID } from 'node:crypto'
import test from 'ava'
import { password, serviceForFile, signUpForm, type TestService } from '../_helpers/service.js'

const service = serviceForFile(() => ({ AUTH_COMPATIBILITY: 'predecessor' }))
const plain = serviceForFile()

/** Signs up, and returns the record of the new user. */
async function signUp({ request }: TestService, fields: Record<string, unknown>) {
  const { status, text } = await request('POST', '/users/signup', { body: signUpForm(fields) })
  return status === 200 ? (await request('GET', '/users/me', { token: text })).json : status
}

const telephone = () => String(11_900_000_000 + randomInt(99_999_999))

test('a user record has the roles as a list beside the role, only with the setting', async t => {
  const username = telephone()
  const { role, roles } = await signUp(service, { username })
  t.deepEqual({ role, roles }, { role: 'ROLE_CLIENT', roles: ['ROLE_CLIENT'] })
  for (const base of ['', '/1.0.0', '/1.0.2']) {
    const token = await service.adminToken()
    const { json } = await service.request('GET', `${base}/users/${username}`, { token })
    t.deepEqual(json.roles, ['ROLE_CLIENT'])
  }
  t.false('roles' in (await signUp(plain, {})))
})

test('institution X means no institution, only with the setting', async t => {
  const given = { institution: 'X', institutiontype: 'X' }
  const user = await signUp(service, given)
  t.is(user.institution, undefined)
  t.is(user.institutiontype, undefined)
  t.is((await signUp(service, { institution: 'Escola X', institutiontype: 'E' })).institution, 'Escola X')
  t.is(await signUp(plain, given), 422)
  t.is((await signUp(plain, { institution: 'X' })).institution, 'X')
})

test('a birth date is the day whose midnight in Brazil was sent, in any time zone of the device', async t => {
  for (const time of ['T03:00:00.000Z', 'T02:00:00.000Z', 'T05:00:00Z', 'T00:00:00.000-02:00', 'T00:00:00-0500'])
    t.is((await signUp(service, { dateofborn: `2001-05-10${time}` })).dateofborn, '10/05/2001', time)
  // Another time of day is an instant.
  t.is((await signUp(service, { dateofborn: '2001-05-10T00:30:00Z' })).dateofborn, '09/05/2001')
  t.is((await signUp(plain, { dateofborn: '2001-05-10T02:00:00.000Z' })).dateofborn, '09/05/2001')
})

test('query parameters may be unescaped', async t => {
  const username = `João ${randomInt(1e9)}%`
  await signUp(service, { username })
  const escaped = encodeURIComponent(username)
  for (const query of [escaped, escaped.replace('%25', '%')]) {
    const path = `/users/existsByUsername?username=${query}`
    t.is((await service.request('POST', path)).text, 'true', query)
  }
  t.is((await plain.request('POST', '/users/existsByUsername?username=100%')).status, 400)
})

for (const [name, chosen] of Object.entries({ 'with the setting': service, 'without it': plain })) {
  test(`the calls of the older app work ${name}`, async t => {
    const { request } = chosen
    const digits = telephone()
    const written = `(${digits.slice(0, 2)})${digits.slice(2, 7)}-${digits.slice(7)}`
    const nickname = randomUUID()
    const exists = async (path: string) => (await request('POST', path)).text
    t.is(await exists(`/users/existsByUsername?username=${digits}`), 'false')
    t.is(await exists(`/users/existsByNickname?nickname=${nickname}`), 'false')
    const signedUp = await request('POST', '/users/signup', {
      body: {
        ...signUpForm({ username: digits, nickname }),
        dateofborn: '1999-12-31T03:00:00.000Z',
        gender: 'N',
        securityquestion: 'Qual a cor do seu primeiro barco?',
        securityanswer: 'Azul',
        roles: ['ROLE_INSTITUTION'],
      },
    })
    t.is(signedUp.status, 200)
    const token = signedUp.text
    const { activationkey } = await chosen.organization()
    // The token of the sign-up activates at once; the query isn't escaped.
    const activate = `/users/activate?username=${written}&activationkey=${activationkey}`
    t.is((await request('POST', activate, { token })).status, 200)
    t.is(await exists(`/users/existsByUsername?username=${written}`), 'true')
    t.is((await request('POST', `/users/login?username=${written}&password=${password}`)).status, 200)
    const me = await request('GET', '/users/me', { token })
    t.is(me.json.dateofborn, '31/12/1999')
    t.is(me.json.securityquestion, 'Qual a cor do seu primeiro barco?')
    const offered = await request('GET', '/forgotpasswords/findallforgotpasswordquestions')
    const [one, two] = offered.json as { id: number }[]
    const answers = [one!, two!].map(({ id }) => ({ forgotpasswordquestionsid: String(id), answer: 'Jacareí' }))
    const save = '/forgotpasswords/saveforgotpasswordquestionsusersanswers'
    for (const body of answers) t.is((await request('POST', save, { token, body })).status, 200)
    const path = `/forgotpasswords/loginbyusernameandanswers?username=${digits}`
    const body = answers.map(answer => ({ ...answer, usersid: 1 }))
    t.is((await request('POST', path, { body })).status, 200)
  })
}
