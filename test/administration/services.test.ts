/** Services: their identities, scopes and keys, and what they may do in Administration. */
import { randomInt, randomUUID } from 'node:crypto'
import { type DescMessage, type DescMethodUnary, type MessageInitShape, toJsonString } from '@bufbuild/protobuf'
import { timestampDate, timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
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
import { grpcForFile, openGrpc, refusalOf } from '../_helpers/grpc.js'
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
  const listed = (await admin.listServices({ pageSize: 1000 })).services.find(each => each.name === name)!
  t.is(listed.keys[0]!.lastUsed, new Date().toISOString().slice(0, 10))
  t.false(
    JSON.stringify(listed, (_, value) => (typeof value === 'bigint' ? Number(value) : value)).includes(created.key),
  )
  t.deepEqual(await events(name), ['service.add user'])
})

test('service names are unique, and every invalid field is listed', async t => {
  const name = newName()
  await admin.createService({ name, scopes })
  t.is(await outcome(admin.createService({ name, scopes })), 'NAME_TAKEN')
  t.is(await outcome(admin.createService({ name, scopes, validateOnly: true })), 'NAME_TAKEN')
  for (const wrong of ['', 'A', 'a b', 'ä', 'x'.repeat(64), 'a_b', `${newName()}\n`]) {
    t.is(await outcome(admin.createService({ name: wrong, scopes })), 'INVALID_ARGUMENT name', wrong)
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
  const name = newName()
  const { key: first } = await admin.createService({ name, scopes })
  const { key: second, service: both } = await admin.createServiceKey({ name })
  t.deepEqual([await use(first), await use(second)], ['OK', 'OK'])
  t.deepEqual(
    both?.keys.map(({ beginning }) => beginning),
    [first, second].map(key => key.slice(0, 12)),
  )
  const left = await admin.deleteServiceKey({ name, id: both!.keys[0]!.id })
  t.deepEqual(
    left.service?.keys.map(({ id }) => id),
    [both!.keys[1]!.id],
  )
  await waitForValue(() => use(first), 'INVALID_TOKEN')
  t.is(await use(second), 'OK')
  // A key can't be deleted through another service.
  const other = newName()
  await admin.createService({ name: other, scopes })
  t.is(await outcome(admin.deleteServiceKey({ name: other, id: both!.keys[1]!.id })), 'RECORD_NOT_FOUND')
  t.is(await use(second), 'OK')
  t.deepEqual(await events(name), ['service.add user', 'service.add-key user', 'service.delete-key user'])
})

test('a key expires at the requested time', async t => {
  const name = newName()
  const end = new Date(Date.now() + 90 * 86_400_000)
  const { service: made } = await admin.createService({ name, scopes, expireTime: timestampFromDate(end) })
  t.is(timestampDate(made!.keys[0]!.expireTime!).getTime(), end.getTime())
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

test('a repeated request with the same id gets the same response without the key, which isn’t stored', async t => {
  const request = { name: newName(), scopes, requestId: randomUUID() }
  const first = await admin.createService(request)
  t.is(await use(first.key), 'OK')
  t.deepEqual(await admin.createService(request), { ...first, key: '' })
  const another = { name: request.name, requestId: randomUUID() }
  const second = await admin.createServiceKey(another)
  t.is(await use(second.key), 'OK')
  t.deepEqual(await admin.createServiceKey(another), { ...second, key: '' })
  t.is(second.service!.keys.length, 2)

  const rows = await service.registry.database.run<{ requestId: string; answer: Buffer }>(
    sql`SELECT request_id AS "requestId", answer_sealed AS answer FROM creation_requests`,
  )
  for (const { key, requestId } of [
    { ...first, ...request },
    { ...second, ...another },
  ]) {
    const { answer } = rows.find(row => row.requestId === requestId)!
    const kept = service.registry.masterKey.open(`creation-request ${requestId}`, answer)
    t.false(Buffer.from(kept, 'base64').includes(key))
  }
  t.is(await outcome(admin.createService({ ...request, name: newName() })), 'INVALID_ARGUMENT request_id')
})

test('deleting a service deletes its keys, and needs its name as confirmation', async t => {
  const name = newName()
  const { key } = await admin.createService({ name, scopes })
  t.is(await outcome(admin.deleteService({ name })), 'CONFIRMATION_NEEDED confirm')
  t.is(await outcome(admin.deleteService({ name, confirm: 'another' })), 'CONFIRMATION_NEEDED confirm')
  t.is(await use(key), 'OK')
  await admin.deleteService({ name, confirm: name })
  await waitForValue(() => use(key), 'INVALID_TOKEN')
  t.is(await outcome(admin.deleteService({ name, confirm: name })), 'RECORD_NOT_FOUND')
  t.deepEqual(await events(name), ['service.add user', 'service.delete user'])
})

test('services are listed by name, each once over all pages', async t => {
  for (let index = 0; index < 5; index++) await admin.createService({ name: `paged-${index}`, scopes })
  const found = await allPages(
    pageToken => admin.listServices({ pageSize: 2, pageToken }),
    page => page.services.map(({ name }) => name),
  )
  const paged = found.filter(name => name.startsWith('paged-'))
  t.deepEqual(
    paged,
    [0, 1, 2, 3, 4].map(index => `paged-${index}`),
  )
  t.deepEqual(
    found.filter((name, index) => found.indexOf(name) !== index),
    [],
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
  const client = openGrpc(formatAddress(service.service.addresses.admin!))
  t.teardown(() => client.close())
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
  t.deepEqual(JSON.parse(answers.getSession!), {
    actor: `service:${name}`,
    scopes: ['SCOPE_ADMINISTRATION_READ'],
  })
  // A key that isn't shown causes no event.
  const events = await service.registry.audit.list({ action: '*.show-key', limit: 10 })
  t.deepEqual(
    events.filter(({ actor }) => actor === `service:${name}`),
    [],
  )
})

test('a service with organizations.write creates and edits organizations as the actor, without seeing keys', async t => {
  const name = newName()
  const api = openAdministration(t, service, await serviceKey(service, ['organizations.write'], name))
  const request = { form: { name: 'Escola da Máquina' }, requestId: randomUUID() }
  const { organization } = await api.createOrganization(request)
  const { id, activationkey } = organization!.record!
  t.is(activationkey, undefined)
  t.deepEqual((await api.createOrganization(request)).organization, organization)
  const edited = await api.updateOrganization({
    organization: `#${id}`,
    form: { phone: '7' },
    updateMask: { paths: ['phone'] },
    etag: organization!.etag,
  })
  t.deepEqual([edited.organization!.record!.phone, edited.organization!.record!.activationkey], ['7', undefined])
  t.is((await api.getOrganization({ organization: `#${id}` })).organization!.record!.activationkey, undefined)
  t.is((await api.listOrganizations({ text: 'Escola da Máquina' })).organizations.length, 1)
  t.truthy((await admin.getOrganization({ organization: `#${id}` })).organization!.record!.activationkey)
  const events = await service.registry.audit.list({ action: 'organization.*', limit: 100 })
  t.deepEqual(
    events
      .filter(({ actor }) => actor === `service:${name}`)
      .map(({ action, object, outcome, actor_id, address }) => [action, object, outcome, actor_id, address]),
    ['organization.add', 'organization.edit'].map(action => [action, `organization:${id}`, 'ok', null, '127.0.0.1']),
  )
  t.is(
    await reasonOf(api.deleteOrganization({ organization: `#${id}`, confirm: 'Escola da Máquina' })),
    'ACCESS_DENIED',
  )
  t.is(await reasonOf(api.rotateOrganizationKey({ organization: `#${id}` })), 'ACCESS_DENIED')
  t.is(await reasonOf(api.listUsers({})), 'ACCESS_DENIED')
})

test('a service sets no e-mail address of an organization and no INEP code of an existing one, whatever else it changes', async t => {
  const api = openAdministration(t, service, await serviceKey(service, ['organizations.write'], newName()))
  const email = `${randomUUID()}@example.org`
  const form = { name: `Escola ${randomUUID()}` }
  for (const validateOnly of [true, false]) {
    const create = () => api.createOrganization({ form: { ...form, email }, validateOnly })
    t.is(await reasonOf(create()), 'ACCESS_DENIED')
    t.regex(await textOf(create()), /e-mail address.*sign in as an administrator/)
  }
  t.deepEqual((await admin.listOrganizations({ text: form.name })).organizations, [])

  const inepCode = String(randomInt(10_000_000, 99_999_999))
  const { organization } = await api.createOrganization({ form: { ...form, inepCode, email: '' } })
  const id = organization!.record!.id!
  await admin.updateOrganization({ organization: `#${id}`, form: { email }, updateMask: { paths: ['email'] } })
  const { organization: bare } = await api.createOrganization({ form: { name: `Escola ${randomUUID()}` } })
  const before = (await admin.getOrganization({ organization: `#${id}` })).organization!.record
  for (const [field, value, to = id] of [
    ['email', 'ladra@example.org'],
    ['email', ''],
    ['email', email.toUpperCase()],
    ['inep_code', '99999999'],
    ['inep_code', ''],
    ['email', 'ladra@example.org', bare!.record!.id!],
    ['inep_code', '99999999', bare!.record!.id!],
  ] as const) {
    const change = {
      organization: `#${to}`,
      form: { phone: '1', [field === 'email' ? 'email' : 'inepCode']: value },
      updateMask: { paths: ['phone', field] },
    }
    t.is(
      await reasonOf(api.updateOrganization({ ...change, validateOnly: true })),
      'ACCESS_DENIED',
      `${field} ${value}`,
    )
    t.is(await reasonOf(api.updateOrganization(change)), 'ACCESS_DENIED', `${field} ${value}`)
    t.regex(await textOf(api.updateOrganization(change)), field === 'email' ? /e-mail address/ : /INEP code/)
  }
  t.deepEqual((await admin.getOrganization({ organization: `#${id}` })).organization!.record, before)
  // The values of now are no change.
  const all = { organization: `#${id}`, form: { email, inepCode, phone: '7' } }
  const { changed } = await api.updateOrganization({ ...all, updateMask: { paths: ['email', 'inep_code', 'phone'] } })
  t.true(changed)
  t.is(await reasonOf(api.startImport({ sourceDigest: '0'.repeat(64), kind: 1 })), 'ACCESS_DENIED')
})

test('the refusal of a service names the missing scope, or says that no service has access', async t => {
  const name = newName()
  const api = openAdministration(t, service, await serviceKey(service, ['administration.read'], name))
  t.is(
    await textOf(api.createOrganization({})),
    `The service ${name} may not do this: it needs the scope organizations.write.`,
  )
  t.is(await textOf(api.deleteUser({ user: 'admin' })), 'No service may do this: sign in as an administrator.')
  t.is(await textOf(api.exportUser({ user: 'admin' })), 'No service may do this: sign in as an administrator.')
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

test('an update of name and scopes of a service takes effect at once, is recorded, and respects the etag', async t => {
  const [name, next] = [newName(), newName()]
  const { key, service: created } = await admin.createService({ name, scopes: [Scope.USERS_READ] })
  const api = openAdministration(t, service, key)
  t.is(await reasonOf(api.getSession({})), 'ACCESS_DENIED')
  const scopes = [Scope.ADMINISTRATION_READ]
  const request = { name, form: { name: next, scopes }, updateMask: { paths: ['name', 'scopes'] } }
  t.true((await admin.updateService({ ...request, validateOnly: true })).changed)
  t.is((await admin.getService({ name })).service!.name, name)
  const { service: edited, changed } = await admin.updateService({ ...request, etag: created!.etag })
  t.true(changed)
  t.deepEqual([edited!.name, edited!.scopes], [next, scopes])
  t.not(edited!.etag, created!.etag)
  const { keys, ...shown } = (await admin.getService({ name: next })).service!
  t.deepEqual(shown, { ...shown, name: next, scopes, etag: edited!.etag })
  t.deepEqual(
    keys.map(({ id }) => id),
    created!.keys.map(({ id }) => id),
  )
  t.is(await reasonOf(admin.getService({ name })), 'RECORD_NOT_FOUND')
  t.false((await admin.updateService({ ...request, name: next })).changed)
  t.is(await reasonOf(admin.updateService({ ...request, name: next, etag: created!.etag })), 'STALE_ETAG')
  const [event, ...more] = (await service.registry.audit.list({ action: 'service.edit', limit: 100 })).filter(
    ({ object }) => object === `service:${name}` || object === `service:${next}`,
  )
  t.deepEqual(more, [])
  t.deepEqual([event!.object, event!.reason], [`service:${name}`, `name ${next}; scopes administration.read`])

  const { service: taken } = await admin.createService({ name: newName(), scopes })
  const rename = (to: string) =>
    admin.updateService({ name: next, form: { name: to }, updateMask: { paths: ['name'] } })
  t.is(await reasonOf(rename(taken!.name)), 'NAME_TAKEN')
  t.is(await reasonOf(rename('Não')), 'INVALID_ARGUMENT')
  const scope = (to: Scope[]) =>
    admin.updateService({ name: next, form: { scopes: to }, updateMask: { paths: ['scopes'] } })
  t.is(await reasonOf(scope([])), 'INVALID_ARGUMENT')
  t.is(await reasonOf(scope([99 as Scope])), 'INVALID_ARGUMENT')
  t.is(await reasonOf(admin.updateService({ name: next, form: { scopes } })), 'INVALID_ARGUMENT')
  t.is(await reasonOf(admin.updateService({ ...request, name: newName() })), 'RECORD_NOT_FOUND')
})
