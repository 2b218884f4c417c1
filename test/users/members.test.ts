/** What an institution does: it reads and changes the members of its organization, and replaces its provider key. */
import { createHash, randomUUID } from 'node:crypto'
import test from 'ava'
import pg from 'pg'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { openAdministration, reasonOf, signedInForFile } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { openSchool } from '../_helpers/school.js'
import { type SignedUp, serviceForFile } from '../_helpers/service.js'
import { stopEvents } from '../_helpers/stopped.js'
import { claimsOf, idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

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
  t.is((await use({ ...member, token }, institution.providerKey)).status, 200)
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

// Rotating the provider key of an institution, by its owner and by administrators.

const rotate = (token: string) => service.request('POST', '/users/me/providerkey', { token, once: true })
const keyOf = async (token: string) =>
  (await service.request('GET', '/users/me', { token })).json.providerActivationKey?.activationkey
/** An activation by a provider key, or by that of an organization. */
const use = ({ username, token }: SignedUp, activationkey: string) =>
  service.request('POST', '/users/activate', { token, query: { username, activationkey }, once: true })
const eventsOf = (subjectId: number) =>
  service.registry.audit.list({ action: 'user.rotate-provider-key', subjectId, limit: 10 })

/** Imports a row of users, which may move a user to another organization. */
async function importing(row: object) {
  const sourceDigest = createHash('sha256').update(randomUUID()).digest('hex')
  const { import: started } = await api.startImport({
    kind: ImportKind.USERS,
    sourceDigest,
    changeAccounts: ['organization'],
  })
  const { updated } = await api.importBatch({ id: started!.id, users: [row] })
  if (updated !== 1) throw new Error('The row was rejected.')
}

/** An institution with an e-mail address. */
async function institution(): Promise<SignedUp & { email: string; providerKey: string }> {
  const { activationkey } = await service.organization()
  const email = `prov.${claimsOf((await service.signUp('ROLE_CLIENT')).token).jti}@example.org`
  const user = await service.signUp('ROLE_INSTITUTION', { email })
  const { status, text } = await use(user, activationkey)
  if (status !== 200) throw new Error(text)
  return { ...user, email, providerKey: await keyOf(user.token) }
}

test('an institution replaces its provider key: the new one activates, the former one doesn’t, and clients stay active', async t => {
  const owner = await institution()
  const [before, late, after] = [
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
    await service.signUp('ROLE_CLIENT'),
  ]
  t.is((await use(before, owner.providerKey)).status, 200)
  const answer = await rotate(owner.token)
  t.is(answer.status, 200, answer.text)
  const { providerActivationKey: key, username } = answer.json
  t.is(username, owner.username)
  t.is(key.usersid, idOf(owner.token))
  t.not(key.activationkey, owner.providerKey)
  t.is(await keyOf(owner.token), key.activationkey)
  refused(t, await use(late, owner.providerKey), 422, 'ACTIVATION_REFUSED')
  t.is((await use(after, key.activationkey)).status, 200)
  t.is((await service.request('GET', '/users/me', { token: before.token })).json.active, 1)
})

test('the owner is notified of a new provider key by e-mail, which doesn’t hold it, and the audit log names who did it', async t => {
  const owner = await institution()
  const { user } = await client.call(Users.method.rotateProviderKey, {}, { token: owner.token })
  const key = user!.providerActivationKey!.activationkey!
  const { subject, text = '' } = await mailbox.nextEmail(owner.email)
  t.regex(subject ?? '', /chave de ativação/)
  t.true(text.includes('127.0.0.1'), text)
  t.false(text.includes(key) || text.includes(owner.providerKey))
  const id = idOf(owner.token)
  const [event, ...others] = await eventsOf(id)
  t.like(event, { actor: 'user', actor_id: id, outcome: 'ok' })
  t.is(others.length, 0)
})

test('only an active ROLE_INSTITUTION has a provider key to replace', async t => {
  const { token } = await service.signUp('ROLE_INSTITUTION')
  refused(t, await rotate(token), 409, 'WRONG_STATE')
  refused(t, await rotate((await service.signUp('ROLE_CLIENT')).token), 403, 'ACCESS_DENIED')
  refused(t, await rotate(await service.adminToken()), 403, 'ACCESS_DENIED')
  refused(t, await service.request('POST', '/users/me/providerkey'), 403, 'ACCESS_DENIED')
  const suspended = await institution()
  await api.suspendUser({ user: suspended.username })
  refused(t, await rotate(suspended.token), 500, 'INVALID_TOKEN')
  t.is((await eventsOf(idOf(suspended.token))).length, 0)
})

test('of rotations at once each caller gets another key, and the stored key is the one of the last', async t => {
  const { token } = await institution()
  const answers = await Promise.all(Array.from({ length: 8 }, () => rotate(token)))
  t.deepEqual([...new Set(answers.map(({ status }) => status))], [200])
  const keys = answers.map(({ json }) => json.providerActivationKey.activationkey)
  t.is(new Set(keys).size, 8)
  const working = await keyOf(token)
  t.true(keys.includes(working))
  for (const key of keys) {
    const { status } = await use(await service.signUp('ROLE_CLIENT'), key)
    t.is(status, key === working ? 200 : 422)
  }
})

test.serial(
  'an activation in progress keeps its key until it ends, and one that waits for a rotation is refused',
  async t => {
    const [one, other] = [await institution(), await institution()]
    const [first, second] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    t.deepEqual(await stopEvents(t, service, [() => use(first, one.providerKey), () => rotate(one.token)]), [200, 200])
    t.deepEqual(
      await stopEvents(t, service, [() => rotate(other.token), () => use(second, other.providerKey)]),
      [200, 422],
    )
  },
)

test('an activation locks the provider before its key, as a rotation does, so that the two never deadlock', async t => {
  const owner = await institution()
  const rotation = new pg.Client({ connectionString: service.env.DATABASE_URL! })
  await rotation.connect()
  t.teardown(() => rotation.end())
  const id = idOf(owner.token)
  await rotation.query(`BEGIN; SET lock_timeout = '1s'; SELECT FROM users WHERE id = ${id} FOR NO KEY UPDATE`)
  const activation = use(await service.signUp('ROLE_CLIENT'), owner.providerKey)
  await waitForValue(
    () => lockWaiters(service.registry.database, '%provider_keys%'),
    value => value > 0,
  )
  await t.notThrowsAsync(rotation.query(`UPDATE provider_keys SET key_digest = key_digest WHERE user_id = ${id}`))
  await rotation.query('ROLLBACK')
  t.is((await activation).status, 200)
})

test('an administrator replaces the provider key of a user, who is notified; a dry run and a stale etag change nothing', async t => {
  const owner = await institution()
  const user = owner.username
  const { etag } = (await api.getUser({ user, omitKeys: true })).user!
  const dry = await api.rotateProviderKey({ user, etag, validateOnly: true })
  t.not(dry.user!.record!.providerActivationKey!.activationkey, owner.providerKey)
  t.is(await keyOf(owner.token), owner.providerKey)
  t.is(await reasonOf(api.rotateProviderKey({ user, etag: 'stale' })), 'STALE_ETAG')
  t.is(await reasonOf(api.rotateProviderKey({ user: (await service.signUp('ROLE_CLIENT')).username })), 'WRONG_STATE')
  t.is(await keyOf(owner.token), owner.providerKey)
  const rotated = await api.rotateProviderKey({ user, etag })
  const key = rotated.user!.record!.providerActivationKey!.activationkey
  t.is(await keyOf(owner.token), key)
  t.not(key, owner.providerKey)
  await mailbox.nextEmail(owner.email)
  const admin = idOf(await service.adminToken())
  t.like(await eventsOf(idOf(owner.token)), { length: 1, 0: { actor_id: admin } })
  // Sessions of users have no access here.
  t.is(await reasonOf(openAdministration(t, service, owner.token).rotateProviderKey({ user })), 'INVALID_TOKEN')
})

test('a provider key ends when its owner changes the organization, and the owner, still active, gets another key and an e-mail', async t => {
  const file = (user: string, fields: object) => importing({ form: { username: user }, ...fields })
  const changes: Record<string, (user: string, organization: number) => Promise<unknown>> = {
    SetOrganization: (user, id) => api.setOrganization({ user, organization: `#${id}` }),
    ActivateUser: (user, id) => api.activateUser({ user, organization: `#${id}` }),
    import: (user, organizationId) => file(user, { organizationId }),
  }
  for (const [by, change] of Object.entries(changes)) {
    const owner = await institution()
    const [late, after] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
    const { id } = await service.organization()
    await change(owner.username, id)
    const key = await keyOf(await service.login(owner.username))
    t.regex(key, /^[\da-f-]{36}$/, by)
    t.not(key, owner.providerKey, by)
    refused(t, await use(late, owner.providerKey), 422, 'ACTIVATION_REFUSED')
    t.is((await use(after, key)).status, 200, by)
    const { partnerOrganization } = (await service.request('GET', '/users/me', { token: after.token })).json
    t.is(partnerOrganization.id, id)
    const { subject, text = '' } = await mailbox.nextEmail(owner.email)
    t.regex(subject ?? '', /chave de ativação/, by)
    t.false(text.includes(key) || text.includes(owner.providerKey))
  }
})

test('a provider key ends with its owner’s deactivation, and doesn’t come back', async t => {
  const owner = await institution()
  // No endpoint deactivates an institution: whatever does, ends the key.
  await ask(service.env.DATABASE_URL!, `UPDATE users SET active = false WHERE username = '${owner.username}'`)
  await api.activateUser({ user: owner.username })
  refused(t, await use(await service.signUp('ROLE_CLIENT'), owner.providerKey), 422, 'ACTIVATION_REFUSED')
})

// Before the concurrent tests, whose locks others wait for.
test.serial('a change of the profile that waited for a new provider key answers with that key', async t => {
  const { token } = await institution()
  const { database, users, administeredUsers } = service.registry
  const [id, former] = [idOf(token), await keyOf(token)]
  let answer: ReturnType<typeof service.request> | undefined
  await database.transact(async transaction => {
    const owner = (await administeredUsers.lock(id, transaction))!
    await users.rotateProviderKey(owner, { address: '192.0.2.1', locale: 'en' }, transaction)
    answer = service.request('PATCH', '/users/me', { token, body: { record: { nickname: owner.nickname } } })
    await endsOrWaits(database, answer)
  })
  const { status, json } = (await answer)!
  t.is(status, 200)
  t.not(json.providerActivationKey.activationkey, former)
  t.is(json.providerActivationKey.activationkey, await keyOf(token))
})

test('no table has a provider key in the clear', async t => {
  const { token } = await institution()
  const key = (await rotate(token)).json.providerActivationKey.activationkey
  const { database } = service.registry
  const found = await database.run<{
    text: string
  }>(sql`SELECT to_jsonb(k)::text AS text FROM provider_keys k UNION ALL SELECT to_jsonb(e)::text FROM audit_staged e
        UNION ALL SELECT to_jsonb(e)::text FROM audit_events e UNION ALL SELECT to_jsonb(m)::text FROM emails m`)
  t.true(found.length > 0)
  t.false(found.some(({ text }) => text.includes(key)))
})
