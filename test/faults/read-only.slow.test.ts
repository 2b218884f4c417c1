/** The database takes no writes, as after a failover that left the service with a standby. */
import test from 'ava'
import pg from 'pg'
import { refused } from '../_helpers/problem.js'
import { password, startTestService } from '../_helpers/service.js'
import { waitForValue } from '../_helpers/wait.js'
import { startWitness } from '../_helpers/witness.js'

test('while the database is read-only writes are answered with 503 and the service is not ready; reads work, and writes work again afterwards', async t => {
  const { env, request, signUp } = await startTestService(t)
  const { username, token } = await signUp('ROLE_CLIENT')
  const name = new URL(env.DATABASE_URL!).pathname.slice(1)
  const server = new pg.Client({ connectionString: process.env.TEST_DATABASE_URL! })
  await server.connect()
  t.teardown(() => server.end())
  const login = () => request('POST', '/users/login', { query: { username, password }, once: true })
  const ready = () => request('GET', '/readyz', { once: true })
  t.is((await ready()).status, 200)

  const me = () => request('GET', '/users/me', { token, once: true })
  const witness = startWitness(t, { login, me })
  await server.query(`ALTER DATABASE ${name} SET default_transaction_read_only = on`)
  await server.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name])
  await waitForValue(async () => (await request('GET', '/users/me', { token, once: true })).status, 200)
  for (let times = 0; times < 20; times++) {
    const answer = await login()
    refused(t, answer, 503, 'UNAVAILABLE')
    t.is(answer.headers.get('retry-after'), '1')
  }
  await waitForValue(ready, value => value.status !== 200)
  refused(t, await ready(), 503, 'UNAVAILABLE')
  t.is((await request('GET', '/users/me', { token })).status, 200)

  // The read-only sessions stay open.
  await server.query(`ALTER DATABASE ${name} RESET default_transaction_read_only`)
  await waitForValue(async () => (await login()).status, 200)
  await waitForValue(async () => (await ready()).status, 200)
  for (let times = 0; times < 20; times++) t.is((await login()).status, 200)
  t.log(await witness.stop())
})
