/** The network to the database goes dark: no packet arrives, no connection ends. */
import { type AddressInfo, connect, createServer } from 'node:net'
import { availableParallelism, loadavg } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import ava, { type ExecutionContext } from 'ava'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/grpc/health/v1/health_pb.js'
import { openDatabase } from '../../server/database/database.js'
import { sql } from '../../server/database/sql.js'
import { freshDatabase } from '../_helpers/database.js'
import { grpcOf } from '../_helpers/grpc.js'
import { startRelay, withPort } from '../_helpers/relay.js'
import { password, type RequestOptions, startTestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue, within } from '../_helpers/wait.js'
import { startWitness } from '../_helpers/witness.js'

const test = ava.serial

/** Calls that read, that write, and that read before they write. */
type Calls = readonly (readonly [string, string, RequestOptions])[]

async function scene(t: ExecutionContext, parameters = '') {
  const databaseUrl = await freshDatabase(t)
  const relay = await startRelay(t, databaseUrl)
  const service = await startTestService(t, { DATABASE_URL: `${relay.url}${parameters}` })
  const { username, token } = await service.signUp('ROLE_CLIENT')
  const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
  const login = { query: { username, password } }
  const calls: Calls = [
    ['GET', '/users/me', { token }],
    ['GET', '/forgotpasswords/findallforgotpasswordquestions', {}],
    ['POST', '/users/login', login],
    ['GET', '/users/refresh', { token }],
    ['POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body }],
  ]
  // Many concurrent calls, so that there are many connections.
  const all = Array.from({ length: 6 }, () => calls).flat()
  const sendAll = (once = true) =>
    all.map(([method, path, options]) => service.request(method, path, { ...options, once }))
  for (const answer of sendAll(false)) t.is((await answer).status, 200)
  return { ...service, relay, token, calls, sendAll }
}

test('while the database is silent every call is answered with 503 in time, and the process is not ready at once', async t => {
  const { request, grpc, relay, sendAll } = await scene(t)
  const client = grpcOf(t, grpc)
  relay.goDark()
  const answers = sendAll()
  const unready = waitForValue(async () => (await request('GET', '/readyz', { once: true })).status, 503)
  const notServing = waitFor(async () => {
    const { status } = await client.call(Health.method.check, {})
    return status === HealthCheckResponse_ServingStatus.NOT_SERVING
  })
  const busy = Math.max(1, loadavg()[0]! / availableParallelism())
  t.true(await within(4_000 * busy, Promise.all([unready, notServing])))
  // The deadline of a call.
  t.true(await within(15_000, Promise.all(answers)))
  for (const { status, json, headers } of await Promise.all(answers)) {
    t.is(`${status} ${json.reason}`, '503 UNAVAILABLE')
    t.is(headers.get('retry-after'), '1')
  }
})

test('once the network is back reads and writes are answered within seconds, although every old connection is dead', async t => {
  const { request, relay, calls, sendAll } = await scene(t)
  const [read, , write] = calls.map(
    ([method, path, options]) =>
      () =>
        request(method, path, { ...options, once: true }),
  )
  const witness = startWitness(t, { me: read!, login: write! })
  relay.goDark()
  await Promise.all(sendAll())
  relay.lightUp()
  const recovered = calls.map(([method, path, options]) =>
    waitForValue(async () => (await request(method, path, { ...options, once: true })).status, 200),
  )
  t.true(
    await within(
      10_000,
      Promise.all([...recovered, waitForValue(async () => (await request('GET', '/readyz')).status, 200)]),
    ),
  )
  t.log(await witness.stop())
})

test('idle connections that died are discarded together when the first is found dead', async t => {
  const { request, relay, token, sendAll } = await scene(t, '?connect_timeout=10')
  relay.goDark()
  relay.lightUp()
  t.is((await request('GET', '/users/me', { token, once: true })).status, 503)
  for (const { status } of await Promise.all(sendAll())) t.is(status, 200)
})

test('closing the database doesn’t wait for responses that never arrive', async t => {
  const { registry, relay } = await scene(t)
  const { users, administeredUsers, database } = registry
  const { id } = (await users.byUsername('admin'))!
  let asked: Promise<unknown> | undefined
  await new Promise<void>(resolve => {
    asked = database.transact(async transaction => {
      relay.goDark()
      resolve()
      await administeredUsers.lock(id, transaction)
    })
  })
  t.true(await within(4_000, database.close()))
  await t.throwsAsync(asked!)
})

test('a connection may take as long as connect_timeout permits, though the pool would wait for less', async t => {
  const url = await freshDatabase(t)
  const slow = createServer(async incoming => {
    await sleep(11_000)
    const outgoing = connect(Number(new URL(url).port), '127.0.0.1')
    for (const socket of [incoming, outgoing]) socket.on('error', () => {})
    incoming.pipe(outgoing).pipe(incoming)
  })
  await new Promise<void>(resolve => slow.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => void slow.close())
  const database = openDatabase(`${withPort(url, (slow.address() as AddressInfo).port)}?connect_timeout=14`)
  t.teardown(() => database.close())
  const asked = database.run(sql`SELECT 1 AS one`)
  t.deepEqual(await asked, [{ one: 1 }])
})

test('work without a time limit also ends when no other query gets an answer', async t => {
  const { relay, settings } = await scene(t)
  const database = openDatabase(settings.databaseUrl!, 2)
  t.teardown(() => database.close())
  const slow = database.transact(
    async transaction => {
      relay.goDark()
      await database.run(sql`SELECT pg_sleep(1)`, transaction)
    },
    { unlimited: true },
  )
  const look = setInterval(database.isWritable, 500)
  t.teardown(async () => clearInterval(look))
  t.true(
    await within(
      20_000,
      slow.catch(() => {}),
    ),
  )
  await t.throwsAsync(slow)
})

test('SIGTERM ends a process whose database is unreachable', async t => {
  const databaseUrl = await freshDatabase(t)
  const relay = await startRelay(t, databaseUrl)
  const service = await spawnService(t, { DATABASE_URL: relay.url })
  await fetch(`${service.http}/forgotpasswords/findallforgotpasswordquestions`)
  relay.goDark()
  const under = fetch(`${service.http}/users/login?username=admin&password=x`, { method: 'POST' }).catch(() => {})
  process.kill(service.pid, 'SIGTERM')
  t.true(
    await within(
      25_000,
      waitFor(() => !service.alive()),
    ),
  )
  await under
})
