/** Access of users to their stored data: export, events, previous sign-in. It includes no data about others. */
import { randomUUID } from 'node:crypto'
import { createClient } from '@connectrpc/connect'
import { createConnectTransport } from '@connectrpc/connect-node'
import test from 'ava'
import { TOTP } from 'otpauth'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { openAdministration, openLocal, signedInForFile } from '../_helpers/administration.js'
import { grpcForFile, openGrpc, refusalOf } from '../_helpers/grpc.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { refused, wrongFields } from '../_helpers/problem.js'
import { password, type SignedUp, serviceForFile, serviceWithClock, startTestService } from '../_helpers/service.js'
import { serviceKey } from '../_helpers/service-key.js'
import { idOf } from '../_helpers/tokens.js'
import { waitForValue } from '../_helpers/wait.js'

const mailbox = mailboxForFile()
const service = serviceForFile(() => ({ AUTH_ADMIN_ADDRESS: '127.0.0.1:0', SMTP_URL: mailbox.url }))
const admin = signedInForFile(service)
const client = grpcForFile(service)

const run = (text: string) => service.registry.database.sequelize.query(text)
const from = (address: string) => ({ 'x-forwarded-for': address })
const home = '203.0.113.7'
const strange = '198.51.100.66'

/** An administrator, whose name may not appear in responses to others. */
async function chief() {
  const username = `chefe-${randomUUID()}`
  const form = { username, role: 'ROLE_ADMIN', state: 'SP', city: 'Bauru', password }
  const { user } = await admin.createUser({ form, active: true, confirm: username })
  return { username, id: user!.record!.id! }
}

/** A user whom others changed, and the data of these others that no response may have. */
async function fillEveryTable(t: { teardown(work: () => Promise<void>): void }) {
  const organization = await service.organization()
  const email = `vida.${randomUUID()}@example.org`
  const login = (secret: string, address: string) =>
    service.request('POST', '/users/login', { query: { username, password: secret }, headers: from(address) })
  const fields = { email, institution: 'Instituto Pleno', securityquestion: '1', securityanswer: 'Rexresposta' }
  const user: SignedUp = await service.signUp('ROLE_INSTITUTION', fields)
  const { username } = user
  const id = idOf(user.token)
  const activation = { query: { username, activationkey: organization.activationkey }, headers: from(home) }
  await service.request('POST', '/users/activate', { ...activation, token: user.token })
  await login('errada-errada', strange)

  const { username: chiefName, id: chiefId } = await chief()
  const { token: session } = await openAdministration(t, service).signIn({ username: chiefName, password })
  const byChief = openAdministration(t, service, session)
  await byChief.suspendUser({ user: username })
  await byChief.resumeUser({ user: username })
  const local = await openLocal(t, service, { reason: 'motivo sigiloso' })
  await local.setPassword({ user: username, password })
  const key = await serviceKey(service, ['users.read'], `alertas-${id}`)
  const query = { username, email }
  await service.request('POST', '/forgotpasswords/sendkeybyemail', { query, token: key, headers: from(strange) })
  const sent = () => service.registry.audit.list({ subjectId: id, action: 'recovery.send-key', limit: 1 })
  while ((await sent()).length === 0) await mailbox.nextEmail(email)
  await service.registry.audit.append({ action: 'user.send-key', outcome: 'ok', actor: 'service', subject_id: id })
  const token = (await login(password, home)).text
  const waiting = 'SELECT FROM emails WHERE next_attempt_at IS NOT NULL'
  await waitForValue(
    () => service.registry.database.run(sql.text(waiting)),
    value => value.length === 0,
  )
  const requested = { email: 'outro@example.com', address: strange, requestId: 'pedido-alheio' }
  const parameters = { userId: id, subjectId: chiefId, actor: chiefName, actorId: chiefId, reason: 'motivo sigiloso' }
  await run(`UPDATE organizations SET responsible = 'Dona Responsável', phone = '0800-1', login = 'login-alheio'
      WHERE id = ${organization.id};
    INSERT INTO emails (kind, stage, parameters, locale, next_attempt_at) VALUES
      ('recovery-key', 'requested', jsonb_set('${JSON.stringify(requested)}', '{usernameKey}',
        (SELECT to_jsonb(username_key) FROM users WHERE id = ${id})), 'en', NULL),
      ('administered', 'ready', '${JSON.stringify(parameters)}', 'en', NULL)`)
  const foreign = [
    ...[chiefName, 'motivo sigiloso', 'outro@example.com', strange, 'pedido-alheio', 'cli:', `alertas-${id}`],
    ...['Dona Responsável', '0800-1', 'login-alheio', organization.email, organization.activationkey],
  ]
  return { ...user, id, token, organization, foreign }
}

test('an export has what administrators export of the user, without other people’s data, keys and internal columns', async t => {
  const { token, username, id, organization, foreign } = await fillEveryTable(t)
  const answer = await service.request('GET', '/users/me/export', { token, headers: from(home) })
  t.is(answer.status, 200, answer.text)
  t.is(answer.headers.get('content-type'), 'application/json')
  t.is(answer.headers.get('cache-control'), 'no-store')
  const own = answer.json
  t.like(own.users, { id, username, institution: 'Instituto Pleno', has_password: true, active: true })
  t.is(own.organizations[0].id, organization.id)
  t.is(own.provider_keys.length, 1)
  t.like(own.answers[0], { question_id: 1, answered: true })
  t.true(own.known_addresses.length >= 1)
  t.deepEqual(
    own.emails.map(({ kind, stage }: { kind: string; stage: string }) => `${kind} ${stage}`),
    ['recovery-key requested', 'administered ready'],
  )
  for (const text of foreign) t.false(answer.text.includes(text), text)
  t.notRegex(answer.text, /hmac1|\$2b\$|Rexresposta|_hash"|_sealed"|_digest"|actor|object/i)

  // It is a subset of the administrators' export, and each omission is on purpose.
  const all = JSON.parse((await admin.exportUser({ user: `#${id}`, pageSize: 1000 })).json)
  const more = {
    users: ['token_generation', 'deleted_at', 'suspended_before_deletion', 'activated_by'],
    organizations: ['login', 'phone', 'responsible', 'email'],
    emails: ['parameters', 'attempts', 'last_error'],
  }
  const without = (names: readonly string[], row: object) =>
    Object.fromEntries(Object.entries(row).filter(([name]) => !names.includes(name)))
  t.deepEqual(own.users, without(more.users, all.users))
  // A new column must be exported to the user, or excluded on purpose.
  t.deepEqual(Object.keys(own.users).sort(), [
    ...[
      ...['activated_at', 'active', 'avatar', 'city', 'created_at', 'date_of_birth', 'email', 'gender'],
      ...['has_password', 'id', 'institution'],
    ],
    ...['institution_type', 'nickname', 'organization_id', 'password_updated_at', 'role', 'security_question', 'state'],
    ...['suspended', 'terms_of_usage', 'unactivated_seen_at', 'username'],
  ])
  for (const [table, rows] of Object.entries<object[]>(all)) {
    if (['users', 'audit_events', 'audit_staged', 'creation_requests'].includes(table)) continue
    const names = more[table as keyof typeof more] ?? []
    t.deepEqual(
      own[table],
      rows.map(row => without(names, row)),
      table,
    )
  }
  t.deepEqual(
    Object.keys(all)
      .filter(table => !(table in own))
      .sort(),
    ['audit_staged', 'creation_requests'],
  )
  for (const event of own.audit_events)
    t.deepEqual(Object.keys(event).sort(), ['action', 'address', 'by', 'refused', 'time'])

  const over = await client.call(Users.method.exportMe, {}, { token })
  t.deepEqual(JSON.parse(over.json).users, own.users)
  const recorded = await service.registry.audit.list({ subjectId: id, action: 'user.export-own', limit: 9 })
  t.deepEqual(
    recorded.map(({ actor, actor_id }) => [actor, actor_id]),
    Array(2).fill(['user', id]),
  )
})

test('a user lists its events, newest first, with the actor in plain words and only its own addresses', async t => {
  const { token, foreign } = await fillEveryTable(t)
  const answer = await service.request('GET', '/users/me/events', { token })
  t.is(answer.status, 200, answer.text)
  t.is(answer.json.nextPageToken, '')
  const events = answer.json.events as {
    time: string
    action: string
    refused: boolean
    by: string
    address?: string
  }[]
  t.deepEqual(
    events.map(({ action, refused, by, address }) => [action, refused, by, address].join(' ')),
    [
      `session.login false you ${home}`,
      'user.send-key false the system ',
      'recovery.send-key false a service ',
      'user.set-password false an administrator ',
      'user.resume false an administrator ',
      'user.suspend false an administrator ',
      'session.login true an unknown client ',
      `user.activate false you ${home}`,
      'user.sign-up false you 127.0.0.1',
    ],
  )
  const times = events.map(({ time }) => Date.parse(time))
  t.deepEqual(
    times,
    [...times].sort((a, b) => b - a),
  )
  t.true(Math.abs(times[0]! - Date.now()) < 600_000)
  for (const event of events) {
    t.deepEqual(
      Object.keys(event).filter(name => !['time', 'action', 'refused', 'by', 'address'].includes(name)),
      [],
    )
  }
  for (const text of foreign) t.false(answer.text.includes(text), text)

  const over = await client.call(Users.method.listMyEvents, {}, { token })
  t.deepEqual(
    over.events.map(({ action, by }) => [action, by]),
    events.map(({ action, by }) => [action, by]),
  )
})

test('an administrator lists its events on other users, without data about those users', async t => {
  const { username } = await chief()
  const other = await service.signUp('ROLE_CLIENT')
  const { token } = await openAdministration(t, service).signIn({ username, password })
  await openAdministration(t, service, token).suspendUser({ user: other.username })
  const answer = await service.request('GET', '/users/me/events', { token: await service.login(username) })
  const [login, suspension] = answer.json.events
  t.like(login, { action: 'session.login', by: 'you' })
  t.like(suspension, { action: 'user.suspend', by: 'you', refused: false })
  t.false(answer.text.includes(other.username))
  t.deepEqual(Object.keys(suspension).sort(), ['action', 'address', 'by', 'refused', 'time'])
})

test('events are listed in pages of 50 by default and at most 500, each once', async t => {
  const own = await startTestService(t)
  const { token } = await own.signUp('ROLE_CLIENT')
  const id = idOf(token)
  while ((await own.registry.audit.backlog()).staged > 0) await own.registry.audit.seal()
  // Before all others, so that sealing continues. The user is the actor of every tenth, on another user.
  await own.registry.database.sequelize.query(`INSERT INTO audit_events
      (id, at, action, outcome, actor, actor_id, subject_id, mac, hash)
    SELECT -n, now() - n * interval '1 minute', 'user.edit', 'ok', 'user', ${id},
      CASE WHEN n % 10 = 0 THEN 1 ELSE ${id} END, '', '' FROM generate_series(1, 1100) n`)
  const page = async (query: Record<string, string>) => {
    const { status, text, json } = await own.request('GET', '/users/me/events', { token, query })
    t.is(status, 200, text)
    return json as { events: { time: string }[]; nextPageToken: string }
  }
  t.is((await page({})).events.length, 50)
  t.is((await page({ pageSize: '0' })).events.length, 50)
  t.is((await page({ pageSize: '501' })).events.length, 500)
  const times: string[] = []
  const sizes: number[] = []
  let pageToken = ''
  do {
    const { events, nextPageToken } = await page({ pageSize: '500', pageToken })
    times.push(...events.map(({ time }) => time))
    sizes.push(events.length)
    pageToken = nextPageToken
  } while (pageToken !== '')
  t.deepEqual(sizes, [500, 500, 101])
  t.is(new Set(times).size, 1101)
  t.deepEqual(
    times.map(Date.parse),
    times.map(Date.parse).sort((a, b) => b - a),
  )
})

test('a malformed page is refused, and so is the page token of another account', async t => {
  const [one, other] = [await service.signUp('ROLE_CLIENT'), await service.signUp('ROLE_CLIENT')]
  for (const { username } of [one, other]) await service.login(username)
  const list = (query: Record<string, string>, token = one.token) =>
    service.request('GET', '/users/me/events', { token, query })
  // An unsealed event may move between two pages.
  const filter = { subjectId: idOf(one.token), limit: 9 }
  await waitForValue(
    () => service.registry.audit.list(filter),
    value => value.every(({ id }) => id !== null),
  )
  const { nextPageToken: pageToken } = (await list({ pageSize: '1' })).json
  t.is((await list({ pageToken })).json.events.length, 1)
  const foreign = await list({ pageToken }, other.token)
  refused(t, foreign, 400, 'INVALID_ARGUMENT')
  t.deepEqual(wrongFields(foreign), ['page_token'])
  for (const bad of ['abc', `A${pageToken}`, pageToken.slice(2), 'x'.repeat(5000)]) {
    const answer = await list({ pageToken: bad })
    refused(t, answer, 400, 'INVALID_ARGUMENT')
    t.deepEqual(wrongFields(answer), ['page_token'])
  }
  const negative = await list({ pageSize: '-1' })
  refused(t, negative, 400, 'INVALID_ARGUMENT')
  t.deepEqual(wrongFields(negative), ['page_size'])
  for (const pageSize of ['', 'x', '1.5', '1e2', ' 1', '2147483648', '99999999999']) {
    const answer = await list({ pageSize })
    refused(t, answer, 400, 'MALFORMED_REQUEST')
    t.deepEqual(wrongFields(answer), ['pageSize'])
    // Permission is checked first.
    refused(t, await service.request('GET', '/users/me/events', { query: { pageSize } }), 403, 'ACCESS_DENIED')
  }
  t.is((await list({ pageSize: '999999999' })).status, 200)
  for (const request of [{ pageSize: -1 }, { pageToken }]) {
    const error = await t.throwsAsync(client.call(Users.method.listMyEvents, request, { token: other.token }))
    t.is(refusalOf(error).info?.reason, 'INVALID_ARGUMENT')
  }
})

test('GetMe returns on request the sign-in before that of its session, over gRPC and Connect, and never over HTTP', async t => {
  const own = await serviceWithClock(t)
  const grpc = openGrpc(own.grpc)
  t.teardown(async () => grpc.close())
  const { username, token: first } = await own.signUp('ROLE_CLIENT')
  const began = own.clock.now()
  const logIn = async (address: string, secret = password) => {
    await own.clock.pass(60)
    const query = { username, password: secret }
    return (await own.request('POST', '/users/login', { query, headers: from(address) })).text
  }
  const second = await logIn('2001:db8:1:2:3::4')
  await logIn(strange, 'errada-errada')
  const third = await logIn(home)
  await logIn('203.0.113.9')

  const connect = createClient(Users, createConnectTransport({ baseUrl: own.http, httpVersion: '1.1' }))
  const previous = async (token: string) => {
    const [one, other] = [
      await grpc.call(Users.method.getMe, { withPreviousSignIn: true }, { token }),
      await connect.getMe({ withPreviousSignIn: true }, { headers: { authorization: `Bearer ${token}` } }),
    ].map(({ previousSignIn: found }) => found && [Number(found.time!.seconds), found.network])
    t.deepEqual(one, other)
    return one
  }
  t.is(await previous(first), undefined)
  t.deepEqual(await previous(second), [Math.floor(began / 1000), '127.0.0.1'])
  const expected = [Math.floor(began / 1000) + 60, '2001:db8:1:2::/64']
  t.deepEqual(await previous(third), expected)
  const refreshed = await own.request('GET', '/users/refresh', { token: third })
  t.deepEqual(await previous(refreshed.text), expected)

  t.is((await grpc.call(Users.method.getMe, {}, { token: third })).previousSignIn, undefined)
  const plain = await own.request('GET', '/users/me', { token: third })
  const query = { withPreviousSignIn: 'true' }
  t.deepEqual((await own.request('GET', '/users/me', { token: third, query })).json, plain.json)
  t.false('previousSignIn' in plain.json)
})

test('a public session of an administrator with one-time codes can’t read its sign-in addresses', async t => {
  const { username } = await chief()
  await service.login(username)
  const withSignIn = async () => {
    const token = await service.login(username)
    return client.call(Users.method.getMe, { withPreviousSignIn: true }, { token })
  }
  t.truthy((await withSignIn()).previousSignIn)
  const { token } = await openAdministration(t, service).signIn({ username, password })
  const session = openAdministration(t, service, token)
  const { secret } = await session.enrollTotp({})
  await session.confirmTotp({ code: new TOTP({ secret }).generate() })
  const { user, previousSignIn } = await withSignIn()
  t.is(user?.username, username)
  t.is(previousSignIn, undefined)
  const restricted = await service.login(username)
  for (const path of ['export', 'events']) {
    refused(t, await service.request('GET', `/users/me/${path}`, { token: restricted }), 403, 'ACCESS_DENIED')
  }
})
