/** What each caller sees of a record. conformance/permissions.matrix.ts has who may see it. */
import test from 'ava'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const service = serviceForFile()

let one: {
  organization: Awaited<ReturnType<typeof service.organization>>
  provider: SignedUp & { providerKey: string }
}
let admin: SignedUp
test.before(async () => {
  const organization = await service.organization()
  one = { organization, provider: await service.institution(organization) }
  admin = { username: 'admin', nickname: 'admin', token: await service.adminToken() }
})

async function member(role = 'ROLE_CLIENT'): Promise<SignedUp> {
  const user = await service.signUp(role)
  const activationkey = role === 'ROLE_CLIENT' ? one.provider.providerKey : one.organization.activationkey
  const query = { username: user.username, activationkey }
  await service.request('POST', '/users/activate', { token: user.token, query })
  return user
}

/** The record of a user, as another one sees it. */
const seen = async ({ token }: SignedUp, { username }: SignedUp) =>
  (await service.request('GET', `/users/${encodeURIComponent(username)}`, { token })).json

test('the organization’s activation key is shown to its active institutions and to administrators only', async t => {
  const client = await member()
  const institution = await member('ROLE_INSTITUTION')
  const key = async (viewer: SignedUp, user: SignedUp) => (await seen(viewer, user)).partnerOrganization.activationkey
  const { activationkey } = one.organization
  t.is(await key(client, client), undefined)
  t.is(await key(institution, client), activationkey)
  t.is(await key(institution, institution), activationkey)
  t.is(await key(institution, one.provider), activationkey)
  t.is(await key(admin, client), activationkey)
})

test('the provider key is shown to its owner and to administrators only', async t => {
  const institution = await member('ROLE_INSTITUTION')
  const colleague = await member('ROLE_INSTITUTION')
  const key = async (viewer: SignedUp) => (await seen(viewer, institution)).providerActivationKey?.activationkey
  t.truthy(await key(institution))
  t.is(await key(admin), await key(institution))
  t.is(await key(colleague), undefined)
})

test('without a username, the password update and the answer apply to the token’s user', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const [{ id: question }] = (await service.request('GET', '/forgotpasswords/findallforgotpasswordquestions')).json
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
