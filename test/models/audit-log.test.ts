/** The audit log in its tables: it verifies after retention and erasures, and records every revocation. */
import test from 'ava'
import { startMaintenance } from '../../server/jobs/maintenance.js'
import { startSealing } from '../../server/jobs/sealing.js'
import type { AuditEvent } from '../../server/models/audit.js'
import type { Models } from '../../server/models/index.js'
import { createLog } from '../../server/observability/log.js'
import { usernameKey } from '../../server/rules/names.js'
import { contents } from '../_helpers/backups.js'
import { runCli } from '../_helpers/cli.js'
import { ask } from '../_helpers/database.js'
import { mailboxForFile } from '../_helpers/mailbox.js'
import { addUser, appendMany, openModels, sealed } from '../_helpers/models.js'
import { refused } from '../_helpers/problem.js'
import { serviceWithClock, startTestService, type TestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

const sql = async ({ database }: Pick<Models, 'database'>, text: string) =>
  (await database.sequelize.query(text))[0] as Record<string, unknown>[]

const event = (more: Partial<AuditEvent> = {}): AuditEvent => ({
  action: 'session.login',
  outcome: 'ok',
  actor: 'user',
  address: '192.0.2.7',
  ...more,
})

/** Appends that many events and seals them. */
const append = (models: Pick<Models, 'audit' | 'database'>, count: number, more = {}) =>
  appendMany(
    models,
    Array.from({ length: count }, () => event(more)),
  )

const never = { first: 2 ** 31 - 1, interval: 2 ** 31 - 1 }

/** Maintenance that runs on demand, and what it logged. */
function maintenanceOf(t: { teardown(work: () => Promise<void>): void }, { registry, settings }: TestService) {
  const lines: string[] = []
  const log = createLog('error', line => void lines.push(line))
  const { round, stop } = startMaintenance(registry, settings, log, never)
  t.teardown(stop)
  return { round, lines }
}

test('events older than AUTH_AUDIT_RETENTION are deleted, and the rest still verifies', async t => {
  const service = await serviceWithClock(t, { AUTH_AUDIT_RETENTION: '90d' })
  const { registry, clock } = service
  // More than one batch.
  await append(registry, 2200)
  const old = await sealed(service)
  await clock.pass(60 * 86_400)
  await append(registry, 3)
  const { round, lines } = maintenanceOf(t, service)
  await round()
  t.is((await sealed(service)).events, old.events + 3)
  await clock.pass(31 * 86_400)
  // Those of 31 days ago, and later ones. A round leaves this step to another process, here the service, that is in it.
  const first = () => sql(registry, 'SELECT min(id)::int AS first FROM audit_events')
  await waitFor(async () => {
    await round()
    return (await first())[0]!.first === old.events + 1
  }, first)
  const kept = await sealed(service)
  t.is(kept.broken, undefined)
  t.true(kept.events >= 3 && kept.events < 100)
  t.like(await registry.audit.verify(old.newest), { broken: undefined, forgotten: false })
  t.like(await registry.audit.verify(`1:${'0'.repeat(64)}`), { broken: undefined, forgotten: true })
  await append(registry, 2)
  t.like(await sealed(service), { broken: undefined, events: kept.events + 2 })
  await clock.pass(1000 * 86_400)
  await round()
  t.is((await sealed(service)).broken, undefined)
  t.deepEqual(lines, [])
})

test('an insider can’t have events deleted early, nor hide missing ones behind a checkpoint', async t => {
  const service = await serviceWithClock(t, { AUTH_AUDIT_RETENTION: '90d' })
  const { registry } = service
  await append(registry, 9)
  const { events } = await sealed(service)
  const { round, lines } = maintenanceOf(t, service)
  await sql(registry, 'CREATE TABLE kept AS TABLE audit_events')
  await sql(registry, 'CREATE TABLE kept_checkpoint AS TABLE audit_checkpoint')

  await sql(registry, `UPDATE audit_events SET at = at - interval '200 days' WHERE id <= 3`)
  // A round leaves this step to another process, here the service, that is in it.
  await waitFor(async () => {
    await round()
    return /audit log is broken/.test(lines.join())
  })
  t.is((await registry.audit.verify()).broken, '1')
  t.is((await registry.audit.list({ limit: 100 })).length, events)

  const deeds: Record<string, [statements: string[], broken: string]> = {
    'deletes the oldest and moves the checkpoint': [
      [
        'DELETE FROM audit_events WHERE id <= 3',
        'UPDATE audit_checkpoint SET (id, hash) = (SELECT id, hash FROM kept WHERE id = 3)',
      ],
      'checkpoint',
    ],
    'takes the signature away': [['UPDATE audit_checkpoint SET mac = NULL'], 'checkpoint'],
  }
  for (const [name, [statements, broken]] of Object.entries(deeds)) {
    // Not TRUNCATE, whose locks can form a deadlock with those of a process that reads both tables.
    for (const table of ['audit_events', 'audit_checkpoint']) await sql(registry, `DELETE FROM ${table}`)
    await sql(registry, 'INSERT INTO audit_events SELECT * FROM kept')
    await sql(registry, 'INSERT INTO audit_checkpoint SELECT * FROM kept_checkpoint')
    t.is((await registry.audit.verify()).broken, undefined)
    for (const statement of statements) await sql(registry, statement)
    t.is((await registry.audit.verify()).broken, broken, name)
  }
})

test('the addresses of a user’s events can be erased with their salts, and the audit log still verifies', async t => {
  const models = await openModels(t)
  await append(models, 3, { subject_id: 7 })
  await models.audit.append(event({ subject_id: 7 }))
  for (const table of ['audit_events', 'audit_staged']) {
    const [{ salts }] = (await sql(models, `SELECT count(DISTINCT salt)::int AS salts FROM ${table}`)) as [
      { salts: number },
    ]
    t.is(salts, table === 'audit_events' ? 3 : 1)
    await sql(models, `UPDATE ${table} SET address = NULL, salt = NULL WHERE subject_id = 7`)
  }
  t.like(await models.audit.verify(), { broken: undefined, events: 3, staged: 1 })
  await models.audit.seal()
  t.like(await models.audit.verify(), { broken: undefined, events: 4, staged: 0 })
  // The remaining digest matches no other address.
  await sql(models, `UPDATE audit_events SET address = '192.0.2.8', salt = sha256('x') WHERE id = 2`)
  t.is((await models.audit.verify()).broken, '2')
})

test('a change of a user’s token generation without an event of that user in the same transaction is refused', async t => {
  const { audit, database } = await openModels(t).then(async models => {
    for (const name of ['ana', 'bia']) await addUser(models, name)
    return models
  })
  const change = (by: string, id?: number) =>
    database.transact(async transaction => {
      await database.sequelize.query(`UPDATE users SET token_generation = token_generation ${by} WHERE id = 1`, {
        transaction,
      })
      if (id !== undefined) await audit.append(event({ action: 'user.revoke-tokens', subject_id: id }), transaction)
    })
  const message = /token generation of user 1 changes without an event/
  await t.throwsAsync(change('+ 1'), { message })
  await t.throwsAsync(change('+ 1', 2), { message })
  await change('+ 1', 1)
  // Neither with an event of another transaction, sealed or not, nor by a lower generation.
  await t.throwsAsync(change('+ 1'), { message })
  await audit.seal()
  await t.throwsAsync(change('- 1'), { message })
  await database.sequelize.query(`UPDATE users SET nickname = 'x', token_generation = token_generation WHERE id = 1`)
  t.is((await audit.verify()).events, 1)
})

test('a stop of the sealing seals the events that are left', async t => {
  const models = await openModels(t)
  await models.audit.append(event())
  // Before its first round.
  await startSealing(models, createLog('silent'))()
  t.like(await models.audit.verify(), { broken: undefined, events: 1, staged: 0 })
})

// Erasing a user: no table names it any more, and the audit log still verifies.

const mailbox = mailboxForFile()

/** Waits for the next recovery key; notices come to the same address. */
async function nextKey(email: string): Promise<void> {
  for (let text = ''; !/: [2-9A-HJ-NP-Z]{8}$/m.test(text); ) text = (await mailbox.nextEmail(email)).text ?? ''
}

test('an erased user is in no table, its address in no event, and the audit log verifies', async t => {
  const service = await startTestService(t, { SMTP_URL: mailbox.url })
  const { registry, request } = service
  const { audit, database, emails, erasure } = registry
  const url = service.env.DATABASE_URL!
  const [address, others] = ['198.51.100.77', '203.0.113.8']
  const headers = { 'x-forwarded-for': address }
  const email = 'plantada@example.org'
  const planted = { nickname: 'plantada-no-apelido', email, city: 'Plantada da Serra', institution: 'Plantada S.A.' }
  const other = await service.signUp('ROLE_CLIENT')
  const untouched = await contents(url)

  // Every table gets a row of the user.
  const organization = await service.organization()
  const user = await service.signUp('ROLE_INSTITUTION', planted)
  const { username, token } = user
  const id = idOf(token)
  const post = (path: string, query: Record<string, string>, body?: object) =>
    request('POST', path, { query, token, headers, ...(body && { body }) })
  await post('/users/activate', { username, activationkey: '8a4b1d8c-0000-4000-8000-000000000000' })
  const partner = { username, emailpartner: organization.email }
  const sent = await post('/1.0.0/users/sendadminkeybyemailpartner', partner)
  t.is(sent.status, 200, sent.text)
  await mailbox.nextEmail(organization.email)
  const elsewhere = { 'x-forwarded-for': '198.51.100.78' }
  await request('POST', '/forgotpasswords/sendkeybyemail', { query: { username, email }, headers: elsewhere })
  await nextKey(email)
  t.is((await post('/users/activate', { username, activationkey: organization.activationkey })).status, 200)
  t.is((await post('/users/login', { username, password: service.env.AUTH_ADMIN_PASSWORD! })).status, 200)
  await post('/users/login', { username, password: 'wrong' })
  // The account knows the network and the device.
  for (const [near, bearer] of [
    ['198.51.100.79', undefined],
    ['192.0.2.9', token],
  ]) {
    const from = { 'x-forwarded-for': near!, ...(bearer && { authorization: `Bearer ${bearer}` }) }
    await request('POST', '/users/login', { query: { username, password: 'wrong' }, headers: from })
  }
  const answer = { forgotpasswordquestionsid: 1, answer: 'plantada' }
  t.is((await post('/forgotpasswords/saveforgotpasswordquestionsusersanswers', {}, answer)).status, 200)
  t.is((await post('/forgotpasswords/sendkeybyemail', { username, email })).status, 200)
  await nextKey(email)
  await post('/forgotpasswords/loginbyusernameandkey', { username, key: 'ABCDEFGH' })
  t.is((await request('GET', '/users/me/export', { token, headers })).status, 200)
  await waitForValue(async () => (await audit.verify()).staged, 0)
  const lived = await contents(url)
  const tables = ['users', 'provider_keys', 'answers', 'known_addresses', 'mailed_keys', 'attempts', 'email_quotas']
  for (const table of tables) t.true(lived[table]!.length > untouched[table]!.length, table)

  const receipt = (await database.transact(async transaction => {
    // They wait to be sent or sealed.
    const waiting = { usernameKey: usernameKey(username), email, address, requestId: 'r' }
    await emails.add({ kind: 'recovery-key', stage: 'requested', parameters: waiting }, 'en', transaction)
    await emails.add(
      { kind: 'password-changed', stage: 'requested', parameters: { userId: id, at: 'x', address } },
      'en',
      transaction,
    )
    const event = { action: 'user.set-email', outcome: 'ok', actor: 'user', subject_id: id } as const
    await audit.append({ ...event, actor_id: id, address }, transaction)
    await audit.append({ ...event, actor_id: idOf(other.token), address: others }, transaction)
    await audit.append({ ...event, subject_id: idOf(other.token), actor_id: id, address }, transaction)
    return erasure.erase(id, transaction)
  }))!

  t.is(receipt.user, id)
  t.true(Math.abs(Date.now() - Date.parse(receipt.eraseTime)) < 600_000)
  const { audit_events, audit_staged, ...rows } = receipt.rows
  t.is(audit_staged, 2)
  t.true(audit_events! >= 4)
  // Tables are read one after another: no event may move between them meanwhile.
  await waitForValue(async () => (await audit.verify()).staged, 0)
  const left = await contents(url)
  for (const [table, count] of Object.entries(rows)) {
    const before = lived[table]!.length + (table === 'emails' ? 2 : 0)
    t.is(count, before - left[table]!.length, table)
    // The e-mail to the organization counts for the organization.
    t.is(left[table]!.length, untouched[table]!.length + (table === 'email_quotas' ? 1 : 0), table)
  }
  const text = JSON.stringify(left)
  for (const secret of [username, user.nickname, email, usernameKey(username), address, ...Object.values(planted)])
    t.false(text.includes(secret), secret)
  // The address of another user who acted on this user isn't this user's.
  t.true(text.includes(others))
  const referring = await ask(
    url,
    `SELECT conrelid::regclass::text AS name FROM pg_constraint WHERE contype = 'f' AND confrelid = 'users'::regclass`,
  )
  for (const { name } of referring) t.true(String(name) in receipt.rows, `the receipt has ${name}`)

  await waitForValue(async () => (await audit.verify()).staged, 0)
  const verified = await runCli(service.env, ['audit', 'verify'])
  t.is(verified.code, 0, verified.stderr)
  // Its own actions stay, under its id.
  t.true((await audit.list({ limit: 1000, subjectId: id })).length >= 6)
  refused(t, await request('GET', '/users/me', { token }), 500, 'INVALID_TOKEN')
  refused(
    t,
    await post('/users/login', { username, password: service.env.AUTH_ADMIN_PASSWORD! }),
    404,
    'INVALID_CREDENTIALS',
  )
  const again = await service.signUp('ROLE_CLIENT', { username, nickname: user.nickname })
  t.not(idOf(again.token), id)
  t.is((await request('GET', '/users/me', { token: other.token })).status, 200)
})

test('a user is erased once, and an incomplete erasure is rolled back', async t => {
  const service = await startTestService(t)
  const { database, erasure, users } = service.registry
  const { token } = await service.signUp('ROLE_CLIENT')
  const erase = () => database.transact(transaction => erasure.erase(idOf(token), transaction))
  const url = service.env.DATABASE_URL!
  await ask(url, 'ALTER TABLE audit_events ADD CONSTRAINT closed CHECK (address IS NOT NULL) NOT VALID')
  await waitForValue(async () => (await service.registry.audit.verify()).staged, 0)
  await t.throwsAsync(erase())
  t.truthy(await users.byId(idOf(token)))
  await ask(url, 'ALTER TABLE audit_events DROP CONSTRAINT closed')
  t.is((await erase())!.rows.users, 1)
  t.is(await erase(), undefined)
  t.is(await users.byId(idOf(token)), undefined)
})
