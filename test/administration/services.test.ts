/** Services: their identities, scopes and keys, and what they may do in Administration. */
import { randomInt, randomUUID } from 'node:crypto'
import { type DescMessage, type DescMethodUnary, type MessageInitShape, toJsonString } from '@bufbuild/protobuf'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { Administration, ServiceSchema } from '../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import {
  type AdministrationClient,
  allPages,
  openAdministration,
  openSignedIn,
  reasonOf,
  signedInForFile,
  wrongFieldsOf,
} from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { grpcForFile, grpcOf, refusalOf } from '../_helpers/grpc.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { waitForValue } from '../_helpers/wait.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const admin = signedInForFile(service)
const client = grpcForFile(service)

const scopes = [Scope.USERS_READ]
const newName = () => `maquina-${randomUUID().slice(0, 8)}`

/** The outcome of a call: the reason and the invalid fields. */
const outcome = async (call: Promise<unknown>) => [await reasonOf(call), ...(await wrongFieldsOf(call))].join(' ')

/** The outcome of `GetUser` with a key. */
const use = (key: string) =>
  client.call(Users.method.getUser, { username: 'admin' }, { token: key }).then(
    () => 'OK',
    error => refusalOf(error).info?.reason,
  )

const events = async (name: string) =>
  (await service.registry.audit.list({ action: 'service.*', limit: 1000 }))
    .filter(({ object }) => object === `service:${name}`)
    .map(({ action, actor }) => `${action} ${actor}`)

test('a new service gets a key with the access that its scopes grant, and is listed without the key', async t => {
  const name = newName()
  const created = await admin.createService({ name, scopes: [...scopes, Scope.TOKENS_VERIFY, Scope.USERS_READ] })
  t.regex(created.key, /^authsvc_[\w-]{43}$/)
  const { keys, createTime, ...rest } = created.service!
  t.deepEqual([rest.name, rest.scopes], [name, [Scope.USERS_READ, Scope.TOKENS_VERIFY]])
  t.is(keys.length, 1)
  t.true(created.key.startsWith(keys[0]!.beginning) && keys[0]!.beginning.length < 20)
  t.is(keys[0]!.lastUsed, '')
  const life = timestampDate(keys[0]!.expireTime!).getTime() - timestampDate(createTime!).getTime()
  t.true(Math.abs(life / 86_400_000 - 365) < 0.1)
  t.is(await use(created.key), 'OK')
  const { service: shown } = await admin.getService({ name })
  t.is(shown!.keys[0]!.lastUsed, new Date().toISOString().slice(0, 10))
  t.false(toJsonString(ServiceSchema, shown!).includes(created.key))
  const expireTime = timestampFromDate(new Date(Date.now() + 90 * 86_400_000))
  t.deepEqual((await admin.createServiceKey({ name, expireTime })).service!.keys[1]!.expireTime, expireTime)
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user'])
})

test('service names are unique, and every invalid field is listed', async t => {
  const name = newName()
  await admin.createService({ name, scopes })
  t.is(await outcome(admin.createService({ name, scopes })), 'NAME_TAKEN')
  t.is(await outcome(admin.createService({ name, scopes, validateOnly: true })), 'NAME_TAKEN')
  for (const wrong of ['', 'A', 'a b', 'ä', 'x'.repeat(64), 'a_b', `${newName()}\n`]) {
    t.is(await outcome(admin.createService({ name: wrong, scopes })), 'INVALID_ARGUMENT name', wrong)
  }
  // Names of the registry in tokens: the client and the audience.
  for (const reserved of ['registry', 'work-packages']) {
    t.is(await outcome(admin.createService({ name: reserved, scopes })), 'INVALID_ARGUMENT name', reserved)
    const rename = { name, form: { name: reserved }, updateMask: { paths: ['name'] } }
    t.is(await outcome(admin.updateService(rename)), 'INVALID_ARGUMENT form.name', reserved)
  }
  const past = timestampFromDate(new Date(Date.now() - 1000))
  t.is(await outcome(admin.createService({ expireTime: past })), 'INVALID_ARGUMENT expire_time name scopes')
  t.is(await outcome(admin.createService({ name: newName(), scopes: [0] })), 'INVALID_ARGUMENT scopes')
  t.is(await outcome(admin.createService({ name: newName(), scopes: [99 as Scope] })), 'INVALID_ARGUMENT scopes')
  const never = { seconds: 2n ** 60n, nanos: 0 }
  t.is(await outcome(admin.createServiceKey({ name, expireTime: never })), 'INVALID_ARGUMENT expire_time')
  t.is(await outcome(admin.createServiceKey({})), 'INVALID_ARGUMENT name')
  t.is(await outcome(admin.createServiceKey({ name: newName() })), 'RECORD_NOT_FOUND')
  t.is(await outcome(admin.createServiceKey({ name: 'No Such\u0000' })), 'RECORD_NOT_FOUND')
  t.is(await outcome(admin.deleteServiceKey({ name })), 'INVALID_ARGUMENT id')
  t.is(await outcome(admin.deleteServiceKey({ name, id: 2 ** 31 - 1 })), 'RECORD_NOT_FOUND')
})

test('of concurrent creations of a service with one name, one succeeds', async t => {
  const name = newName()
  const outcomes = await Promise.all(Array.from({ length: 8 }, () => outcome(admin.createService({ name, scopes }))))
  t.deepEqual(outcomes.sort(), [...Array<string>(7).fill('NAME_TAKEN'), 'none'])
})

test('keys rotate without downtime: a service has two keys until the first is removed', async t => {
  const [name, other] = [newName(), newName()]
  const { key: first } = await admin.createService({ name, scopes })
  const { key: second, service: both } = await admin.createServiceKey({ name })
  t.deepEqual([await use(first), await use(second)], ['OK', 'OK'])
  const [one, two] = both!.keys
  t.deepEqual([one!.beginning, two!.beginning], [first.slice(0, 12), second.slice(0, 12)])
  const { service: left } = await admin.deleteServiceKey({ name, id: one!.id })
  t.like(left!.keys, { length: 1, 0: { id: two!.id } })
  await waitForValue(() => use(first), 'INVALID_TOKEN')
  // A key can't be deleted through another service.
  await admin.createService({ name: other, scopes })
  t.is(await outcome(admin.deleteServiceKey({ name: other, id: two!.id })), 'RECORD_NOT_FOUND')
  t.is(await use(second), 'OK')
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user', 'service.delete-key user'])
})

test('validate_only stores nothing and returns no key', async t => {
  const name = newName()
  t.is((await admin.createService({ name, scopes, validateOnly: true })).key, '')
  t.is(await outcome(admin.createServiceKey({ name })), 'RECORD_NOT_FOUND')
  const { key, service: made } = await admin.createService({ name, scopes })
  t.is((await admin.createServiceKey({ name, validateOnly: true })).key, '')
  await admin.deleteServiceKey({ name, id: made!.keys[0]!.id, validateOnly: true })
  await admin.deleteService({ name, confirm: name, validateOnly: true })
  const { service: after } = await admin.createServiceKey({ name })
  t.is(after?.keys.length, 2)
  t.is(await use(key), 'OK')
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user'])
})

test('deleting a service needs its name as confirmation', async t => {
  const name = newName()
  await admin.createService({ name, scopes })
  for (const wrong of [{}, { confirm: 'another' }, { confirm: '' }, { confirm: name.slice(0, -1) }])
    t.is(await outcome(admin.deleteService({ name, ...wrong })), 'CONFIRMATION_NEEDED confirm')
  await admin.deleteService({ name, confirm: name })
  t.is(await outcome(admin.deleteService({ name, confirm: name })), 'RECORD_NOT_FOUND')
  t.deepEqual(await events(name), ['service.add user', 'service.delete user'])
})

test('services are listed by name, each once over all pages', async t => {
  const names = [0, 1, 2, 3, 4].map(index => `paged-${index}`)
  for (const name of names) await admin.createService({ name, scopes })
  const found = await allPages(
    pageToken => admin.listServices({ pageSize: 2, pageToken }),
    page => page.services.map(({ name }) => name),
  )
  t.is(new Set(found).size, found.length)
  t.deepEqual(
    found.filter(name => name.startsWith('paged-')),
    names,
  )
})

// Services that call Administration with their keys: what their scopes permit, and what stays hidden from them.

const textOf = (call: Promise<unknown>) => call.then(String, (error: ConnectError) => error.rawMessage)

test('a service with administration.read reads everything that administrators read, without keys', async t => {
  const { id, activationkey } = await service.organization()
  const { username, providerKey } = await service.institution({ activationkey })
  const [{ id: email } = { id: '0' }] = await ask(
    service.env.DATABASE_URL!,
    `INSERT INTO emails (kind, parameters, locale, next_attempt_at) VALUES ('password-changed', '{"userId": 1}', 'en', NULL) RETURNING id`,
  )
  const name = newName()
  const key = await serviceKey(service, ['administration.read'], name)
  const requests: Record<string, object> = {
    getSession: {},
    listUsers: { pageSize: 1000 },
    getUser: { user: username },
    explainUser: { user: username },
    listLockouts: {},
    listOrganizations: { pageSize: 1000 },
    getOrganization: { organization: `#${id}` },
    listQuestions: {},
    getQuestion: { question: '#1' },
    listUnmatchedQuestions: {},
    listServices: {},
    getService: { name },
    listSigningKeys: {},
    getSigningKey: { kid: await service.registry.signingKeys.signer() },
    getIssuer: {},
    listEmails: {},
    getEmail: { id: BigInt(String(email)) },
    listAuditEvents: {},
    getAuditEvent: { id: 1n },
    verifyAuditLog: {},
    getMigrations: {},
    getConfiguration: {},
    diagnose: {},
  }
  const client = grpcOf(t, formatAddress(service.service.addresses.admin!))
  const answers: Record<string, string> = {}
  for (const [rpc, request] of Object.entries(requests)) {
    const method = (Administration.methods as readonly DescMethodUnary[]).find(each => each.localName === rpc)!
    const answer = await client.call(method, request as MessageInitShape<DescMessage>, { token: key })
    answers[rpc] = toJsonString(method.output, answer)
  }
  t.true(answers.getUser!.includes(username) && answers.getOrganization!.includes(`"id":${id}`))
  for (const [rpc, answer] of Object.entries(answers)) {
    for (const secret of [activationkey, providerKey, key]) t.false(answer.includes(secret!), rpc)
  }
  t.deepEqual(JSON.parse(answers.getSession!), { actor: `service:${name}`, scopes: ['SCOPE_ADMINISTRATION_READ'] })
  // A key that isn't shown causes no event.
  const events = await service.registry.audit.list({ action: '*.show-key', limit: 10 })
  t.false(events.some(({ actor }) => actor === `service:${name}`))
})

test('a service with organizations.write creates and edits organizations as the actor, without seeing keys', async t => {
  const name = newName()
  const api = openAdministration(t, service, await serviceKey(service, ['organizations.write'], name))
  const { organization: made } = await api.createOrganization({ form: { name: 'Escola da Máquina' } })
  const organization = `#${made!.record!.id}`
  const change = { organization, form: { phone: '7' }, updateMask: { paths: ['phone'] } }
  const { organization: edited } = await api.updateOrganization({ ...change, etag: made!.etag })
  t.is(edited!.record!.phone, '7')
  const { organization: shown } = await api.getOrganization({ organization })
  for (const each of [made, edited, shown]) t.is(each!.record!.activationkey, undefined)
  t.is((await api.listOrganizations({ text: 'Escola da Máquina' })).organizations.length, 1)
  t.truthy((await admin.getOrganization({ organization })).organization!.record!.activationkey)
  const all = await service.registry.audit.list({ action: 'organization.*', limit: 100 })
  const events = all
    .filter(({ actor }) => actor === `service:${name}`)
    .map(({ action, object, outcome, actor_id, address }) => [action, object, outcome, actor_id, address])
  const rest = [`organization:${made!.record!.id}`, 'ok', null, '127.0.0.1']
  t.deepEqual(events, [
    ['organization.add', ...rest],
    ['organization.edit', ...rest],
  ])
})

test('a service sets no e-mail address of an organization and no INEP code of an existing one, whatever else it changes', async t => {
  const api = openAdministration(t, service, await serviceKey(service, ['organizations.write'], newName()))
  const email = `${randomUUID()}@example.org`
  const form = { name: `Escola ${randomUUID()}` }
  const create = (validateOnly: boolean) => api.createOrganization({ form: { ...form, email }, validateOnly })
  for (const validateOnly of [true, false]) t.is(await reasonOf(create(validateOnly)), 'ACCESS_DENIED')
  t.regex(await textOf(create(false)), /e-mail address.*sign in as an administrator/)
  t.deepEqual((await admin.listOrganizations({ text: form.name })).organizations, [])

  const inepCode = String(randomInt(10_000_000, 99_999_999))
  const { organization: made } = await api.createOrganization({ form: { ...form, inepCode, email: '' } })
  const organization = `#${made!.record!.id}`
  await admin.updateOrganization({ organization, form: { email }, updateMask: { paths: ['email'] } })
  const { organization: bare } = await api.createOrganization({ form: { name: `Escola ${randomUUID()}` } })
  const before = (await admin.getOrganization({ organization })).organization!.record
  for (const [field, value, to = organization] of [
    ['email', 'ladra@example.org'],
    ['email', ''],
    ['email', email.toUpperCase()],
    ['inep_code', '99999999'],
    ['inep_code', ''],
    ['email', 'ladra@example.org', `#${bare!.record!.id}`],
    ['inep_code', '99999999', `#${bare!.record!.id}`],
  ] as const) {
    const change = {
      organization: to,
      form: { phone: '1', [field === 'email' ? 'email' : 'inepCode']: value },
      updateMask: { paths: ['phone', field] },
    }
    for (const validateOnly of [true, false])
      t.is(await reasonOf(api.updateOrganization({ ...change, validateOnly })), 'ACCESS_DENIED', `${field} ${value}`)
    t.regex(await textOf(api.updateOrganization(change)), field === 'email' ? /e-mail address/ : /INEP code/)
  }
  t.deepEqual((await admin.getOrganization({ organization })).organization!.record, before)
  // The values of now are no change.
  const all = { organization, form: { email, inepCode, phone: '7' } }
  const { changed } = await api.updateOrganization({ ...all, updateMask: { paths: ['email', 'inep_code', 'phone'] } })
  t.true(changed)
})

test('the refusal of a service names the missing scope, or says that no service has access', async t => {
  const name = newName()
  const api = openAdministration(t, service, await serviceKey(service, ['administration.read'], name))
  const missing = `The service ${name} may not do this: it needs the scope organizations.write.`
  t.is(await textOf(api.createOrganization({})), missing)
  t.is(await textOf(api.deleteUser({ user: 'admin' })), 'No service may do this: sign in as an administrator.')
})

for (const [what, change, reason] of [
  ['loses its scope', `UPDATE services SET scopes = '{administration.read}'`, 'ACCESS_DENIED'],
  ['is deleted', 'DELETE FROM services', 'INVALID_TOKEN'],
] as const) {
  test(`a service that ${what} can’t change anything, even while its key is cached`, async t => {
    const name = newName()
    const api = openAdministration(t, service, await serviceKey(service, ['organizations.write'], name))
    await api.createOrganization({ form: { name: `${name} before` } })
    await ask(service.env.DATABASE_URL!, `${change} WHERE name = '${name}'`)
    t.is(await reasonOf(api.createOrganization({ form: { name: `${name} after` } })), reason)
    t.deepEqual((await admin.listOrganizations({ text: `${name} after` })).organizations, [])
  })
}

test('users that a service reads through Administration count against its limit; administrators have no limit', async t => {
  const reads: Record<string, (client: AdministrationClient) => Promise<unknown>> = {
    listUsers: client => client.listUsers({ pageSize: 1 }),
    getUser: client => client.getUser({ user: 'admin' }),
    explainUser: client => client.explainUser({ user: 'admin' }),
  }
  for (const [rpc, read] of Object.entries(reads)) {
    // 10 users at once, which no other call has used.
    const own = await startTestService(t, { AUTH_ADMIN_ADDRESS: '127.0.0.1:0', AUTH_LIMIT_FACTOR: '0.001' })
    const reasons = async (client: AdministrationClient) =>
      [...new Set(await Promise.all(Array.from({ length: 50 }, () => reasonOf(read(client)))))].sort()
    const api = openAdministration(t, own, await serviceKey(own, ['administration.read']))
    t.deepEqual(await reasons(api), ['TOO_MANY_ATTEMPTS', 'none'], rpc)
    t.deepEqual(await reasons(await openSignedIn(t, own)), ['none'], rpc)
    t.is(await reasonOf(api.listOrganizations({})), 'none')
  }
})

test('an update of name and scopes of a service takes effect, is recorded, and respects the etag', async t => {
  const [name, next] = [newName(), newName()]
  const { key, service: created } = await admin.createService({ name, scopes })
  const api = openAdministration(t, service, key)
  t.is(await reasonOf(api.getSession({})), 'ACCESS_DENIED')
  const form = { name: next, scopes: [Scope.ADMINISTRATION_READ] }
  const request = { name, form, updateMask: { paths: ['name', 'scopes'] } }
  t.true((await admin.updateService({ ...request, validateOnly: true })).changed)
  t.like((await admin.getService({ name })).service, { name, scopes, etag: created!.etag })
  const { service: edited, changed } = await admin.updateService({ ...request, etag: created!.etag })
  t.true(changed)
  t.deepEqual([edited!.name, edited!.scopes], [next, form.scopes])
  t.is(edited!.keys[0]!.id, created!.keys[0]!.id)
  t.not(edited!.etag, created!.etag)
  await waitForValue(() => reasonOf(api.getSession({})), 'none')
  t.deepEqual((await admin.getService({ name: next })).service!.etag, edited!.etag)
  t.is(await reasonOf(admin.getService({ name })), 'RECORD_NOT_FOUND')
  t.false((await admin.updateService({ ...request, name: next })).changed)
  t.is(await reasonOf(admin.updateService({ ...request, name: next, etag: created!.etag })), 'STALE_ETAG')
  const all = await service.registry.audit.list({ action: 'service.edit', limit: 100 })
  const recorded = all.filter(({ object }) => object === `service:${name}` || object === `service:${next}`)
  t.deepEqual(
    recorded.map(({ object, reason }) => [object, reason]),
    [[`service:${name}`, `name ${next}; scopes administration.read`]],
  )

  const { service: taken } = await admin.createService({ name: newName(), scopes })
  const edit = (form: { name?: string; scopes?: Scope[] }) =>
    reasonOf(admin.updateService({ name: next, form, updateMask: { paths: Object.keys(form) } }))
  t.is(await edit({ name: taken!.name }), 'NAME_TAKEN')
  for (const wrong of [{ name: 'Não' }, { scopes: [] }, { scopes: [99 as Scope] }, {}])
    t.is(await edit(wrong), 'INVALID_ARGUMENT')
  t.is(await reasonOf(admin.updateService({ ...request, name: newName() })), 'RECORD_NOT_FOUND')
})
