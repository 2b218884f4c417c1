/** The modules that an idle process has loaded: none that only some calls need. */
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { freshDatabase } from '../_helpers/database.js'
import { createRequest, password } from '../_helpers/service.js'
import { type Spawned, signalUntilEnded, spawnService } from '../_helpers/spawned.js'
import { waitForValue } from '../_helpers/wait.js'

/** Modules that only calls need, each by one of its files. */
const brought = {
  'a second protobuf library': /node_modules\/protobufjs\//,
  nodemailer: /\/nodemailer/,
  'the dictionary of passwords': /node_modules\/@zxcvbn-ts\//,
  bcrypt: /node_modules\/bcrypt\//,
  'a hash thread': /hash-thread\.js/,
}

const loadedBy = (service: Spawned) =>
  Object.entries(brought)
    .filter(([, file]) => file.test(service.output()))
    .map(([what]) => what)

/** Starts a service on a database that another one used before. It reports each file that it loads. */
async function startReporting(t: ExecutionContext) {
  const DATABASE_URL = await freshDatabase(t)
  // The first start hashes the password of the administrator.
  await signalUntilEnded(await spawnService(t, { DATABASE_URL }), 'SIGINT')
  const client = new pg.Client(DATABASE_URL)
  await client.connect()
  t.teardown(() => client.end())
  // Maintenance has run once this row is deleted.
  await client.query(`INSERT INTO signing_keys (kid, public_jwk, private_sealed, signs_at, verifies_until, token_ttl)
    SELECT 'lapsed', public_jwk, private_sealed, signs_at - interval '9 days', now() - interval '1 day', token_ttl
    FROM signing_keys`)
  const service = await spawnService(t, { DATABASE_URL, NODE_DEBUG: 'module,esm' })
  const left = () => client.query(`SELECT FROM signing_keys WHERE kid = 'lapsed'`)
  await waitForValue(async () => (await left()).rowCount, 0)
  return service
}

test('an idle process after its first maintenance run has loaded no module that only some calls need', async t => {
  const service = await startReporting(t)
  const request = createRequest(service.http)
  t.is((await request('GET', '/readyz')).status, 200)
  t.deepEqual(loadedBy(service), [])

  // Modules are loaded, and reported, when a call needs them.
  t.is((await request('POST', '/users/login', { body: { username: 'admin', password } })).status, 200)
  t.true(['a hash thread', 'bcrypt'].every(what => loadedBy(service).includes(what)))
})
