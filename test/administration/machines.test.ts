/** Services that call Administration with their keys: what their scopes permit, and what stays hidden from them. */
import { randomInt, randomUUID } from 'node:crypto'
import { type DescMessage, type DescMethodUnary, type MessageInitShape, toJsonString } from '@bufbuild/protobuf'
import type { ConnectError } from '@connectrpc/connect'
import test from 'ava'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Scope } from '../../proto/gen/auth/v1/scopes_pb.js'
import { formatAddress } from '../../server/process/settings.js'
import {
  type AdministrationClient,
  openAdministration,
  openSignedIn,
  reasonOf,
  signedInForFile,
} from '../_helpers/administration.js'
import { ask } from '../_helpers/database.js'
import { openGrpc } from '../_helpers/grpc.js'
import { serviceForFile, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'

const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0' }))
const admin = signedInForFile(service)

const newName = () => `maquina-${randomUUID().slice(0, 8)}`

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
  const textOf = (call: Promise<unknown>) => call.then(String, (error: ConnectError) => error.rawMessage)
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
  const textOf = (call: Promise<unknown>) => call.then(String, (error: ConnectError) => error.rawMessage)
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
