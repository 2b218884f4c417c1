/** What an institution does: it reads and changes the members of its organization, and replaces its provider key. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import pg from 'pg'
import { ImportKind } from '../../proto/gen/auth/v1/administration_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { allPages, openAdministration, reasonOf, signedInForFile } from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { grpcForFile } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { endsOrWaits, lockWaiters } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { enterByKey, updatePassword } from '../_helpers/recovery.js'
import { openSchool } from '../_helpers/school.js'
import { password, type SignedUp, serviceForFile } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
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
  const { token } = school.institution
  const members = [school.institution, await school.member(), await school.member()]
  const records = members.map(
    async ({ username }) => (await service.request('GET', `/users/${encodeURIComponent(username)}`, { token })).json,
  )
  const { json } = await list(token)
  t.deepEqual(
    json.members.map(({ user }: { user: object }) => user),
    await Promise.all(records),
  )
  t.falsy(json.nextPageToken)
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
  const seen = await allPages(
    async pageToken => (await list(token, { pageSize: '2', ...(pageToken && { pageToken }) })).json,
    page => [namesIn(page)],
  )
  t.is(seen.map(({ length }) => length).join(), '2,2,1')
  t.is(new Set(seen.flat()).size, 5)
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
})

test('a search finds members by the beginnings of words, in the own organization only, and not by the e-mail address', async t => {
  const [school, other] = [await openSchool(service), await openSchool(service)]
  const [word, part] = [`Jatobá${randomUUID().slice(0, 8)}`, randomUUID().replaceAll('-', '')]
  const { username } = await school.member({ city: word, email: `${part}@example.org` })
  await school.member({ city: 'Palmas' })
  await other.member({ city: word })
  const find = async (text: string) => namesIn((await list(school.institution.token, { text })).json)
  t.deepEqual(await find(word.slice(0, -1).toLowerCase().replace('á', 'a')), [username])
  for (const text of [part, `${part} ${username}`]) t.deepEqual(await find(text), [])
  // Administrators do find it.
  t.is((await api.listUsers({ text: part })).users.length, 1)
})

test('a deactivated member is inactive and in no organization, and can activate again with a key', async t => {
  const school = await openSchool(service)
  const { institution } = school
  const member = await school.member()
  const answer = await deactivate(institution.token, member.username)
  t.is(`${answer.status}${answer.text}`, '200')
  const token = await service.login(member.username)
  t.like(await me(token), { active: 0, partnerOrganization: undefined })
  t.false(namesIn((await list(institution.token)).json).includes(member.username))
  t.is((await use({ ...member, token }, institution.providerKey)).status, 200)
  t.like(await me(token), { active: 1, partnerOrganization: { id: school.id } })
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

test('the institution of an inactive organization neither lists, reads nor deactivates members, and does again when it is active', async t => {
  const school = await openSchool(service)
  const { token, username: own } = school.institution
  const { username } = await school.member()
  const read = (name: string) => service.request('GET', `/users/${encodeURIComponent(name)}`, { token })
  const calls = [() => list(token), () => read(username), () => deactivate(token, username)]
  await api.deactivateOrganization({ organization: `#${school.id}` })
  for (const call of calls) refused(t, await call(), 403, 'ACCESS_DENIED')
  t.is((await read(own)).json.active, 1)
  t.is((await me(token)).username, own)
  await api.activateOrganization({ organization: `#${school.id}` })
  for (const call of calls) t.is((await call()).status, 200)
})

// Rotating the provider key of an institution, by its owner and by administrators.

const rotate = (token: string) => service.request('POST', '/users/me/providerkey', { token, once: true })
const keyOf = async (token: string) => (await me(token)).providerActivationKey?.activationkey
/** An activation by a provider key, or by that of an organization. */
const use = ({ username, token }: SignedUp, activationkey: string) =>
  service.request('POST', '/users/activate', { token, query: { username, activationkey }, once: true })
const eventsOf = (subjectId: number) =>
  service.registry.audit.list({ action: 'user.rotate-provider-key', subjectId, limit: 10 })

/** Imports a row of users, which may move a user to another organization. */
async function importing(row: object) {
  const sourceDigest = randomUUID().replaceAll('-', '').repeat(2)
  const source = { kind: ImportKind.USERS, sourceDigest, changeAccounts: ['organization'] }
  const { import: started } = await api.startImport(source)
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
  const [before, after] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  t.is((await use(before, owner.providerKey)).status, 200)
  const answer = await rotate(owner.token)
  t.is(answer.status, 200, answer.text)
  const { providerActivationKey: key, username } = answer.json
  t.deepEqual([username, key.usersid], [owner.username, idOf(owner.token)])
  t.not(key.activationkey, owner.providerKey)
  t.is(await keyOf(owner.token), key.activationkey)
  refused(t, await use(after, owner.providerKey), 422, 'ACTIVATION_REFUSED')
  t.is((await use(after, key.activationkey)).status, 200)
  t.is((await me(before.token)).active, 1)
  refused(t, await rotate((await service.signUp('ROLE_INSTITUTION')).token), 409, 'WRONG_STATE')
  // No table has it in the clear.
  for (const table of ['provider_keys', 'audit_staged', 'audit_events', 'emails'])
    t.deepEqual(
      await ask(service.env.DATABASE_URL!, `SELECT FROM ${table} r WHERE r::text LIKE '%${key.activationkey}%'`),
      [],
    )
})

test('the owner is notified of a new provider key by e-mail, which doesn’t hold it, and the audit log names who did it', async t => {
  const owner = await institution()
  const { user } = await client.call(Users.method.rotateProviderKey, {}, { token: owner.token })
  const key = user!.providerActivationKey!.activationkey!
  const { subject, text = '' } = await mailbox.nextEmail(owner.email)
  t.regex(subject ?? '', /chave de provedor/)
  t.true(text.includes('127.0.0.1'), text)
  t.false(text.includes(key) || text.includes(owner.providerKey))
  const id = idOf(owner.token)
  const [event, ...others] = await eventsOf(id)
  t.like(event, { actor: 'user', actor_id: id, outcome: 'ok' })
  t.is(others.length, 0)
})

test('of rotations at once each caller gets another key, and the stored key is the one of the last', async t => {
  const { token } = await institution()
  // They wait for each other: on a busy machine one may be refused for that, without an effect, and is sent again.
  const ask = () => service.request('POST', '/users/me/providerkey', { token })
  const answers = await Promise.all(Array.from({ length: 8 }, ask))
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
    const late = [() => rotate(other.token), () => use(second, other.providerKey)]
    t.deepEqual(await stopEvents(t, service, late), [200, 422])
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
  t.is(await reasonOf(api.rotateProviderKey({ user, etag: 'stale' })), 'STALE_ETAG')
  t.is(await reasonOf(api.rotateProviderKey({ user: (await service.signUp('ROLE_CLIENT')).username })), 'WRONG_STATE')
  t.is(await keyOf(owner.token), owner.providerKey)
  const rotated = await api.rotateProviderKey({ user, etag })
  const key = rotated.user!.record!.providerActivationKey!.activationkey
  t.is(await keyOf(owner.token), key)
  t.not(key, owner.providerKey)
  await mailbox.nextEmail(owner.email)
  t.like(await eventsOf(idOf(owner.token)), { length: 1, 0: { actor_id: idOf(await service.adminToken()) } })
})

test('an institution that gets another organization, still active, gets another provider key and an e-mail', async t => {
  const changes: Record<string, (user: string, organization: number) => Promise<unknown>> = {
    SetOrganization: (user, id) => api.setOrganization({ user, organization: `#${id}` }),
    ActivateUser: (user, id) => api.activateUser({ user, organization: `#${id}` }),
    import: (username, organizationId) => importing({ form: { username }, organizationId }),
  }
  for (const [by, change] of Object.entries(changes)) {
    const owner = await institution()
    const client = await service.signUp('ROLE_CLIENT')
    const { id } = await service.organization()
    await change(owner.username, id)
    const key = await keyOf(await service.login(owner.username))
    refused(t, await use(client, owner.providerKey), 422, 'ACTIVATION_REFUSED')
    t.is((await use(client, key)).status, 200, by)
    t.is((await me(client.token)).partnerOrganization.id, id)
    const { subject, text = '' } = await mailbox.nextEmail(owner.email)
    t.regex(subject ?? '', /chave de provedor/, by)
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

/** An institution whose organization may issue keys, and a client of it. */
async function issuingSchool() {
  const school = await openSchool(service)
  await api.updateOrganization({
    organization: `#${school.id}`,
    form: { mayIssueKeys: true },
    updateMask: { paths: ['may_issue_keys'] },
  })
  return { ...school, pupil: await school.member() }
}

const issue = (token: string, username: string, secret = password) =>
  service.request('POST', '/users/me/members/recoverykey', { token, body: { username, password: secret } })

test('a teacher issues a key to a client, whose events name the teacher; until it is used it ends nothing', async t => {
  const { institution, pupil } = await issuingSchool()
  const { status, json } = await issue(institution.token, pupil.username)
  t.is(status, 200)
  t.deepEqual(Object.keys(json).sort(), ['expireTime', 'key'])
  t.true(Math.abs(Date.parse(json.expireTime) - Date.now() - 86_400_000) < 60_000)
  t.is((await me(pupil.token)).username, pupil.username)
  const { events } = (await service.request('GET', '/users/me/events', { token: pupil.token })).json
  t.like(
    events.find(({ action }: { action: string }) => action === 'user.issue-key'),
    {
      by: 'your organization',
      member: institution.username,
      address: undefined,
    },
  )
  const entered = await enterByKey(service, pupil.username, json.key)
  t.is(entered.status, 200)
  t.is((await updatePassword(service, entered.text, 'cavalo novo do brejo')).status, 200)
  t.is((await service.login(pupil.username, 'cavalo novo do brejo')).split('.').length, 3)
})

test('a teacher issues no key without its password, which is an attempt, nor for a day after a session has set it', async t => {
  const { institution, pupil } = await issuingSchool()
  refused(t, await issue(institution.token, pupil.username, 'errada-errada'), 404, 'INVALID_CREDENTIALS')
  t.is(
    (await service.request('POST', '/users/me/members/recoverykey', { token: institution.token, body: {} })).status,
    400,
  )
  t.is((await updatePassword(service, institution.token, 'vaca nova do brejo')).status, 200)
  const token = await service.login(institution.username, 'vaca nova do brejo')
  refused(t, await issue(token, pupil.username, 'vaca nova do brejo'), 409, 'WRONG_STATE')
})

test('a teacher issues keys only where administrators permit it, and to active clients of the own organization without a proved address', async t => {
  const { institution, pupil, member, id } = await issuingSchool()
  const permit = (mayIssueKeys: boolean) =>
    api.updateOrganization({
      organization: `#${id}`,
      form: { mayIssueKeys },
      updateMask: { paths: ['may_issue_keys'] },
    })
  t.false((await permit(false)).organization!.mayIssueKeys)
  refused(t, await issue(institution.token, pupil.username), 409, 'WRONG_STATE')
  t.true((await permit(true)).organization!.mayIssueKeys)

  const other = await issuingSchool()
  refused(t, await issue(institution.token, other.pupil.username), 404, 'USER_NOT_FOUND')
  refused(t, await issue(institution.token, institution.username), 404, 'USER_NOT_FOUND')
  refused(t, await issue(institution.token, randomUUID()), 404, 'USER_NOT_FOUND')
  const [suspended, proved, desk, waiting] = [
    await member(),
    await member(),
    await member(),
    await service.signUp('ROLE_CLIENT'),
  ]
  await api.suspendUser({ user: suspended.username })
  await ask(
    service.env.DATABASE_URL!,
    `UPDATE users SET email = 'aluno@example.org', email_proved = true WHERE id = ${idOf(proved.token)}`,
  )
  await api.grantDesk({ user: desk.username })
  await api.setOrganization({ user: waiting.username, organization: `#${id}` })
  for (const { username } of [suspended, proved, desk, waiting])
    refused(t, await issue(institution.token, username), 409, 'WRONG_STATE')
  t.is((await issue(institution.token, pupil.username)).status, 200)
})

test('a teacher issues 40 keys in a day; an administrator ends the limit', async t => {
  const { institution, pupil } = await issuingSchool()
  for (let times = 0; times < 40; times++) t.is((await issue(institution.token, pupil.username)).status, 200)
  refused(t, await issue(institution.token, pupil.username), 429, 'TOO_MANY_ATTEMPTS')
  const { obstacles } = await api.explainUser({ user: institution.username })
  t.true(obstacles.some(({ prevents }) => prevents === 'issue keys'))
  await api.unlockUser({ user: institution.username })
  // A process remembers a refusal for a second.
  await waitForValue(async () => (await issue(institution.token, pupil.username)).status, 200)
})

test('no service lets the users of an organization issue keys', async t => {
  const { id } = await service.organization()
  const key = await serviceKey(service, ['organizations.write'])
  const machine = openAdministration({ teardown: t.teardown }, service, key)
  const form = { mayIssueKeys: true }
  const edit = machine.updateOrganization({ organization: `#${id}`, form, updateMask: { paths: ['may_issue_keys'] } })
  t.is(await reasonOf(edit), 'ACCESS_DENIED')
  t.is(await reasonOf(machine.createOrganization({ form: { name: 'Escola', ...form } })), 'ACCESS_DENIED')
})
