/** Users delete their own accounts, and administrators restore them. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { openAdministration, openSignedIn, reasonOf, signedInForFile } from '../_helpers/administration.js'
import { openGrpc, refusalOf } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { password, serviceForFile, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const admin = signedInForFile(service)

const newEmail = () => `ana.${randomUUID()}@example.org`
const deleteMe = (token: string, body: unknown = { password }, headers: Record<string, string> = {}) =>
  service.request('POST', '/users/me/delete', { token, body, headers })
const inDays = (days: number, locale: string) =>
  new Date(Date.now() + days * 86_400_000).toLocaleDateString(locale, { dateStyle: 'long', timeZone: 'UTC' })

test('a deleted account is hidden at once and keeps its names, and an e-mail notifies the owner of the erasure date and a contact', async t => {
  const email = newEmail()
  const { token, username, nickname } = await service.signUp('ROLE_CLIENT', { email })
  const address = '203.0.113.77'
  const answer = await deleteMe(token, { password }, { 'x-forwarded-for': address })
  t.is(`${answer.status}${answer.text}`, '200')

  refused(t, await service.request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  const login = await service.request('POST', '/users/login', { query: { username, password } })
  refused(t, login, 404, 'INVALID_CREDENTIALS')
  const token2 = await serviceKey(service, ['users.read'])
  const seen = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: token2 })
  refused(t, seen, 404, 'USER_NOT_FOUND')
  t.true((await service.request('POST', '/users/existsByUsername', { query: { username } })).json)
  t.true((await service.request('POST', '/users/existsByNickname', { query: { nickname } })).json)

  const { subject, text = '' } = await mailbox.nextEmail(email)
  t.is(subject, 'Sua conta foi excluída')
  t.true(text.includes(username) && text.includes(address))
  t.true(text.includes(inDays(30, 'pt-BR')), text)
  t.regex(text, /administrador pode restaurar a conta.*\n?.*sua instituição/)

  const events = await service.registry.audit.list({ subjectId: idOf(token), action: 'user.delete*', limit: 9 })
  t.deepEqual(
    events.map(({ action, outcome, actor, actor_id, address }) => [action, outcome, actor, actor_id, address]),
    [['user.delete-own', 'ok', 'user', idOf(token), address]],
  )
  t.is((await admin.getUser({ user: username })).user!.record!.id, idOf(token))
})

test('DeleteMe over gRPC deletes the account, and its e-mail is in the language of the call', async t => {
  const client = openGrpc(service.grpc)
  t.teardown(async () => client.close())
  const email = newEmail()
  const { token } = await service.signUp('ROLE_CLIENT', { email })
  const metadata = { 'accept-language': 'en' }
  await client.call(Users.method.deleteMe, { password }, { token, metadata })
  const error = await t.throwsAsync(client.call(Users.method.getMe, {}, { token }))
  t.is(refusalOf(error).info?.reason, 'INVALID_TOKEN')
  const { subject, text = '' } = await mailbox.nextEmail(email)
  t.is(subject, 'Your account was deleted')
  t.true(text.includes(inDays(30, 'en')), text)
})

test('a deletion is refused without the password, in a wrong shape, and outside of the base path', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  refused(t, await deleteMe(token, {}), 400, 'MISSING_PARAMETER')
  refused(t, await deleteMe(token, { password: '  ' }), 400, 'MISSING_PARAMETER')
  refused(t, await deleteMe(token, { password: 5 }), 400, 'MALFORMED_REQUEST')
  refused(t, await service.request('POST', '/users/me/delete', { token }), 400, 'MALFORMED_REQUEST')
  refused(t, await service.request('POST', '/users/me/delete', { body: { password } }), 403, 'ACCESS_DENIED')
  refused(t, await service.request('GET', '/users/me/delete', { token }), 405)
  for (const revision of ['1.0.0', '1.0.2']) {
    for (const path of ['delete', 'export', 'events']) {
      const method = path === 'delete' ? 'POST' : 'GET'
      const body = path === 'delete' ? { body: { password } } : {}
      refused(t, await service.request(method, `/${revision}/users/me/${path}`, { token, ...body }), 404, 'NOT_FOUND')
    }
  }
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
})

test('an administrator can’t be deleted by its public session, and the refusal refers to Administration', async t => {
  const token = await service.adminToken()
  const answer = await deleteMe(token)
  refused(t, answer, 409, 'WRONG_STATE')
  t.regex(answer.json.detail, /Administration.*auth-admin users delete/)
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
})

test('an administrator deletes itself at Administration, but not as the last active one', async t => {
  const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0' })
  const first = await openSignedIn(t, own)
  const form = { username: 'ana', role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  await first.createUser({ form, active: true, confirm: 'ana' })
  const { token } = await openAdministration(t, own).signIn({ username: 'ana', password })
  const ana = openAdministration(t, own, token)
  t.true((await ana.deleteUser({ user: 'ana' })).changed)
  t.is(await reasonOf(ana.getSession({})), 'INVALID_TOKEN')
  t.is(await reasonOf(openAdministration(t, own).signIn({ username: 'ana', password })), 'INVALID_CREDENTIALS')
  t.is(await reasonOf(first.deleteUser({ user: 'admin' })), 'LAST_ADMINISTRATOR')
  t.is(await reasonOf(first.getSession({})), 'none')
})
