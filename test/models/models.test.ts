/** Models and tables: each table has a matching model, whose verbs keep the invariants of its rows. */
import test from 'ava'
import { openDatabase } from '../../server/database/database.js'
import type { Device } from '../../server/models/attempt.js'
import { createStoredKeys } from '../../server/models/data-key.js'
import { knowableNetworks } from '../../server/models/known-network.js'
import { freshDatabase, type Teardown } from '../_helpers/database.js'
import { addUser, openModels } from '../_helpers/models.js'
import { startTestService } from '../_helpers/service.js'

test('the attributes of every model are the columns of its table, of their types, and as optional as they are', async t => {
  const { sequelize } = (await openModels(t)).database
  const [columns] = (await sequelize.query(`
    SELECT c.table_name AS table, c.column_name AS column,
      (SELECT format_type(atttypid, NULL) FROM pg_attribute
        WHERE attrelid = c.table_name::regclass AND attname = c.column_name) AS type,
      c.is_nullable = 'YES' OR c.column_default IS NOT NULL OR c.is_identity = 'YES' AS optional,
      EXISTS (SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
        WHERE i.indisprimary AND i.indrelid = c.table_name::regclass AND a.attname = c.column_name) AS key
    FROM information_schema.columns c WHERE c.table_schema = 'public'`)) as [Record<string, unknown>[], unknown]
  const attributes = Object.values(sequelize.models).flatMap(model =>
    Object.values(model.getAttributes()).map(({ field, type, allowNull, primaryKey = false }) => ({
      table: model.getTableName(),
      column: field,
      type: (type as unknown as { toSql(): string }).toSql().toLowerCase(),
      optional: allowNull,
      key: primaryKey,
    })),
  )
  const sorted = (rows: object[]) => rows.map(row => JSON.stringify(row)).sort()
  t.true(attributes.length > 60)
  t.deepEqual(sorted(attributes), sorted(columns.filter(({ table }) => String(table) in sequelize.models)))
})

test('a transaction whose work throws is rolled back, and its connection serves the next caller', async t => {
  const { database, questions } = await openModels(t)
  const work = database.transact(async transaction => {
    await questions.add({ question: 'a', questionKey: 'a' }, transaction)
    throw new Error('no')
  })
  await t.throwsAsync(work, { message: 'no' })
  t.is((await questions.all()).length, 0)
  await database.transact(transaction => questions.add({ question: 'b', questionKey: 'b' }, transaction))
  t.deepEqual([(await questions.all()).map(({ question }) => question), database.stats().inUse], [['b'], 0])
})

// Data keys: one set for all processes, wrapped by the master key.

const masterKey = Buffer.alloc(32, 7)
const other = { AUTH_MASTER_KEY: Buffer.alloc(32, 8).toString('base64') }
const wrong = {
  message:
    'AUTH_MASTER_KEY is not the key of this registry, which after `auth-admin master-key rotate` is the new one.',
}

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

test('the data keys of a new registry are random and distinct, and never stored in the clear', async t => {
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
  const { database, dataKeys: keys } = service.registry
  await database.transact(t => keys.rotate(Buffer.alloc(32, 8), t))
  t.is((await service.request('GET', '/users/me', { token })).status, 200)
  t.truthy(await service.login(username))
  const { DATABASE_URL } = service.env as { DATABASE_URL: string }
  await t.throwsAsync(startTestService(t, { DATABASE_URL }), wrong)
  const next = await startTestService(t, { DATABASE_URL, ...other })
  t.truthy(await next.login(username))
  t.is((await next.request('GET', '/users/me', { token })).status, 200)
})

// What an attempt to sign in counts for, and what it must wait for, on a real database.

/** The account knows these; its counter has so many failures and attempts in flight. All other counters are beyond 10. */
const table = `
  the account knows        proof     bucket  failed  in flight  counter  it waits for
  device                   password  full    9       0          device   nothing
  device                   password  full    9       1          device   attempts
  device                   password  room    0       10         device   attempts
  device                   password  room    10      0          device   failures
  device,address,network   password  full    9       0          device   nothing
  address,network          answers   full    9       0          address  nothing
  address,network          answers   full    8       2          address  attempts
  address                  answers   full    10      3          address  failures
  network                  password  full    0       9          network  nothing
  network                  password  full    9       1          network  attempts
  network                  password  room    11      0          network  failures
  nothing                  password  room    9       0          account  nothing
  nothing                  password  room    9       1          account  attempts
  nothing                  password  room    10      0          account  failures
  nothing                  password  full    0       0          account  address
  nothing                  password  full    10      0          account  address
  other’s device           password  room    9       0          account  nothing
  other’s device           password  full    9       0          account  address
  revoked device           password  room    9       0          account  nothing
  revoked device           password  full    9       0          account  address
  revoked device,address   password  full    9       0          address  nothing
  device of a former key   password  room    9       0          account  nothing
  device of a former key   password  full    9       0          account  address
  device                   none      full    0       0          none     nothing
  address                  none      full    0       0          none     nothing
  network                  none      full    0       0          none     nothing
  nothing                  none      room    0       0          none     nothing
  nothing                  none      full    0       0          none     address`

test('an attempt counts where the account knows it, and begins unless its counter or the bucket of an unknown address is full', async t => {
  const models = await openModels(t)
  const { database, attempts, counterKeys } = models
  const limits = { max: 10, bucket: { capacity: 300, perSecond: 1e-9 } }
  const write = (text: string, values: unknown[]) => database.run({ text, values })
  for (const [number, row] of table.trim().split('\n').slice(1).entries()) {
    const [knows = '', way = '', bucket, failed, inFlight, ofCounter = '', waitsFor] = row.trim().split(/ {2,}/)
    const name = `user ${number}`
    const id = await addUser(models, name)
    const address = `192.0.${number}.1`
    const proof = way === 'none' ? undefined : (way as 'password' | 'answers')
    const hasDevice = knows.includes('device')
    const kid = (await models.database.transact(t =>
      models.signingKeys.rotate({ force: true, lead: 0, tokenTtl: 3600 }, t),
    ))!
    const device: Device = {
      kid,
      userId: knows.startsWith('other') ? 0 : id,
      usernameKey: name,
      active: true,
      generation: knows.startsWith('revoked') ? 1 : 0,
      session: 's',
    }
    if (knows.includes('former'))
      await write(`UPDATE signing_keys SET verifies_until = now() - interval '1 second' WHERE kid = $1`, [kid])
    const networks = knowableNetworks(address)
    const [inner, outer] = [counterKeys.knownNetwork(networks[0]), counterKeys.knownNetwork(networks[1])]
    const known = [knows.includes('address') && inner, knows.includes('network') && outer].filter(Boolean)
    for (const network of known)
      await write('INSERT INTO known_addresses (user_id, address) VALUES ($1, $2)', [id, network])
    const counters = proof && {
      device: counterKeys.device(proof, { ...device, userId: id }),
      address: counterKeys.known(proof, name, inner),
      network: counterKeys.known(proof, name, outer),
      account: counterKeys.account(proof, name),
    }
    for (const [which, subject] of Object.entries(counters ?? {})) {
      const [count, flying] = which === ofCounter ? [failed, inFlight] : [11, 11]
      await write(
        `INSERT INTO attempts (subject, count, window_ends, in_flight, in_flight_until)
          VALUES ($1, $2, now() + interval '1 hour', $3, now() + interval '1 hour')`,
        [subject, count, flying],
      )
    }
    const level = bucket === 'full' ? 299.5 : 299
    const ofAddress = counterKeys.address('failures', address)
    await write('INSERT INTO buckets (subject, level, updated_at) VALUES ($1, $2, now())', [ofAddress, level])

    const asked = { usernameKey: name, proof, address, device: hasDevice ? device : undefined, limits }
    const start = await attempts.begin(asked)
    t.deepEqual(start.counter?.subject, counters?.[ofCounter as keyof typeof counters], row)
    t.is(start.obstacle ?? 'nothing', waitsFor as string, row)
    t.is(start.account?.id, id)
  }
})

test('an unknown name has the counters of an account that knows nothing', async t => {
  const { attempts, counterKeys } = await openModels(t)
  const limits = { max: 1, bucket: { capacity: 300, perSecond: 1 } }
  const ask = () =>
    attempts.begin({ usernameKey: 'nobody', proof: 'password', address: '192.0.2.1', device: undefined, limits })
  const [first, second] = [await ask(), await ask()]
  t.deepEqual(first.counter, { subject: counterKeys.account('password', 'nobody'), account: null })
  t.deepEqual([first.obstacle, second.obstacle], [null, 'attempts'])
  t.is(first.account, undefined)
})
