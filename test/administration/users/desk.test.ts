/** Holders of desk: what Administration opens to them, how they are guarded, and what ends it. */
import { createHash, randomUUID } from 'node:crypto'
import test from 'ava'
import { ImportKind } from '../../../proto/gen/auth/v1/administration_pb.js'
import {
  type AdministrationClient,
  openAdministration,
  reasonOf,
  signedInForFile,
} from '../../_helpers/administration.js'
import { ask } from '../../_helpers/database.js'
import { mailboxForFile } from '../../_helpers/mailbox.js'
import { enterByAnswers, saveAnswer, updatePassword } from '../../_helpers/recovery.js'
import { openSchool } from '../../_helpers/school.js'
import { password, type SignedUp, serviceForFile, teardownOfFile } from '../../_helpers/service.js'
import { claimsOf, idOf } from '../../_helpers/tokens.js'

const mailbox = mailboxForFile()
const hooks = teardownOfFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const admin = signedInForFile(service)
const sql = (text: string) => ask(service.env.DATABASE_URL!, text)

const signIn = (username: string, secret = password) =>
  openAdministration(hooks, service).signIn({ username, password: secret })

/** An active user who holds desk, and its session of Administration. */
async function holder(fields: Record<string, unknown> = {}): Promise<SignedUp & { api: AdministrationClient }> {
  const user = await service.signUp('ROLE_CLIENT', fields)
  await admin.activateUser({ user: user.username })
  await admin.grantDesk({ user: user.username })
  return { ...user, api: openAdministration(hooks, service, (await signIn(user.username)).token) }
}

const digest = () => createHash('sha256').update(randomUUID()).digest('hex')

test('a holder of desk helps users, and sees no key of an organization or a user', async t => {
  const { api, username } = await holder()
  t.like((await api.getSession({})).user, { desk: true, record: { username } })
  const school = await openSchool(service)
  const teacher = await service.signUp('ROLE_INSTITUTION')
  const { user } = await api.activateUser({ user: teacher.username, organization: `#${school.id}` })
  t.is(user!.record!.active, 1)
  const shown = [
    user,
    (await api.getUser({ user: school.institution.username })).user,
    (await api.getOrganization({ organization: `#${school.id}` })).organization,
  ]
  for (const text of [school.activationkey, school.institution.providerKey])
    t.false(JSON.stringify(shown, (_, value) => (typeof value === 'bigint' ? String(value) : value)).includes(text))
  const pupil = await school.member()
  t.true((await api.suspendUser({ user: pupil.username })).changed)
  t.true((await api.resumeUser({ user: pupil.username })).changed)
  t.is((await api.issueKey({ user: pupil.username })).key.length, 8)
  const email = `aluno${Date.now()}@example.org`
  const changeOf = (form: object, ...paths: string[]) =>
    api.updateUser({ user: pupil.username, form, updateMask: { paths } })
  t.is((await changeOf({ email }, 'email')).user!.email, email)
  const { events } = await admin.listAuditEvents({ user: pupil.username, action: 'user.set-email' })
  t.is(events[0]!.actorUsername, username)
  // Neither its name nor anything else, and not with the address either.
  t.is(await reasonOf(changeOf({ username: randomUUID() }, 'username')), 'ACCESS_DENIED')
  t.is(await reasonOf(changeOf({ email, city: 'Assis' }, 'email', 'city')), 'ACCESS_DENIED')
  // A move of an active user isn't an activation.
  const { id } = await service.organization()
  t.is(await reasonOf(api.activateUser({ user: pupil.username, organization: `#${id}` })), 'ACCESS_DENIED')
})

test('a holder of desk imports clients, and changes nothing that opens an account', async t => {
  const { api } = await holder()
  const startImport = (more: object) => api.startImport({ kind: ImportKind.USERS, sourceDigest: digest(), ...more })
  for (const more of [
    { changeAccounts: ['password'] },
    { keepIds: true, highestId: 1 },
    { kind: ImportKind.ORGANIZATIONS },
  ])
    t.is(await reasonOf(startImport(more)), 'ACCESS_DENIED')
  const { id } = (await startImport({})).import!
  const row = (role: string) => ({ form: { username: randomUUID(), role, state: 'SP', city: 'Bauru', password } })
  const other = await holder()
  const { created, rejected } = await api.importBatch({
    id,
    users: [
      row('ROLE_CLIENT'),
      row('ROLE_INSTITUTION'),
      row('ROLE_ADMIN'),
      { id: 1, form: { city: 'Assis' } },
      { id: idOf(other.token), form: { city: 'Assis' } },
    ],
  })
  t.deepEqual([created, rejected.map(each => each.row)], [1, [1, 2, 3, 4]])
  await api.finishImport({ id, rows: 5 })
  // Nor does it end the import of an administrator.
  const foreign = await admin.startImport({ kind: ImportKind.USERS, sourceDigest: digest() })
  t.is(await reasonOf(api.abortImport({ id: foreign.import!.id })), 'ACCESS_DENIED')
})

test('tokens of a holder of desk say nothing of it, and it has no refresh tokens', async t => {
  const { username, token } = await holder()
  const granted = await service.login(username)
  t.deepEqual(Object.keys(claimsOf(granted)).sort(), Object.keys(claimsOf(await service.login('admin'))).sort())
  t.deepEqual(claimsOf(granted).roles, ['ROLE_CLIENT'])
  // Those of before go on, as nothing was taken from the user.
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  const stay = await service.request('POST', '/users/login', { body: { username, password, stay: true } })
  const begun = await service.request('POST', '/users/me/refreshtoken', { token: stay.text, body: {} })
  t.is(begun.status, 403)
})

test('refresh tokens of an app end when its user gets desk', async t => {
  const user = await service.signUp('ROLE_CLIENT')
  await admin.activateUser({ user: user.username })
  const { username } = user
  const stay = await service.request('POST', '/users/login', { body: { username, password, stay: true } })
  const { json } = await service.request('POST', '/users/me/refreshtoken', { token: stay.text, body: {} })
  const exchange = () => {
    const body = { grant_type: 'refresh_token', refresh_token: json.refreshToken, client_id: 'registry' }
    return service.request('POST', '/oauth/token', { body })
  }
  await admin.grantDesk({ user: username })
  t.is((await exchange()).json.error, 'invalid_grant')
})

test('the sign-ins of a holder of desk are guarded as those of an administrator', async t => {
  const { username, token } = await holder()
  for (const question of [1, 2]) await saveAnswer(service, token, question, 'azul')
  const byAnswers = (await enterByAnswers(service, username, 'azul')).text
  t.is((await service.request('GET', '/users/me', { token: byAnswers })).status, 200)
  t.is((await updatePassword(service, byAnswers, 'outra senha do brejo')).status, 403)
  // A stolen public session sets a password, which opens Administration for a day only with a code.
  t.is((await updatePassword(service, token, 'outra senha do brejo')).status, 200)
  t.is(await reasonOf(signIn(username, 'outra senha do brejo')), 'SIGN_IN_AGAIN')
  const deleted = await service.request('POST', '/users/me/delete', {
    token: await service.login(username, 'outra senha do brejo'),
    body: { password: 'outra senha do brejo' },
  })
  t.is(deleted.json.reason, 'WRONG_STATE')
})

test('a user is notified when it gets desk and when it loses it', async t => {
  const email = `balcao${Date.now()}@example.org`
  const { username } = await holder({ email })
  const texts = [await mailbox.nextEmail(email), await mailbox.nextEmail(email)].map(({ text = '' }) => text)
  t.true(
    texts.some(text => text.includes('faz agora o trabalho do atendimento')),
    texts.join('\n'),
  )
  await admin.revokeDesk({ user: username })
  t.true((await mailbox.nextEmail(email)).text!.includes('não faz mais o trabalho do atendimento'))
})

test('desk ends with its revocation, a change of role, a suspension, a deactivation and a deletion, and its sessions with it', async t => {
  const ends: Record<string, (user: SignedUp) => Promise<unknown>> = {
    revoked: ({ username }) => admin.revokeDesk({ user: username }),
    'another role': ({ username }) => admin.setRole({ user: username, role: 'ROLE_INSTITUTION' }),
    suspended: ({ username }) => admin.suspendUser({ user: username }),
    deleted: ({ username }) => admin.deleteUser({ user: username }),
    // As a server of the previous version does it.
    'another role there': ({ token }) => sql(`UPDATE users SET role = 'ROLE_INSTITUTION' WHERE id = ${idOf(token)}`),
  }
  for (const [end, work] of Object.entries(ends)) {
    const user = await holder()
    await work(user)
    t.is(await reasonOf(user.api.listUsers({})), 'INVALID_TOKEN', end)
    const [row] = await sql(`SELECT desk FROM users WHERE id = ${idOf(user.token)}`)
    t.is(row!.desk, false, end)
    // What comes back doesn't bring desk back.
    if (end === 'suspended') await admin.resumeUser({ user: user.username })
    if (end === 'deleted') await admin.undeleteUser({ user: `#${idOf(user.token)}` })
    t.is(await reasonOf(signIn(user.username)), 'INVALID_CREDENTIALS', end)
  }
  const school = await openSchool(service)
  const member = await school.member()
  await admin.grantDesk({ user: member.username })
  const { token } = await signIn(member.username)
  const query = { username: member.username }
  await service.request('POST', '/users/me/members/deactivate', { token: school.institution.token, query })
  t.is(await reasonOf(openAdministration(hooks, service, token).listUsers({})), 'INVALID_TOKEN')
})

test('desk is for active users who aren’t administrators', async t => {
  const waiting = await service.signUp('ROLE_CLIENT')
  t.is(await reasonOf(admin.grantDesk({ user: waiting.username })), 'WRONG_STATE')
  t.is(await reasonOf(admin.grantDesk({ user: 'admin' })), 'WRONG_STATE')
  const { username } = await holder()
  t.false((await admin.grantDesk({ user: username })).changed)
  t.false((await admin.revokeDesk({ user: waiting.username })).changed)
})
