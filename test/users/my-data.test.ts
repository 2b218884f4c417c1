/** Access of users to their stored data: export, events, previous sign-in. It includes no data about others. */
import { randomUUID } from 'node:crypto'
import { createClient } from '@connectrpc/connect'
import { createConnectTransport } from '@connectrpc/connect-node'
import test from 'ava'
import { TOTP } from 'otpauth'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { sql } from '../../server/database/sql.js'
import { allPages, anotherAdministrator, openLocal, signedInForFile } from '../_helpers/administration.js'
import type { Teardown } from '../_helpers/database.js'
import { profileFields } from '../_helpers/fields.js'
import { grpcForFile, grpcOf } from '../_helpers/grpc.js'
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

/** An administrator, whose name may not appear in responses to others, and its session. */
const chief = (t: Teardown) => anotherAdministrator(t, service, admin, { username: `chefe-${randomUUID()}` })

/** A user whom others changed, and the data of these others that no response may have. */
async function fillEveryTable(t: Teardown) {
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

  const { username: chiefName, id: chiefId, api: byChief } = await chief(t)
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
  t.like(own.emails, { length: 2, 0: { kind: 'recovery-key', stage: 'requested' }, 1: { kind: 'administered' } })
  for (const text of foreign) t.false(answer.text.includes(text), text)
  t.notRegex(answer.text, /hmac1|\$2b\$|Rexresposta|_hash"|_sealed"|_digest"|actor|object/i)

  // It is a subset of the administrators' export, and each omission is on purpose.
  const all = JSON.parse((await admin.exportUser({ user: `#${id}`, pageSize: 1000 })).json)
  const more = {
    users: [
      ...['token_generation', 'deleted_at', 'suspended_before_deletion', 'suspended_with_organization', 'activated_by'],
    ],
    organizations: ['login', 'phone', 'responsible', 'email'],
    emails: ['parameters', 'attempts', 'last_error'],
    sent_emails: ['attempts', 'answer'],
  }
  const without = (names: readonly string[], row: object) =>
    Object.fromEntries(Object.entries(row).filter(([name]) => !names.includes(name)))
  t.deepEqual(own.users, without(more.users, all.users))
  // A new column must be exported to the user, or excluded on purpose.
  t.deepEqual(
    Object.keys(own.users).sort(),
    [
      ...['activated_at', 'active', 'created_at', 'email', 'email_proved', 'has_password', 'id', 'organization_id'],
      ...[
        'password_updated_at',
        'role',
        'security_question',
        'suspended',
        'desk',
        'terms_of_usage',
        'unactivated_seen_at',
      ],
      ...['username', ...Object.values(profileFields).map(({ column }) => column)],
    ].sort(),
  )
  for (const [table, rows] of Object.entries<object[]>(all)) {
    if (['users', 'audit_events', 'audit_staged'].includes(table)) continue
    const expected = rows.map(row => without(more[table as keyof typeof more] ?? [], row))
    t.deepEqual(own[table], expected, table)
  }
  const missing = Object.keys(all).filter(table => !(table in own))
  t.deepEqual(missing, ['audit_staged'])
  for (const event of own.audit_events)
    t.deepEqual(Object.keys(event).sort(), ['action', 'address', 'by', 'refused', 'time'])

  const over = await client.call(Users.method.exportMe, {}, { token })
  t.deepEqual(JSON.parse(over.json).users, own.users)
  const recorded = await service.registry.audit.list({ subjectId: id, action: 'user.export-own', limit: 9 })
  t.like(recorded, { length: 2, 0: { actor: 'user', actor_id: id }, 1: { actor: 'user', actor_id: id } })
})

test('a user lists its events, newest first, with the actor in plain words and only its own addresses', async t => {
  const { token, foreign } = await fillEveryTable(t)
  const answer = await service.request('GET', '/users/me/events', { token })
  t.is(answer.status, 200, answer.text)
  t.is(answer.json.nextPageToken, '')
  const events: Record<string, string>[] = answer.json.events
  t.deepEqual(
    events.map(({ action, refused, by, address, time, ...more }) =>
      [action, refused, by, address, ...Object.keys(more)].join(' '),
    ),
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
  const times = events.map(({ time }) => Date.parse(time!))
  t.deepEqual(
    times,
    times.toSorted((a, b) => b - a),
  )
  t.true(Math.abs(times[0]! - Date.now()) < 600_000)
  for (const text of foreign) t.false(answer.text.includes(text), text)
  const over = await client.call(Users.method.listMyEvents, {}, { token })
  const same = events.map(({ action, by }) => ({ action, by }))
  t.like(over.events, { ...same, length: events.length })
})

test('an administrator lists its events on other users, without data about those users', async t => {
  const { username, api } = await chief(t)
  const other = await service.signUp('ROLE_CLIENT')
  await api.suspendUser({ user: other.username })
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
  const pages = await allPages(
    pageToken => page({ pageSize: '500', pageToken }),
    ({ events }) => [events.map(({ time }) => Date.parse(time))],
  )
  t.is(pages.map(({ length }) => length).join(), '500,500,101')
  const times = pages.flat()
  t.deepEqual(
    times,
    [...new Set(times)].toSorted((a, b) => b - a),
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
  for (const [field, answer] of [
    ['pageToken', await list({ pageToken }, other.token)],
    ['pageToken', await list({ pageToken: pageToken.slice(2) })],
    ['pageToken', await list({ pageToken: 'x'.repeat(5000) })],
    ['pageSize', await list({ pageSize: '-1' })],
  ] as const) {
    refused(t, answer, 400, 'INVALID_ARGUMENT')
    t.deepEqual(wrongFields(answer), [field])
  }
  for (const pageSize of ['', 'x', '1.5', '1e2', ' 1', '2147483648', '99999999999']) {
    const answer = await list({ pageSize })
    refused(t, answer, 400, 'MALFORMED_REQUEST')
    t.deepEqual(wrongFields(answer), ['pageSize'])
    // Permission is checked first.
    refused(t, await service.request('GET', '/users/me/events', { query: { pageSize } }), 403, 'ACCESS_DENIED')
  }
})

test('GetMe returns on request the sign-in before that of its session, over gRPC and Connect, and never over HTTP', async t => {
  const own = await serviceWithClock(t)
  const grpc = grpcOf(t, own.grpc)
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
  const { username, api } = await chief(t)
  await service.login(username)
  const withSignIn = async () => {
    const token = await service.login(username)
    return client.call(Users.method.getMe, { withPreviousSignIn: true }, { token })
  }
  t.truthy((await withSignIn()).previousSignIn)
  const { secret } = await api.enrollTotp({})
  await api.confirmTotp({ code: new TOTP({ secret }).generate() })
  t.like(await withSignIn(), { user: { username }, previousSignIn: undefined })
})
