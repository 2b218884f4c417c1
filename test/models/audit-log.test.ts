/** The audit log in its tables: it verifies after retention and erasures, and records every revocation. */
import test from 'ava'
import { startMaintenance } from '../../server/jobs/maintenance.js'
import type { AuditEvent } from '../../server/models/audit.js'
import type { Models } from '../../server/models/define-models.js'
import { createLog } from '../../server/observability/log.js'
import { addUser, appendMany, openModels } from '../_helpers/models.js'
import type { TestService } from '../_helpers/service.js'
import { serviceWithClock } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

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

const sealed = ({ registry }: TestService) =>
  waitFor(async () => {
    const found = await registry.audit.verify()
    return found.staged === 0 && found
  })

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
  await append(registry, 5200)
  const old = await sealed(service)
  await clock.pass(60 * 86_400)
  await append(registry, 3)
  const { round, lines } = maintenanceOf(t, service)
  await round()
  t.is((await sealed(service)).events, old.events + 3)
  await clock.pass(31 * 86_400)
  await round()
  const kept = await sealed(service)
  // Those of 31 days ago, and later ones.
  const [{ first }] = (await sql(registry, 'SELECT min(id)::int AS first FROM audit_events')) as [{ first: number }]
  t.is(first, old.events + 1)
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
