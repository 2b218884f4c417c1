/** Data keys: one set for all processes, wrapped by the master key. */
import test from 'ava'
import { openDatabase } from '../../server/database/connection.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { freshDatabase, type Teardown } from '../_helpers/database.js'
import { startTestService } from '../_helpers/service.js'

const masterKey = Buffer.alloc(32, 7)
const other = { AUTH_MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }
const wrong = { message: 'AUTH_MASTER_KEY is not the key that this database was set up with.' }

async function open(t: Teardown) {
  const database = openDatabase(await freshDatabase(t))
  t.teardown(() => database.close())
  return { database }
}

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

test('the data keys of a new registry are random, each another, and stand in no table in the clear', async t => {
  const [one, two] = [await open(t), await open(t)]
  const keys = createStoredKeys(one.database, masterKey)
  const others = createStoredKeys(two.database, masterKey)
  await one.database.transact(t => keys.install(t))
  await two.database.transact(t => others.install(t))
  t.notDeepEqual(keys.pepper(), others.pepper())
  t.throws(() => others.open('x', keys.seal('x', 'secret')))
  const [rows] = await one.database.sequelize.query('SELECT name, wrapped FROM data_keys')
  const stored = rows as { name: string; wrapped: Buffer }[]
  t.deepEqual(stored.map(({ name }) => name).sort(), ['audit', 'digesting', 'pepper', 'sealing'])
  for (const { wrapped } of stored) t.false(wrapped.includes(keys.pepper()))
  // A wrapped key opens under its own name only.
  await one.database.sequelize.query(`DELETE FROM data_keys WHERE name = 'sealing'`)
  await one.database.sequelize.query(`UPDATE data_keys SET name = 'sealing' WHERE name = 'pepper'`)
  await t.throwsAsync(createStoredKeys(one.database, masterKey).load(), wrong)
})

test('a wrong master key is told as that, and any other fault as itself', async t => {
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

test('with a new master key whoever runs goes on, and the next start needs the new one', async t => {
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
