/** Services that call with a key: their read access, forwarded addresses, and invalid keys. */
import { randomBytes, randomInt, randomUUID } from 'node:crypto'
import type { MessageInitShape } from '@bufbuild/protobuf'
import test, { type ExecutionContext } from 'ava'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { newServiceKey } from '../../server/models/service.js'
import { allPages } from '../_helpers/administration.js'
import { recordStatements } from '../_helpers/database.js'
import { type GrpcClient, grpcForFile, grpcOf, refusalOf } from '../_helpers/grpc.js'
import { suspend } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { openSchool } from '../_helpers/school.js'
import { password, serviceForFile, serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'

// Callers on loopback aren't gateways here: their own addresses count.
const service = serviceForFile(() => ({ AUTH_TRUSTED_PROXIES: '192.0.2.99' }))
const client = grpcForFile(service)
let key: string
test.before(async () => {
  key = await serviceKey(service, ['users.read'], 'reader')
})

const { getUser, batchGetUsers, listUsers, login, existsByUsername } = Users.method
const reasonOf = (call: Promise<unknown>): Promise<string | undefined> =>
  call.then(
    () => 'OK',
    error => refusalOf(error).info?.reason,
  )
const byName = (value: string) => ({ user: { case: 'username' as const, value } })
const byId = (value: number) => ({ user: { case: 'id' as const, value } })

function openClient(t: ExecutionContext, { grpc }: TestService): GrpcClient {
  const opened = grpcOf(t, grpc)
  return opened
}

test('a service reads every user by id or username, without activation and provider keys', async t => {
  const organization = await service.organization()
  const { username, token, providerKey } = await service.institution(organization)
  const named = await client.call(getUser, { username: ` ${username.replace(/\D/g, '')} ` }, { token: key })
  t.is(named.user?.username, username)
  t.is(named.user?.partnerOrganization?.id, organization.id)
  const numbered = await client.call(getUser, { id: idOf(token) }, { token: key })
  t.deepEqual(numbered, named)
  const text = JSON.stringify(named)
  t.false(text.includes(providerKey) || text.includes(organization.activationkey), text)
  // The keys are visible to permitted callers.
  t.true(JSON.stringify(await client.call(getUser, { username }, { token })).includes(providerKey))
})

test('over HTTP a service’s key works in the same way', async t => {
  const { username, providerKey } = await service.institution(await service.organization())
  const answer = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: key })
  t.is(answer.json.username, username)
  t.false(answer.text.includes(providerKey))
  refused(t, await service.request('GET', `/users/${randomUUID()}`, { token: key }), 404, 'USER_NOT_FOUND')
})

test('a service may look up by id or username, a user not by id', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  t.is(await reasonOf(client.call(getUser, {}, { token: key })), 'MISSING_PARAMETER')
  t.is(await reasonOf(client.call(getUser, { id: 1, username }, { token: key })), 'MALFORMED_REQUEST')
  t.is(await reasonOf(client.call(getUser, { id: 2 ** 31 - 1 }, { token: key })), 'USER_NOT_FOUND')
  t.is(await reasonOf(client.call(getUser, { id: idOf(token) }, { token })), 'MALFORMED_REQUEST')
  t.is(await reasonOf(client.call(getUser, { id: idOf(token), username }, { token })), 'MALFORMED_REQUEST')
})

test('a batch of users is returned in request order, duplicates included, and missing users are named', async t => {
  const people = []
  for (let index = 0; index < 4; index++) people.push(await service.signUp('ROLE_CLIENT'))
  const [a, b, c, d] = people as [(typeof people)[0], (typeof people)[0], (typeof people)[0], (typeof people)[0]]
  const lost = [byName(randomUUID()), byId(2 ** 31 - 1), byName('')]
  const references = [
    ...[byName(c.username), byId(idOf(a.token)), lost[0]!, byName(c.username.replace(/\D/g, '')), lost[1]!, lost[2]!],
    ...[byId(idOf(d.token)), byName(d.username), byName(b.username)],
  ]
  const { users, missing } = await client.call(batchGetUsers, { references }, { token: key })
  const found = users.map(({ username }) => username)
  t.deepEqual(found, [c.username, a.username, c.username, d.username, d.username, b.username])
  t.like(missing, { ...lost, length: lost.length })
  t.deepEqual((await client.call(batchGetUsers, { references: [] }, { token: key })).users, [])
})

test('a batch holds at most 500 users, and every reference must name one user', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const many = (count: number) => ({ references: Array.from({ length: count }, () => byId(idOf(token))) })
  t.is((await client.call(batchGetUsers, many(500), { token: key })).users.length, 500)
  t.is(await reasonOf(client.call(batchGetUsers, many(501), { token: key })), 'MALFORMED_REQUEST')
  const references = [byId(1), {}, byName('x'), {}]
  const error = refusalOf(await t.throwsAsync(client.call(batchGetUsers, { references }, { token: key })))
  t.is(error.info?.reason, 'MALFORMED_REQUEST')
  t.like(error.badRequest?.fieldViolations, { length: 2, 0: { field: 'references[1]' }, 1: { field: 'references[3]' } })
})

test('deleted users are visible to no service', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await service.registry.database.sequelize.query(
    `UPDATE users SET deleted_at = now(), suspended = true WHERE id = ${idOf(token)}`,
  )
  for (const request of [{ username }, { id: idOf(token) }])
    t.is(await reasonOf(client.call(getUser, request, { token: key })), 'USER_NOT_FOUND')
  const references = [byName(username), byId(idOf(token))]
  const { users, missing } = await client.call(batchGetUsers, { references }, { token: key })
  t.deepEqual([users.length, missing.length], [0, 2])
})

test('an unknown or expired key is an invalid token, and no obstacle to what is open without one', async t => {
  const { registry } = service
  const expired = newServiceKey()
  await registry.database.transact(async transaction => {
    const { id } = (await registry.services.add({ name: 'short-lived', scopes: ['users.read'] }, transaction))!
    await registry.services.addKey(id, expired, new Date(Date.now() - 1), transaction)
  })
  for (const token of [
    ...[newServiceKey(), expired, `${key}x`, key.slice(0, -1), 'authsvc_', key.toUpperCase()],
    `authsvc_${'x'.repeat(4000)}`,
  ]) {
    t.is(await reasonOf(client.call(getUser, { id: 1 }, { token })), 'INVALID_TOKEN', token)
    t.is(await reasonOf(client.call(existsByUsername, { username: 'x' }, { token })), 'OK', token)
    t.is(await reasonOf(client.call(login, { username: 'admin', password }, { token })), 'OK', token)
  }
})

test('a removed key is refused within a second by a process that has accepted it', async t => {
  const service = await serviceWithClock(t)
  const client = openClient(t, service)
  const key = await serviceKey(service, ['users.read'])
  const ask = () => reasonOf(client.call(getUser, { id: 1 }, { token: key }))
  t.is(await ask(), 'OK')
  await service.registry.database.sequelize.query('DELETE FROM service_keys')
  await service.clock.pass(1)
  t.is(await ask(), 'INVALID_TOKEN')
})

test('a key is stored in no table, and the day of its last use is written once a day', async t => {
  const service = await serviceWithClock(t)
  const client = openClient(t, service)
  const key = await serviceKey(service, ['users.read'])
  const { database } = service.registry
  const state = async () => {
    const text = 'SELECT last_used_on::text AS day, xmin::text AS version FROM service_keys'
    return (await database.run<{ day: string | null; version: string }>(sql.text(text)))[0]!
  }
  t.is((await state()).day, null)
  const ask = () => client.call(getUser, { id: 1 }, { token: key })
  await ask()
  const first = await state()
  t.is(first.day, new Date(service.clock.now()).toISOString().slice(0, 10))
  await service.clock.pass(2)
  await ask()
  const sameDay = new Date(service.clock.now()).toISOString().slice(0, 10) === first.day
  if (sameDay) t.deepEqual(await state(), first)
  await database.sequelize.query(`UPDATE service_keys SET expires_at = expires_at + interval '2 days'`)
  await service.clock.pass(86_400)
  await ask()
  t.true((await state()).day! > first.day!)

  const tables = await database.run<{ name: string }>(
    sql`SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public'`,
  )
  for (const { name } of tables) {
    const text = `SELECT count(*)::int AS count FROM ${name} t WHERE position($1 IN t::text) > 0`
    t.is((await database.run<{ count: number }>({ text, values: [key.slice(12)] }))[0]!.count, 0, name)
  }
})

// Serial: it counts every statement of the process.
test.serial(
  'a wrong key costs one small query, once, and an address that guesses must wait, without queries',
  async t => {
    // On a stopped clock no bucket drains meanwhile.
    const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
    const client = openClient(t, service)
    const [known, fresh] = [await serviceKey(service, ['users.read']), await serviceKey(service, ['users.read'])]
    const address = `10.${randomInt(256)}.1.1`
    const ask = (token: string, from = address) =>
      reasonOf(client.call(getUser, { id: 1 }, { token, metadata: { 'x-forwarded-for': from } }))
    t.is(await ask(known), 'OK')

    const statements = recordStatements()
    const reads = () => statements.names.filter(name => name === 'service-key-holder').length
    try {
      const wrong = Array.from({ length: 60 }, () => `authsvc_${randomBytes(32).toString('base64url')}`)
      for (const token of [...wrong.slice(0, 10), ...wrong.slice(0, 10)]) t.is(await ask(token), 'INVALID_TOKEN')
      t.is(reads(), 10)
      // 30 for the address, one of them with the valid key.
      for (const [n, token] of wrong.entries()) t.is(await ask(token), n < 29 ? 'INVALID_TOKEN' : 'TOO_MANY_ATTEMPTS')
    } finally {
      statements[Symbol.dispose]()
    }
    const asked = statements.names.filter(name => /^(service|attempt|bucket|user)(?!.*prune)/.test(name))
    t.deepEqual(asked, Array(29).fill('service-key-holder'))

    // An already used key still works, also after it is read again, and other keys work from other addresses.
    await service.clock.pass(1)
    t.is(await ask(known), 'OK')
    // Whether an unseen key is good isn't known: it isn't called wrong.
    t.is(await ask(fresh), 'TOO_MANY_ATTEMPTS')
    const limited = await service.request('GET', '/users/ana', {
      token: fresh,
      headers: { 'x-forwarded-for': address },
    })
    refused(t, limited, 429, 'TOO_MANY_ATTEMPTS')
    t.true(Number(limited.headers.get('retry-after')) > 0)
    t.is(await ask(fresh, '10.0.0.2'), 'OK')
    t.is(await ask(fresh), 'OK')
  },
)

test('a service lists the users of an organization, of a role or of both, by id, in pages of up to 500', async t => {
  const school = await openSchool(service)
  const [member, suspended] = [await school.member(), await school.member()]
  await suspend(service.registry, idOf(suspended.token))
  const deleted = await school.member()
  await service.registry.database.sequelize.query(
    `UPDATE users SET deleted_at = now(), suspended = true WHERE id = ${idOf(deleted.token)}`,
  )
  const wanted = { organizationId: school.id }
  const { users, nextPageToken } = await client.call(listUsers, wanted, { token: key })
  const states = users.map(({ username, active }) => `${username} ${active}`)
  const clients = [`${member.username} 1`, `${suspended.username} 0`]
  t.deepEqual([states, nextPageToken], [[`${school.institution.username} 1`, ...clients], ''])
  const text = JSON.stringify(users)
  t.false(text.includes(school.institution.providerKey) || text.includes(school.activationkey))
  t.deepEqual((await client.call(listUsers, { ...wanted, role: 'ROLE_CLIENT' }, { token: key })).users, users.slice(1))
  const seen = await allPages(
    pageToken => client.call(listUsers, { role: 'ROLE_INSTITUTION', pageSize: 1, pageToken }, { token: key }),
    page => page.users.map(({ id }) => id!),
  )
  t.true(seen.includes(idOf(school.institution.token)))
  t.deepEqual(
    seen,
    [...new Set(seen)].toSorted((a, b) => a - b),
  )
  t.deepEqual((await client.call(listUsers, { organizationId: 2 ** 31 - 1 }, { token: key })).users, [])
})

test('a service can’t list all users, nor with a page token of another service or filter', async t => {
  const school = await openSchool(service)
  await school.member()
  const organizationId = school.id
  const other = await serviceKey(service, ['users.read'])
  const reason = (request: MessageInitShape<typeof listUsers.input>, token = key) =>
    reasonOf(client.call(listUsers, request, { token }))
  for (const wrong of [
    ...[{}, { role: '' }, { role: 'ROLE_KING' }, { role: 'R'.repeat(60_000) }],
    ...[
      { organizationId, pageToken: 'A'.repeat(60_000) },
      { organizationId, pageSize: -1 },
    ],
  ])
    t.is(await reason(wrong), 'INVALID_ARGUMENT')
  const { nextPageToken: pageToken } = await client.call(listUsers, { organizationId, pageSize: 1 }, { token: key })
  t.is(await reason({ organizationId, pageToken }), 'OK')
  t.is(await reason({ organizationId, pageToken }, other), 'INVALID_ARGUMENT')
  t.is(await reason({ role: 'ROLE_CLIENT', pageToken }), 'INVALID_ARGUMENT')
  // Only gRPC and Connect have it.
  const connect = await service.request('POST', '/auth.v1.Users/ListUsers', { token: key, body: { organizationId } })
  t.is(connect.json.users.length, 2)
  t.is((await service.request('GET', '/users', { token: key })).status, 404)
})

test('listed users count against the limit of users that a service reads, and places of a page without users don’t', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.01' })
  const client = openClient(t, service)
  const reader = await serviceKey(service, ['users.read'])
  const school = await openSchool(service)
  for (let index = 0; index < 3; index++) await school.member()
  const page = (pageSize: number) =>
    client.call(listUsers, { organizationId: school.id, pageSize }, { token: reader }).then(({ users }) => users.length)
  // 100 users at once: 24 pages of four, and a whole page must fit.
  for (let index = 0; index < 24; index++) t.is(await page(4), 4)
  const error = refusalOf(await t.throwsAsync(page(5)))
  t.is(error.info?.reason, 'TOO_MANY_ATTEMPTS')
  t.truthy(error.retryInfo)
  t.is(await page(4), 4)
  t.is(await reasonOf(client.call(getUser, { id: 1 }, { token: reader })), 'TOO_MANY_ATTEMPTS')
  await service.clock.pass(5)
  for (let index = 0; index < 3; index++) t.is(await page(90), 4)
})

test('a service reads a limited number of users, independent of other services, and then gets the seconds until a retry', async t => {
  const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.01' })
  const client = openClient(t, service)
  const [greedy, modest] = [await serviceKey(service, ['users.read']), await serviceKey(service, ['users.read'])]
  const read = (token: string, count: number) =>
    client.call(batchGetUsers, { references: Array.from({ length: count }, () => byId(1)) }, { token })
  await read(greedy, 60)
  await client.call(getUser, { id: 1 }, { token: greedy })
  const error = refusalOf(await t.throwsAsync(read(greedy, 40)))
  t.is(error.info?.reason, 'TOO_MANY_ATTEMPTS')
  t.is(error.retryInfo?.retryDelay?.seconds, 1n)
  await read(greedy, 39)
  t.is(await reasonOf(client.call(getUser, { id: 1 }, { token: greedy })), 'TOO_MANY_ATTEMPTS')
  await read(modest, 100)
  await service.clock.pass(5)
  // A request beyond the whole limit waits for all of it, not for ever.
  await read(greedy, 500)
})

test('only a service with clients.forward may name its client’s address, and the audit log records the service', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const subjectId = idOf(token)
  const forwarder = await serviceKey(service, ['clients.forward'], 'portal')
  /** The event of a login with a key that forwards an address. */
  const signIn = async (bearer: string | undefined, forwarded: string) => {
    const options = { ...(bearer && { token: bearer }), metadata: { 'x-forwarded-for': forwarded } }
    await client.call(login, { username, password }, options)
    return (await service.registry.audit.list({ subjectId, action: 'session.login', limit: 1 }))[0]
  }
  const expected = { address: '203.0.113.7', actor: 'service:portal', actor_id: subjectId }
  t.like(await signIn(forwarder, '203.0.113.7'), expected)
  // Entries further left can't be trusted.
  t.like(await signIn(forwarder, '198.51.100.1, 203.0.113.8:4711'), { address: '203.0.113.8' })
  t.like(await signIn(key, '203.0.113.7'), { address: '127.0.0.1', actor: 'service:reader' })
  t.like(await signIn(undefined, '203.0.113.7'), { address: '127.0.0.1', actor: 'user' })
})

test('users behind a forwarding service are limited by their addresses, and the service isn’t limited itself', async t => {
  const service = await startTestService(t, { AUTH_TRUSTED_PROXIES: '192.0.2.99', AUTH_LIMIT_FACTOR: '0.01' })
  const client = openClient(t, service)
  const token = await serviceKey(service, ['clients.forward'])
  const look = (forwarded: string) =>
    reasonOf(client.call(existsByUsername, { username: 'ana' }, { token, metadata: { 'x-forwarded-for': forwarded } }))
  for (let index = 1; index <= 9; index++) {
    t.deepEqual([index, await look(`203.0.113.${index}`)], [index, 'OK'])
  }
  t.deepEqual(await Promise.all([look('203.0.113.1'), look('203.0.113.1')]), ['OK', 'OK'])
  t.is(await look('203.0.113.1'), 'TOO_MANY_ATTEMPTS')
})
