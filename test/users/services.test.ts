/** Services that call with a key: their read access, forwarded addresses, and invalid keys. */
import { randomBytes, randomInt, randomUUID } from 'node:crypto'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { newServiceKey } from '../../server/models/service.js'
import { type GrpcClient, grpcForFile, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { suspend } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { openSchool } from '../_helpers/school.js'
import { password, serviceForFile, serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

// Callers on loopback aren't gateways here: their own addresses count.
const service = serviceForFile(() => ({ AUTH_TRUSTED_PROXIES: '192.0.2.99' }))
const client = grpcForFile(service)
let key: string
test.before(async () => {
  key = await serviceKey(service, ['users.read'], 'reader')
})

const { getUser, batchGetUsers, listUsers, login, getMe, verifyToken, existsByUsername } = Users.method
const reasonOf = (call: Promise<unknown>): Promise<string | undefined> =>
  call.then(
    () => 'OK',
    error => refusalOf(error).info?.reason,
  )
const byName = (value: string) => ({ user: { case: 'username' as const, value } })
const byId = (value: number) => ({ user: { case: 'id' as const, value } })

function openClient(t: ExecutionContext, { grpc }: TestService): GrpcClient {
  const opened = openGrpc(grpc)
  t.teardown(() => opened.close())
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

test('over HTTP a service’s key works in the same way for every RPC with a path', async t => {
  const { username, providerKey } = await service.institution(await service.organization())
  const answer = await service.request('GET', `/users/${encodeURIComponent(username)}`, { token: key })
  t.is(answer.status, 200, answer.text)
  t.is(answer.json.username, username)
  t.false(answer.text.includes(providerKey))
  refused(t, await service.request('GET', `/users/${randomUUID()}`, { token: key }), 404, 'USER_NOT_FOUND')
  refused(t, await service.request('GET', '/users/me', { token: key }), 403, 'ACCESS_DENIED')
  refused(t, await service.request('GET', '/users/ana', { token: newServiceKey() }), 500, 'INVALID_TOKEN')
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
  const gone = randomUUID()
  const asked = [
    byName(c.username),
    byId(idOf(a.token)),
    byName(gone),
    byName(c.username.replace(/\D/g, '')),
    byId(2 ** 31 - 1),
    byName(''),
    byId(idOf(d.token)),
    byName(d.username),
    byName(b.username),
  ]
  const { users, missing } = await client.call(batchGetUsers, { references: asked }, { token: key })
  t.deepEqual(
    users.map(({ username }) => username),
    [c, a, c, d, d, b].map(({ username }) => username),
  )
  t.deepEqual(
    missing.map(({ user }) => user),
    [byName(gone), byId(2 ** 31 - 1), byName('')].map(({ user }) => user),
  )
  t.deepEqual((await client.call(batchGetUsers, { references: [] }, { token: key })).users, [])
})

test('a batch holds at most 500 users, and every reference must name one user', async t => {
  const { token } = await service.signUp('ROLE_CLIENT')
  const many = (count: number) => ({ references: Array.from({ length: count }, () => byId(idOf(token))) })
  t.is((await client.call(batchGetUsers, many(500), { token: key })).users.length, 500)
  t.is(await reasonOf(client.call(batchGetUsers, many(501), { token: key })), 'MALFORMED_REQUEST')
  const error = await client
    .call(batchGetUsers, { references: [byId(1), {}, byName('x'), {}] }, { token: key })
    .catch(refusalOf)
  t.like(error, { info: { reason: 'MALFORMED_REQUEST' } })
  t.deepEqual(
    (error as ReturnType<typeof refusalOf>).badRequest?.fieldViolations.map(({ field }) => field),
    ['references[1]', 'references[3]'],
  )
})

test('deleted users are visible to no service', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  await service.registry.database.sequelize.query(
    `UPDATE users SET deleted_at = now(), suspended = true WHERE id = ${idOf(token)}`,
  )
  for (const request of [{ username }, { id: idOf(token) }]) {
    t.is(await reasonOf(client.call(getUser, request, { token: key })), 'USER_NOT_FOUND')
  }
  const references = [byName(username), byId(idOf(token))]
  const { users, missing } = await client.call(batchGetUsers, { references }, { token: key })
  t.deepEqual([users.length, missing.length], [0, 2])
})

test('operations that are open without a key stay open with any key', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const verifier = await serviceKey(service, ['tokens.verify'])
  for (const token of [verifier, newServiceKey()]) {
    t.true((await client.call(existsByUsername, { username }, { token })).exists)
    t.truthy((await client.call(login, { username, password }, { token })).token)
  }
  t.true((await client.call(verifyToken, { token }, { token: verifier })).active)
})

test('an unknown, expired or removed key is an invalid token', async t => {
  const { registry } = service
  const ask = (token: string) => reasonOf(client.call(getUser, { id: 1 }, { token }))
  for (const bad of [
    newServiceKey(),
    `${key}x`,
    key.slice(0, -1),
    'authsvc_',
    `authsvc_${'x'.repeat(4000)}`,
    key.toUpperCase(),
  ]) {
    t.is(await ask(bad), 'INVALID_TOKEN', bad)
  }

  const [expiring, removed, of] = [newServiceKey(), newServiceKey(), newServiceKey()]
  const ids = await registry.database.transact(async transaction => {
    const one = await registry.services.add({ name: 'short-lived', scopes: ['users.read'] }, transaction)
    const two = await registry.services.add({ name: 'removed', scopes: ['users.read'] }, transaction)
    await registry.services.addKey(one!.id, expiring, new Date(Date.now() - 1), transaction)
    const { id } = await registry.services.addKey(one!.id, removed, new Date(Date.now() + 3_600_000), transaction)
    await registry.services.addKey(two!.id, of, new Date(Date.now() + 3_600_000), transaction)
    return { one: one!.id, key: id, two: two!.id }
  })
  t.is(await ask(expiring), 'INVALID_TOKEN')
  t.is(await ask(removed), 'OK')
  t.is(await ask(of), 'OK')
  await registry.database.transact(transaction => registry.services.removeKey(ids.one, ids.key, transaction))
  await registry.database.transact(transaction => registry.services.remove(ids.two, transaction))
  // Every process caches it for a second.
  await waitForValue(() => ask(removed), 'INVALID_TOKEN')
  await waitForValue(() => ask(of), 'INVALID_TOKEN')
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
  'a wrong key costs one small query, once, and an address that guesses is blocked without queries',
  async t => {
    // On a stopped clock no bucket drains meanwhile.
    const service = await serviceWithClock(t, { AUTH_LIMIT_FACTOR: '0.1' })
    const client = openClient(t, service)
    const [known, fresh] = [await serviceKey(service, ['users.read']), await serviceKey(service, ['users.read'])]
    const address = `10.${randomInt(256)}.1.1`
    const ask = (token: string, from = address) =>
      reasonOf(client.call(getUser, { id: 1 }, { token, metadata: { 'x-forwarded-for': from } }))
    t.is(await ask(known), 'OK')

    const statements: string[] = []
    const reads = () => statements.filter(name => name === 'service-key-holder').length
    const own = pg.Client.prototype.query
    pg.Client.prototype.query = function (this: pg.Client, ...given: unknown[]) {
      statements.push(String((given[0] as { name?: string })?.name))
      return Reflect.apply(own, this, given)
    } as typeof own
    try {
      const wrong = Array.from({ length: 60 }, () => `authsvc_${randomBytes(32).toString('base64url')}`)
      for (const token of [...wrong.slice(0, 10), ...wrong.slice(0, 10)]) t.is(await ask(token), 'INVALID_TOKEN')
      t.is(reads(), 10)
      for (const token of wrong) t.is(await ask(token), 'INVALID_TOKEN')
    } finally {
      pg.Client.prototype.query = own
    }
    const asked = statements.filter(name => /^(service|attempt|bucket|user)(?!.*prune)/.test(name))
    // 30 for the address, one of them with the valid key.
    t.deepEqual(
      asked,
      Array.from({ length: 29 }, () => 'service-key-holder'),
    )

    // An already used key still works, also after it is read again, and other keys work from other addresses.
    await service.clock.pass(1)
    t.is(await ask(known), 'OK')
    t.is(await ask(fresh), 'INVALID_TOKEN')
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
  t.deepEqual(
    users.map(({ username, active }) => ({ username, active })),
    [
      { username: school.institution.username, active: 1 },
      { username: member.username, active: 1 },
      { username: suspended.username, active: 0 },
    ],
  )
  t.is(nextPageToken, '')
  const text = JSON.stringify(users)
  t.false(text.includes(school.institution.providerKey) || text.includes(school.activationkey))
  const clients = await client.call(listUsers, { ...wanted, role: 'ROLE_CLIENT' }, { token: key })
  t.deepEqual(
    clients.users.map(({ username }) => username),
    [member.username, suspended.username],
  )
  const seen: number[] = []
  for (let pageToken = ''; ; ) {
    const page = await client.call(listUsers, { role: 'ROLE_INSTITUTION', pageSize: 1, pageToken }, { token: key })
    seen.push(...page.users.map(({ id }) => id!))
    pageToken = page.nextPageToken
    if (!pageToken) break
  }
  t.true(seen.includes(idOf(school.institution.token)))
  t.deepEqual(
    seen,
    [...new Set(seen)].sort((a, b) => a - b),
  )
  t.deepEqual((await client.call(listUsers, { organizationId: 2 ** 31 - 1 }, { token: key })).users, [])
})

test('a service can’t list all users, or without the scope, or with a page token of another service or filter', async t => {
  const school = await openSchool(service)
  await school.member()
  const organizationId = school.id
  const other = await serviceKey(service, ['users.read'])
  const reason = (
    request: { organizationId?: number; role?: string; pageSize?: number; pageToken?: string },
    token: string | undefined,
  ) => reasonOf(client.call(listUsers, request, token === undefined ? {} : { token }))
  t.is(await reason({}, key), 'INVALID_ARGUMENT')
  t.is(await reason({ role: '' }, key), 'INVALID_ARGUMENT')
  t.is(await reason({ role: 'ROLE_KING' }, key), 'INVALID_ARGUMENT')
  t.is(await reason({ role: 'R'.repeat(60_000) }, key), 'INVALID_ARGUMENT')
  t.is(await reason({ organizationId, pageToken: 'A'.repeat(60_000) }, key), 'INVALID_ARGUMENT')
  t.is(await reason({ organizationId, pageSize: -1 }, key), 'INVALID_ARGUMENT')
  t.is(await reason({ organizationId }, await serviceKey(service, ['tokens.verify'])), 'ACCESS_DENIED')
  t.is(await reason({ organizationId }, school.institution.token), 'ACCESS_DENIED')
  t.is(await reason({ organizationId }, await service.adminToken()), 'ACCESS_DENIED')
  t.is(await reason({ organizationId }, undefined), 'ACCESS_DENIED')
  const { nextPageToken: pageToken } = await client.call(listUsers, { organizationId, pageSize: 1 }, { token: key })
  t.is(await reason({ organizationId, pageToken }, key), 'OK')
  t.is(await reason({ organizationId, pageToken }, other), 'INVALID_ARGUMENT')
  t.is(await reason({ role: 'ROLE_CLIENT', pageToken }, key), 'INVALID_ARGUMENT')
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

/** The newest event of an action about a user. */
async function lastEvent(token: string, action: string) {
  return (await service.registry.audit.list({ subjectId: idOf(token), action, limit: 1 }))[0]!
}

test('only a service with clients.forward may name its client’s address, and the audit log records the service', async t => {
  const { username, token } = await service.signUp('ROLE_CLIENT', { email: `ana.${randomUUID()}@example.org` })
  const forwarder = await serviceKey(service, ['clients.forward'], 'portal')
  const signIn = (bearer: string | undefined, forwarded: string) =>
    client.call(
      login,
      { username, password },
      { ...(bearer && { token: bearer }), metadata: { 'x-forwarded-for': forwarded } },
    )
  await signIn(forwarder, '203.0.113.7')
  t.like(await lastEvent(token, 'session.login'), {
    address: '203.0.113.7',
    actor: 'service:portal',
    actor_id: idOf(token),
  })
  // Entries further left can't be trusted.
  await signIn(forwarder, '198.51.100.1, 203.0.113.8:4711')
  t.is((await lastEvent(token, 'session.login')).address, '203.0.113.8')
  await signIn(key, '203.0.113.7')
  t.like(await lastEvent(token, 'session.login'), { address: '127.0.0.1', actor: 'service:reader' })
  await signIn(undefined, '203.0.113.7')
  t.like(await lastEvent(token, 'session.login'), { address: '127.0.0.1', actor: 'user' })
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

test('a recovery key that a service requests is recorded with the service as actor', async t => {
  const email = `ana.${randomUUID()}@example.org`
  const { username, token } = await service.signUp('ROLE_CLIENT', { email })
  await client.call(ForgotPasswords.method.sendKeyByEmail, { username, email }, { token: key })
  await waitFor(() => lastEvent(token, 'recovery.send-key'))
  t.is((await lastEvent(token, 'recovery.send-key')).actor, 'service:reader')
})

test('a service’s key is not a user’s token: it opens nothing that belongs to a user', async t => {
  const all = await serviceKey(service, [
    'users.read',
    'tokens.verify',
    'tokens.watch',
    'clients.forward',
    'users.watch',
  ])
  t.is(await reasonOf(client.call(getMe, {}, { token: all })), 'ACCESS_DENIED')
  t.is(await reasonOf(client.call(Users.method.revokeMyTokens, {}, { token: all })), 'ACCESS_DENIED')
  t.is((await client.call(verifyToken, { token: all }, { token: all })).active, false)
})
