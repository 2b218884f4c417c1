/** How an institution reads and changes the members of its organization. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { signedInForFile } from '../_helpers/administration.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused } from '../_helpers/problem.js'
import { openSchool } from '../_helpers/school.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const api = signedInForFile(service)
const client = grpcForFile(service)

const list = (token: string, query: Record<string, string> = {}) =>
  service.request('GET', '/users/me/members', { token, query })
const namesIn = (json: { members: { user: { username: string } }[] }) => json.members.map(({ user }) => user.username)
const deactivate = (token: string, username: string) =>
  service.request('POST', '/users/me/members/deactivate', { token, query: { username } })
const me = async (token: string) => (await service.request('GET', '/users/me', { token })).json
const activate = ({ username }: SignedUp, token: string, activationkey: string) =>
  service.request('POST', '/users/activate', { token, query: { username, activationkey } })

test('an institution lists the members of its organization by id, each as GetUser shows it', async t => {
  const school = await openSchool(service)
  const { institution } = school
  const members = [institution, await school.member(), await school.member()]
  const answer = await list(institution.token)
  t.is(answer.status, 200, answer.text)
  t.deepEqual(
    namesIn(answer.json),
    members.map(({ username }) => username),
  )
  t.falsy(answer.json.nextPageToken)
  for (const [index, { username }] of members.entries()) {
    const record = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: institution.token })
    t.deepEqual(answer.json.members[index].user, record.json)
  }
  const listed = await client.call(Users.method.listMembers, {}, { token: institution.token })
  t.deepEqual(
    listed.members.map(({ user }) => user!.username),
    members.map(({ username }) => username),
  )
})

test('a member shows when it was activated and by whose key, and whether it is suspended; deleted members are hidden', async t => {
  const school = await openSchool(service)
  const { institution } = school
  const [byKey, suspended, deleted] = [await school.member(), await school.member(), await school.member()]
  const byAdministrator = await service.signUp('ROLE_CLIENT')
  const before = Date.now()
  await api.activateUser({ user: byAdministrator.username, organization: `#${school.id}` })
  const waiting = await service.signUp('ROLE_CLIENT')
  await api.setOrganization({ user: waiting.username, organization: `#${school.id}` })
  await api.suspendUser({ user: suspended.username })
  await api.deleteUser({ user: deleted.username })

  const { members } = (await list(institution.token)).json
  const of = ({ username }: SignedUp) =>
    members.find(({ user }: { user: { username: string } }) => user.username === username)
  t.is(members.length, 5)
  t.is(of(deleted), undefined)
  t.like(of(byKey), { activatedBy: idOf(institution.token), activatedByUsername: institution.username })
  t.like(of(byKey), { suspended: false, user: { active: 1 } })
  t.like(of(suspended), { suspended: true, user: { active: 0 } })
  // The organization's key belongs to no user.
  t.is(of(institution).activatedBy, undefined)
  t.true(Date.parse(of(institution).activateTime) > 0)
  t.is(of(byAdministrator).activatedBy, idOf(await service.adminToken()))
  t.is(of(byAdministrator).activatedByUsername, undefined)
  t.true(Math.abs(Date.parse(of(byAdministrator).activateTime) - before) < 60_000)
  t.like(of(waiting), { user: { active: 0 }, suspended: false })
  t.false('activateTime' in of(waiting) || 'activatedBy' in of(waiting))
})

test('members are listed in pages of 50 by default and at most 500, each once', async t => {
  const school = await openSchool(service)
  const { token } = school.institution
  for (let index = 0; index < 4; index++) await school.member()
  const seen: string[] = []
  let pageToken = ''
  let pages = 0
  do {
    const { json } = await list(token, { pageSize: '2', ...(pageToken && { pageToken }) })
    t.true(json.members.length <= 2)
    seen.push(...namesIn(json))
    pageToken = json.nextPageToken
    pages++
  } while (pageToken)
  t.is(pages, 3)
  t.is(new Set(seen).size, 5)

  await service.registry.database.sequelize.query(
    `INSERT INTO users (username, username_key, username_skeleton, nickname, nickname_key, nickname_skeleton,
        password_hash, state, city, terms_of_usage, role, active, organization_id)
      SELECT $1 || n, $1 || n, $1 || n, $1 || n, $1 || n, $1 || n, '', 'SP', 'Bauru', true, 'ROLE_CLIENT', true, ${school.id}
      FROM generate_series(1, 600) n`,
    { bind: [randomUUID()] },
  )
  t.is((await list(token)).json.members.length, 50)
  t.is((await list(token, { pageSize: '1000' })).json.members.length, 500)
  refused(t, await list(token, { pageSize: '-1' }), 400, 'INVALID_ARGUMENT')
  refused(t, await list(token, { pageSize: 'many' }), 400, 'MALFORMED_REQUEST')
})

test('a search finds members by the beginnings of words, in the own organization only', async t => {
  const school = await openSchool(service)
  const other = await openSchool(service)
  const word = `Jatobá${randomUUID().slice(0, 8)}`
  const [one] = [await school.member({ city: word }), await school.member({ city: 'Palmas' })]
  await other.member({ city: word })
  const found = await list(school.institution.token, { text: word.slice(0, -1).toLowerCase().replace('á', 'a') })
  t.deepEqual(namesIn(found.json), [one!.username])
})

test('a search finds nothing by the e-mail address, which an institution doesn’t see', async t => {
  const school = await openSchool(service)
  const part = randomUUID().replaceAll('-', '')
  const { username } = await school.member({ email: `${part}@example.org` })
  t.deepEqual(namesIn((await list(school.institution.token, { text: part })).json), [])
  t.deepEqual(namesIn((await list(school.institution.token, { text: `${part} ${username}` })).json), [])
  // Administrators do find it.
  t.is((await api.listUsers({ text: part })).users.length, 1)
})

test('a deactivated member is inactive, in no organization, and logged out, and can activate again with a key', async t => {
  const school = await openSchool(service)
  const { institution } = school
  const member = await school.member()
  const answer = await deactivate(institution.token, member.username)
  t.is(answer.status, 200, answer.text)
  t.is(answer.text, '')
  refused(t, await service.request('GET', '/users/me', { token: member.token }), 500, 'INVALID_TOKEN')
  const token = await service.login(member.username)
  const record = await me(token)
  t.is(record.active, 0)
  t.is(record.partnerOrganization, undefined)
  t.false(namesIn((await list(institution.token)).json).includes(member.username))
  t.is((await activate(member, token, institution.providerKey)).status, 200)
  t.like(await me(token), { active: 1, partnerOrganization: { id: school.id } })
  t.true(namesIn((await list(institution.token)).json).includes(member.username))
})

test('a deactivated member is notified by e-mail, without the address from which the institution called', async t => {
  const school = await openSchool(service)
  for (const [language, subject] of [
    ['pt-BR', /desativada/],
    ['en', /deactivated/],
  ] as const) {
    const email = `saiu.${randomUUID()}@example.org`
    const { username } = await school.member({ email })
    const headers = { 'accept-language': language, 'x-forwarded-for': '198.51.100.77' }
    const query = { username }
    const { token } = school.institution
    t.is((await service.request('POST', '/users/me/members/deactivate', { token, query, headers })).status, 200)
    const mail = await mailbox.nextEmail(email)
    t.regex(mail.subject ?? '', subject)
    t.true(mail.text?.includes(username))
    t.false(mail.text?.includes('198.51.100.77'))
  }
})

test('the paths of members exist only at /', async t => {
  const { token, username } = (await openSchool(service)).institution
  for (const base of ['/1.0.0', '/1.0.2']) {
    t.is((await service.request('GET', `${base}/users/me/members`, { token })).status, 404)
    t.is((await service.request('POST', `${base}/users/me/providerkey`, { token })).status, 404)
    const query = { username }
    t.is((await service.request('POST', `${base}/users/me/members/deactivate`, { token, query })).status, 404)
  }
})

test('the institution of an inactive organization neither lists, reads nor deactivates members, and does again when it is active', async t => {
  const school = await openSchool(service)
  const { token, username } = school.institution
  const member = await school.member()
  const read = (name: string) => service.request('GET', `/users/${encodeURIComponent(name)}`, { token })
  t.is((await read(member.username)).status, 200)
  await api.deactivateOrganization({ organization: `#${school.id}` })
  refused(t, await list(token), 403, 'ACCESS_DENIED')
  refused(t, await read(member.username), 403, 'ACCESS_DENIED')
  refused(t, await deactivate(token, member.username), 403, 'ACCESS_DENIED')
  t.is((await me(member.token)).active, 1)
  t.is((await read(username)).json.active, 1)
  t.is((await me(token)).username, username)
  await api.activateOrganization({ organization: `#${school.id}` })
  t.is((await read(member.username)).status, 200)
  t.is((await list(token)).json.members.length, 2)
  t.is((await deactivate(token, member.username)).status, 200)
})
