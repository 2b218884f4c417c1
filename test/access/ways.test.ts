/** Each state of a user at each way in: what is closed answers as a wrong proof does. */
import test from 'ava'
import { openAdministration, openSignedIn, reasonOf } from '../_helpers/administration.js'
import { enterByAnswers, enterByKey, saveAnswer } from '../_helpers/recovery.js'
import { password, signUpForm, startTestService, teardownOfFile } from '../_helpers/service.js'

const hooks = teardownOfFile()

// Status over HTTP, or the reason at Administration. The last two ways are of a ROLE_ADMIN, and of another user that an
// administrator names.
const table = `
way                        active               not activated        suspended            deleted              unknown
sign-up, repeated          422                  200                  422                  422                  200
password                   200                  200                  404                  404                  404
answers                    200                  200                  422                  404                  404
issued key                 200                  200                  422                  422                  422
token                      200                  200                  500                  500                  500
refresh                    200                  200                  500                  500                  500
password at Administration OK                   INVALID_CREDENTIALS  INVALID_CREDENTIALS  INVALID_CREDENTIALS  INVALID_CREDENTIALS
activation by another      422                  200                  422                  422                  422
`

test('a state of a user closes the ways in that it must, with the answer to a wrong proof, and no other', async t => {
  const service = await startTestService(hooks, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const api = await openSignedIn(hooks, service)
  const adminToken = await service.adminToken()
  const organization = await service.organization()
  const enter: Record<string, (user: string) => Promise<unknown>> = {
    suspended: user => api.suspendUser({ user }),
    deleted: user => api.deleteUser({ user }),
  }
  const holderOf = (username: string) =>
    service.registry.administeredUsers.find({ usernameKey: username.toLowerCase() })
  const signUp = async (form: ReturnType<typeof signUpForm>) => service.request('POST', '/users/signup', { body: form })

  /** A user in a state, with answers, and its token from before. */
  async function userIn(state: string, role = 'ROLE_INSTITUTION') {
    const form = signUpForm({ roles: [role] })
    if (state === 'unknown') return { form, token: adminToken.slice(0, -1) }
    const { text: token } = await signUp(form)
    for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
    if (state === 'active')
      await api.activateUser({ user: form.username, organization: `#${organization.id}`, confirm: form.username })
    await enter[state]?.(form.username)
    return { form, token }
  }

  const ways: Record<string, (state: string) => Promise<unknown>> = {
    'sign-up, repeated': async state => (await signUp((await userIn(state)).form)).status,
    async password(state) {
      const { username } = (await userIn(state)).form
      return (await service.request('POST', '/users/login', { query: { username, password } })).status
    },
    answers: async state => (await enterByAnswers(service, (await userIn(state)).form.username, 'azul')).status,
    async 'issued key'(state) {
      // Issued before the user comes into the state, which must close the way by itself.
      const { form } = await userIn(state)
      const { id = 0, tokenGeneration = 0 } = (await holderOf(form.username)) ?? {}
      const key = 'ABCD2345'
      if (id)
        await service.registry.database.transact(t =>
          service.registry.mailedKeys.issue({ id, tokenGeneration }, key, 60, t),
        )
      return (await enterByKey(service, form.username, key)).status
    },
    token: async state => (await service.request('GET', '/users/me', { token: (await userIn(state)).token })).status,
    refresh: async state =>
      (await service.request('GET', '/users/refresh', { token: (await userIn(state)).token })).status,
    async 'password at Administration'(state) {
      const { username } = (await userIn(state, 'ROLE_ADMIN')).form
      const signIn = openAdministration(hooks, service).signIn({ username, password })
      return signIn.then(
        () => 'OK',
        () => reasonOf(signIn),
      )
    },
    async 'activation by another'(state) {
      const query = { username: (await userIn(state)).form.username, activationkey: organization.activationkey }
      return (await service.request('POST', '/users/activate', { token: adminToken, query })).status
    },
  }
  const [head = '', ...rows] = table.trim().split('\n')
  const states = head.slice(27).trim().split(/ {2,}/)
  t.deepEqual(
    rows.map(row => row.slice(0, 27).trim()),
    Object.keys(ways),
  )
  for (const row of rows) {
    const way = row.slice(0, 27).trim()
    const expected = row.slice(27).trim().split(/ +/)
    for (const [index, state] of states.entries())
      t.is(String(await ways[way]!(state)), expected[index]!, `${way}: ${state}`)
  }
})
