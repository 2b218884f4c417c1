/** Data keys: one set for all processes, wrapped by the master key, unchanged in an older registry. */
import test from 'ava'
import { openDatabase } from '../../server/database/connection.js'
import { migrate } from '../../server/database/migrate.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { defineModels } from '../../server/models/define-models.js'
import { createMasterKey, dataKeyNames, derivedDataKeys, randomDataKeys } from '../../server/models/master-key.js'
import { createPasswords } from '../../server/passwords/hash.js'
import { createPool } from '../../server/passwords/pool.js'
import { freshDatabase, type Teardown } from '../_helpers/database.js'
import { addUser } from '../_helpers/models.js'
import { password, startTestService } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const masterKey = Buffer.alloc(32, 7)
const other = { AUTH_MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }
const wrong = { message: 'AUTH_MASTER_KEY is not the key that this database was set up with.' }

async function open(t: Teardown, options?: { from: string }) {
  const url = await freshDatabase(t, options)
  const database = openDatabase(url)
  t.teardown(() => database.close())
  return { url, database }
}

/** A registry as the version before left it: keys derived from the master key, an audit log without MACs. */
async function registryFromBefore(t: Teardown) {
  const { url, database } = await open(t, { from: 'template0' })
  await migrate(database, 9)
  const keys = createMasterKey(() => ({ ...randomDataKeys(), ...derivedDataKeys(masterKey) }))
  const models = defineModels(database, { ...keys, ...createStoredKeys(database, masterKey), ...keys })
  const pool = createPool({ cost: 4, count: 1 })
  const passwords = createPasswords({ pepper: keys.pepper, cost: 4, pool })
  const waiter = { kind: 'other', networks: [], account: '', deadline: Number.POSITIVE_INFINITY } as const
  const [hash] = await passwords.hash([{ context: 'password', text: password }], waiter)
  await pool.close()
  const kid = await database.transact(t => models.signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, t))
  const id = await addUser(models, 'ana')
  await database.sequelize.query('UPDATE users SET password_hash = $1', { bind: [hash!] })
  const organization = await database.transact(t =>
    models.organizations.add({ name: 'Escola Azul', nameKey: 'escola azul' }, t),
  )
  for (let index = 0; index < 5; index++) {
    await database.sequelize.query(
      `SELECT audit_append('{"action": "session.login", "outcome": "ok", "actor": "user", "subject_id": ${id}}')`,
    )
  }
  const activationKey = models.organizations.activationKey(organization)
  return { url, database, kid, activationKey }
}

test('an older registry keeps working: passwords, keys and an audit log that verifies', async t => {
  const { url, database, kid, activationKey } = await registryFromBefore(t)
  const service = await startTestService(t, { DATABASE_URL: url })
  const { registry } = service
  t.truthy(await service.login('ana'))
  t.is((await registry.signingKeys.all())[0]!.kid, kid!)
  const found = await database.transact(t => registry.organizations.byActivationKey(activationKey, t))
  t.truthy(found)
  const verified = await waitFor(async () => {
    const found = await registry.audit.verify()
    return found.staged === 0 && found
  })
  t.is(verified.broken, undefined)
  t.true(verified.events > 5)
  const run = (text: string) => database.sequelize.query(text)
  await run('CREATE TABLE kept AS TABLE audit_events')
  const deeds: Record<string, [statement: string, broken: string]> = {
    'alters one from before': [`UPDATE audit_events SET outcome = 'refused' WHERE id = 2`, '2'],
    'removes one from before': ['DELETE FROM audit_events WHERE id = 3', '3'],
    'removes the last from before': ['DELETE FROM audit_events WHERE id = 5', '5'],
    'writes all from before anew': [
      `DO $$ DECLARE e audit_events; previous bytea := ''; BEGIN
        UPDATE audit_events SET outcome = 'refused' WHERE id = 2;
        FOR e IN SELECT * FROM audit_events WHERE id <= 5 ORDER BY id LOOP
          previous := audit_hash(e, previous);
          UPDATE audit_events SET hash = previous WHERE id = e.id;
        END LOOP; END $$`,
      '6',
    ],
  }
  for (const [name, [statement, broken]] of Object.entries(deeds)) {
    await run(statement)
    t.is((await registry.audit.verify()).broken, broken, name)
    await run('TRUNCATE audit_events')
    await run('INSERT INTO audit_events SELECT * FROM kept')
  }
  t.is((await registry.audit.verify()).broken, undefined)
})

test('an older registry can’t be opened with another master key', async t => {
  const { url, database } = await registryFromBefore(t)
  await t.throwsAsync(startTestService(t, { DATABASE_URL: url, ...other }), wrong)
  t.deepEqual((await database.sequelize.query('SELECT FROM data_keys'))[0], [])
  const service = await startTestService(t, { DATABASE_URL: url })
  t.truthy(await service.login('ana'))
})

test('processes that start at once agree on one set of keys', async t => {
  const { database } = await open(t)
  const stores = Array.from({ length: 8 }, () => createStoredKeys(database, masterKey))
  const made = await Promise.all(stores.map(keys => database.transact(t => keys.install(t))))
  t.is(made.filter(Boolean).length, 1)
  const late = createStoredKeys(database, masterKey)
  await late.load()
  t.is(new Set([...stores, late].map(keys => keys.digest('x', 'y').toString('hex'))).size, 1)
  t.is(new Set([...stores, late].map(keys => keys.pepper().toString('hex'))).size, 1)
  t.is(late.open('x', stores[0]!.seal('x', 'secret')), 'secret')
})

test('the data keys of a new registry are random and distinct, and never stored in the clear', async t => {
  const [one, two] = [await open(t), await open(t)]
  const keys = createStoredKeys(one.database, masterKey)
  const others = createStoredKeys(two.database, masterKey)
  await one.database.transact(t => keys.install(t))
  await two.database.transact(t => others.install(t))
  t.notDeepEqual(keys.pepper(), others.pepper())
  t.notDeepEqual(keys.pepper(), derivedDataKeys(masterKey).pepper)
  t.throws(() => others.open('x', keys.seal('x', 'secret')))
  const [rows] = await one.database.sequelize.query('SELECT name, wrapped FROM data_keys')
  const stored = rows as { name: string; wrapped: Buffer }[]
  t.deepEqual(stored.map(({ name }) => name).sort(), [...dataKeyNames].sort())
  for (const { wrapped } of stored) t.false(wrapped.includes(keys.pepper()))
  // A wrapped key opens under its own name only.
  await one.database.sequelize.query(`DELETE FROM data_keys WHERE name = 'sealing'`)
  await one.database.sequelize.query(`UPDATE data_keys SET name = 'sealing' WHERE name = 'pepper'`)
  await t.throwsAsync(createStoredKeys(one.database, masterKey).load(), wrong)
})

test('a wrong master key is reported as such, and any other error as itself', async t => {
  const { database } = await open(t)
  await database.transact(t => createStoredKeys(database, masterKey).install(t))
  await t.throwsAsync(createStoredKeys(database, Buffer.alloc(32, 8)).load(), wrong)
  const nowhere = openDatabase('postgres://u:p@127.0.0.1:1/x')
  t.teardown(() => nowhere.close())
  const { message } = await t.throwsAsync(createStoredKeys(nowhere, masterKey).load())
  t.regex(message, /ECONNREFUSED/)
  const empty = await open(t)
  await t.throwsAsync(createStoredKeys(empty.database, masterKey).load(), { message: /auth-admin install/ })
})

test('after a change of the master key running processes continue, and the next start needs the new key', async t => {
  const service = await startTestService(t)
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const { database, masterKey: keys } = service.registry
  await database.transact(t => keys.rotate(Buffer.alloc(32, 8), t))
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  t.truthy(await service.login(username))
  const { DATABASE_URL } = service.env as { DATABASE_URL: string }
  await t.throwsAsync(startTestService(t, { DATABASE_URL }), wrong)
  const next = await startTestService(t, { DATABASE_URL, ...other })
  t.truthy(await next.login(username))
  t.is((await next.request('GET', '/users/me', { token })).status, 200)
})
