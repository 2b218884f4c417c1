/** Upkeep: what has lapsed goes, what is good stays, and nobody waits for it. */
import { randomUUID } from 'node:crypto'
import test from 'ava'
import { createLog } from '../../server/log.js'
import { startMaintenance } from '../../server/maintenance.js'
import type { Models } from '../../server/models/definemodels.js'
import { addUser, endsOrWaits, openModels, waits } from '../_helpers/models.js'
import { waitFor } from '../_helpers/patience.js'
import { refused } from '../_helpers/problem.js'
import { startTestService } from '../_helpers/service.js'
import { idOf } from '../_helpers/tokens.js'

const log = createLog('silent')
const never = { first: 2 ** 31 - 1, interval: 2 ** 31 - 1 }

/** Maintenance that does a round when it is told to. */
function maintenance(t: { teardown(work: () => Promise<void>): void }, models: Models, times = never) {
  const started = startMaintenance(models, { tokenTtl: 3600, auditRetention: 86_400 }, log, times)
  t.teardown(() => started.stop())
  return started
}

async function texts({ database }: Models, query: string): Promise<string[]> {
  const [rows] = await database.sequelize.query(query)
  return (rows as { text: string }[]).map(({ text }) => text)
}

const rotate = ({ database, signingKeys }: Models) =>
  database.transact(t => signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, t))

test('a round deletes what has lapsed, and nothing else', async t => {
  const models = await openModels(t)
  const user = await addUser(models, 'ana')
  const [old, newer] = [await rotate(models), await rotate(models)]
  await models.database.sequelize.query(`
    INSERT INTO attempts VALUES ('lapsed', 1, now() - interval '1 second'), ('good', 1, now() + interval '1 minute');
    INSERT INTO buckets VALUES ('lapsed', 300, now() - interval '181 minutes'), ('good', 300, now() - interval '179 minutes');
    INSERT INTO email_quotas VALUES ('lapsed', ARRAY[now() - interval '25 hours']),
      ('good', ARRAY[now() - interval '25 hours', now() - interval '23 hours']);
    INSERT INTO known_addresses VALUES (${user}, 'lapsed', now() - interval '31 days'),
      (${user}, 'good', now() - interval '29 days');
    INSERT INTO mailed_keys (user_id, purpose, key_digest, expires_at)
      VALUES (${user}, 'recovery', '', now() - interval '1 second'), (${user}, 'activation', '', now() + interval '1 minute');
    UPDATE signing_keys SET verifies_until = now() - interval '1 second' WHERE kid = '${old}'`)
  await maintenance(t, models).round()
  for (const table of ['attempts', 'buckets', 'email_quotas']) {
    t.deepEqual(await texts(models, `SELECT convert_from(subject, 'UTF8') AS text FROM ${table}`), ['good'], table)
  }
  t.deepEqual(await texts(models, `SELECT convert_from(address, 'UTF8') AS text FROM known_addresses`), ['good'])
  t.deepEqual(await texts(models, 'SELECT purpose AS text FROM mailed_keys'), ['activation'])
  t.deepEqual(await texts(models, 'SELECT kid AS text FROM signing_keys'), [newer!])
})

test('a round succeeds a signing key of 90 days, and says so in the audit log; a younger one stays', async t => {
  const models = await openModels(t)
  const first = await rotate(models)
  const { round } = maintenance(t, models)
  const age = (days: number) =>
    models.database.sequelize.query(`UPDATE signing_keys SET signs_at = now() - interval '${days} days'`)
  const kids = async () => (await models.signingKeys.all()).map(({ kid }) => kid)
  await age(89)
  await round()
  t.deepEqual(await kids(), [first!])
  await age(91)
  await round()
  const [second, last] = await kids()
  t.is(last, first)
  t.deepEqual(await texts(models, `SELECT action || ' ' || reason || ' ' || object AS text FROM audit_staged`), [
    `signing-key.rotate age signing-key:${second}`,
  ])
})

test('a round passes over a count that a sign-in is using', async t => {
  const models = await openModels(t)
  const { database } = models
  await database.sequelize.query(
    `INSERT INTO attempts VALUES ('used', 1, now() - interval '1 day'), ('unused', 1, now() - interval '1 day')`,
  )
  await database.transact(async transaction => {
    await database.sequelize.query(`UPDATE attempts SET count = 2 WHERE subject = 'used'`, { transaction })
    t.is(await endsOrWaits(database, maintenance(t, models).round()), 'ends')
  })
  t.deepEqual(await texts(models, `SELECT convert_from(subject, 'UTF8') AS text FROM attempts`), ['used'])
})

test('rounds go on by themselves, and stopping waits for the one under way', async t => {
  const models = await openModels(t)
  const { database } = models
  const lapse = () => database.sequelize.query(`INSERT INTO attempts VALUES ('x', 1, now() - interval '1 day')`)
  const gone = async () => (await texts(models, 'SELECT subject::text AS text FROM attempts')).length === 0
  const { stop } = maintenance(t, models, { first: 1, interval: 50 })
  for (let times = 0; times < 3; times++) {
    await lapse()
    await waitFor(gone)
  }
  let stopping: Promise<void> | undefined
  await database.transact(async transaction => {
    await database.sequelize.query('LOCK TABLE mailed_keys', { transaction })
    await waitFor(() => waits(database))
    stopping = stop()
    t.is(await endsOrWaits(database, stopping), 'waits')
  })
  await stopping
  await lapse()
  await database.sequelize.query('SELECT pg_sleep(0.2)')
  t.false(await gone())
})

test('a service begins a round of its own soon after its start', async t => {
  const first = await startTestService(t)
  const { sequelize } = first.registry.database
  await sequelize.query(`INSERT INTO attempts VALUES ('lapsed', 1, now() - interval '1 day')`)
  const left = async () => (await sequelize.query(`SELECT FROM attempts WHERE subject = 'lapsed'`))[0].length > 0
  if (await left()) await startTestService(t, { DATABASE_URL: first.env.DATABASE_URL! })
  await waitFor(async () => !(await left()))
  t.pass()
})

test('an activation key that was mailed more than 72 hours ago activates nobody', async t => {
  const service = await startTestService(t)
  const { mailedKeys, database } = service.registry
  const organization = await service.organization()
  const { username, token } = await service.signUp('ROLE_INSTITUTION')
  const activationkey = randomUUID()
  const mail = () => mailedKeys.replace(idOf(token), 'activation', activationkey, organization.id)
  const activate = () => service.request('POST', '/users/activate', { token, query: { username, activationkey } })
  await mail()
  await database.sequelize.query(`UPDATE mailed_keys SET expires_at = expires_at - interval '72 hours'`)
  refused(t, await activate(), 422, 'ACTIVATION_REFUSED')
  await mail()
  await database.sequelize.query(`UPDATE mailed_keys SET expires_at = expires_at - interval '71 hours 59 minutes'`)
  t.is((await activate()).text, username)
})
