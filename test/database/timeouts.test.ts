/** Time limits of PostgreSQL: no session holds a row or a connection for long. */
import { setTimeout } from 'node:timers/promises'
import test from 'ava'
import pg from 'pg'
import { openDatabase } from '../../server/database/connection.js'
import { sql } from '../../server/database/sql.js'
import { serviceForFile } from '../_helpers/service.js'
import { within } from '../_helpers/wait.js'

const service = serviceForFile()

test('PostgreSQL ends a statement, a wait for a lock, an idle transaction and a long one of the service', async t => {
  const { database } = service.registry
  const show = async (name: string) => {
    const [row] = await database.run<{ setting: string }>(sql`SELECT current_setting('${sql.text(name)}') AS setting`)
    return row!.setting
  }
  t.is(await show('statement_timeout'), '5s')
  t.is(await show('lock_timeout'), '2s')
  t.is(await show('idle_in_transaction_session_timeout'), '5s')
  t.is(await show('transaction_timeout'), '10s')
})

test('a check for writes that gets its connection too late fails, and closes no connection', async t => {
  const url = service.env.DATABASE_URL!
  const database = openDatabase(url, 1)
  const other = new pg.Client({ connectionString: url })
  await other.connect()
  t.teardown(() => Promise.all([database.close(), other.end()]))
  const backend = async () => (await database.run(sql`SELECT pg_backend_pid() AS pid`))[0]
  const first = await backend()

  let finish = () => {}
  const busy = database.transact(() => new Promise<void>(resolve => (finish = resolve)))
  const writable = database.isWritable()
  await setTimeout(1_500)
  await other.query('BEGIN; LOCK TABLE migrations IN EXCLUSIVE MODE')
  finish()
  await busy
  t.false(await writable)
  await other.query('ROLLBACK')
  t.deepEqual(await backend(), first)
  t.deepEqual([...database.stats().errors], [])
})

test('output of COPY that isn’t read to the end fails its transaction at once, and costs one connection', async t => {
  const database = openDatabase(service.env.DATABASE_URL!, 1)
  t.teardown(() => database.close())
  const written: unknown[] = []
  console.warn = (...parts) => void written.push(...parts)
  const abandoned = database.transact(
    async transaction => {
      for await (const _ of database.copyOut('COPY (SELECT generate_series(1, 10000000)) TO STDOUT', transaction))
        return
    },
    { unlimited: true },
  )
  await t.throwsAsync(within(5_000, abandoned), { message: /closed|terminated/ })
  t.true(await database.isWritable())
  t.deepEqual([...database.stats().errors], [])
  // The output of a service is JSON only.
  t.deepEqual(written, [])
})
