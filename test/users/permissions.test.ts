/** Permissions: every cell of the table, and what each caller sees. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { type Answer, password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

type Who =
  | 'a client'
  | 'an inactive client'
  | 'an institution'
  | 'an inactive institution'
  | 'an administrator'
  | 'an inactive administrator'
type Whose =
  | 'its own record'
  | 'a client of its organization'
  | 'a colleague’s record'
  | 'another user’s record'
  | 'an unknown user’s record'

let one: {
  organization: Awaited<ReturnType<typeof service.organization>>
  provider: SignedUp & { providerKey: string }
}
let admin: SignedUp
let question: number
test.before(async () => {
  const organization = await service.organization()
  one = { organization, provider: await service.institution(organization) }
  admin = { username: 'admin', nickname: 'admin', token: await service.adminToken() }
  question = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json[0].id
})

async function member(role = 'ROLE_CLIENT'): Promise<SignedUp> {
  const user = await service.signUp(role)
  const activationkey = role === 'ROLE_CLIENT' ? one.provider.providerKey : one.organization.activationkey
  const query = { username: user.username, activationkey }
  await service.request('POST', '/users/activate', { token: user.token, query })
  return user
}

const callers: Record<Who, () => Promise<SignedUp>> = {
  'a client': () => member(),
  'an inactive client': () => service.signUp('ROLE_CLIENT'),
  'an institution': () => member('ROLE_INSTITUTION'),
  'an inactive institution': () => service.signUp('ROLE_INSTITUTION'),
  'an administrator': async () => admin,
  'an inactive administrator': () => service.signUp('ROLE_ADMIN'),
}
const others: Record<Exclude<Whose, 'its own record'>, () => Promise<SignedUp>> = {
  'a client of its organization': () => member(),
  'a colleague’s record': () => member('ROLE_INSTITUTION'),
  'another user’s record': () => service.signUp('ROLE_INSTITUTION'),
  'an unknown user’s record': async () => ({ username: randomUUID(), nickname: '', token: '' }),
}

/** The same users, for operations that don't change them. */
function reused<K extends string>(make: Record<K, () => Promise<SignedUp>>): (name: K) => Promise<SignedUp> {
  const made = new Map<K, Promise<SignedUp>>()
  return name => {
    const user = made.get(name) ?? make[name]()
    made.set(name, user)
    return user
  }
}
const callerOf = reused(callers)
const otherOf = reused(others)

type Act = (caller: SignedUp, target: SignedUp) => Promise<Answer>
const operations: Record<string, Act> = {
  'look up': ({ token }, { username }) => service.request('GET', `/users/${encodeURIComponent(username)}`, { token }),
  'update the password of': ({ token }, { username }) =>
    service.request('POST', '/forgotpasswords/passwordupdatebyusername', {
      token,
      query: { username, newPassword: `${password}!` },
    }),
  'save an answer for': ({ token }, target) => {
    const usersid = target.token === '' ? 2_000_000_000 : idOf(target.token)
    const body = { usersid, forgotpasswordquestionsid: question, answer: 'azul' }
    return service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body })
  },
  activate: ({ token }, { username }) =>
    service.request('POST', '/users/activate', { token, query: { username, activationkey: randomUUID() } }),
  'have a key mailed for': ({ token }, { username }) =>
    service.request('POST', '/1.0.0/users/sendadminkeybyemailpartner', {
      token,
      query: { username, emailpartner: one.organization.email },
    }),
}

/** Statuses by caller, in the order: own record, client of the organization, colleague, another user, unknown user. */
const table: Record<string, Record<Who, number[]>> = {
  'look up': {
    'a client': [200, 403, 403, 403, 403],
    'an inactive client': [200, 403, 403, 403, 403],
    'an institution': [200, 200, 200, 403, 403],
    'an inactive institution': [200, 403, 403, 403, 403],
    'an administrator': [200, 200, 200, 200, 404],
    'an inactive administrator': [200, 403, 403, 403, 403],
  },
  'update the password of': {
    'a client': [200, 403, 403, 403, 403],
    'an inactive client': [200, 403, 403, 403, 403],
    'an institution': [200, 403, 403, 403, 403],
    'an inactive institution': [200, 403, 403, 403, 403],
    'an administrator': [0, 200, 200, 200, 404],
    'an inactive administrator': [200, 403, 403, 403, 403],
  },
  'save an answer for': {
    'a client': [200, 403, 403, 403, 404],
    'an inactive client': [200, 403, 403, 403, 404],
    'an institution': [200, 403, 403, 403, 404],
    'an inactive institution': [200, 403, 403, 403, 404],
    'an administrator': [200, 200, 200, 200, 404],
    'an inactive administrator': [200, 403, 403, 403, 404],
  },
  // With an unknown key: 422 shows that the caller has permission.
  activate: {
    'a client': [422, 403, 403, 403, 403],
    'an inactive client': [422, 403, 403, 403, 403],
    'an institution': [422, 403, 403, 403, 403],
    'an inactive institution': [422, 403, 403, 403, 403],
    'an administrator': [422, 422, 422, 422, 422],
    'an inactive administrator': [422, 403, 403, 403, 403],
  },
  // Keys are mailed for neither clients nor administrators.
  'have a key mailed for': {
    'a client': [403, 403, 403, 403, 403],
    'an inactive client': [403, 403, 403, 403, 403],
    'an institution': [200, 403, 403, 403, 403],
    'an inactive institution': [200, 403, 403, 403, 403],
    'an administrator': [404, 404, 200, 200, 404],
    'an inactive administrator': [403, 403, 403, 403, 403],
  },
}

for (const [operation, rows] of Object.entries(table)) {
  for (const [who, statuses] of Object.entries(rows) as [Who, number[]][]) {
    const columns = ['its own record', ...Object.keys(others)] as Whose[]
    columns.forEach((whose, index) => {
      const status = statuses[index]
      // All tests use the default administrator, so its password stays.
      if (!status) return
      test(`${who}: ${operation} ${whose} is answered with ${status}`, async t => {
        const changing = operation === 'update the password of'
        const caller = await (changing ? callers[who]() : callerOf(who))
        const target = whose === 'its own record' ? caller : await (changing ? others[whose]() : otherOf(whose))
        const answer = await operations[operation]!(caller, target)
        t.is(answer.status, status, answer.text)
      })
    })
  }
}

for (const [who, make] of Object.entries(callers)) {
  test(`${who} reads its record and refreshes its token`, async t => {
    const { token, username } = await make()
    t.is((await service.request('GET', '/users/me', { token })).json.username, username)
    t.is((await service.request('GET', '/users/refresh', { token })).status, 200)
  })
}

test('the organization’s activation key is shown to its active institutions and to administrators only', async t => {
  const client = await member()
  const institution = await member('ROLE_INSTITUTION')
  const key = async ({ token }: SignedUp, { username }: SignedUp) =>
    (await operations['look up']!({ token } as SignedUp, { username } as SignedUp)).json.partnerOrganization
      .activationkey
  const { activationkey } = one.organization
  t.is(await key(client, client), undefined)
  t.is(await key(institution, client), activationkey)
  t.is(await key(institution, institution), activationkey)
  t.is(await key(admin, client), activationkey)
})

test('the provider key is shown to its owner and to administrators only', async t => {
  const institution = await member('ROLE_INSTITUTION')
  const colleague = await member('ROLE_INSTITUTION')
  const key = async (viewer: SignedUp) =>
    (await operations['look up']!(viewer, institution)).json.providerActivationKey?.activationkey
  t.truthy(await key(institution))
  t.is(await key(admin), await key(institution))
  t.is(await key(colleague), undefined)
})

test('without a username, the password update and the answer apply to the token’s user', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const body = { forgotpasswordquestionsid: question, answer: 'azul' }
  const save = await service.request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', {
    token,
    body,
  })
  t.is(save.status, 200)
  t.is((await service.registry.questions.answers(idOf(token))).length, 1)
  const query = { newPassword: `${password}?` }
  t.is((await service.request('POST', '/forgotpasswords/passwordupdatebyusername', { token, query })).status, 200)
  t.truthy(await service.login(username, `${password}?`))
})
