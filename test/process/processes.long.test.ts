/** Tests that take a minute: a rolling restart, and a database that never comes up. */
import { setTimeout as sleep } from 'node:timers/promises'
import test from 'ava'
import { freshDatabase } from '../_helpers/database.js'
import { freePort, withPort } from '../_helpers/relay.js'
import { createRequest, password } from '../_helpers/service.js'
import { launch, type Spawned, serviceEnv, spawnService } from '../_helpers/spawned.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

test('a rolling restart of 3 replicas fails no request of a client that checks /readyz twice a second and never retries', async t => {
  const DATABASE_URL = await freshDatabase(t)
  const replicas: Spawned[] = []
  // As a proxy does: replicas that last reported ready get requests.
  const ready = new Set<string>()
  const [failures, served] = [[] as string[], new Map<string, number>()]
  let over = false
  t.teardown(() => {
    over = true
  })
  let total = 0

  async function watch(http: string) {
    while (!over) {
      const isReady = await fetch(`${http}/readyz`, { signal: AbortSignal.timeout(2000) }).then(
        async answer => (await answer.text()) === 'ok',
        () => false,
      )
      if (isReady) ready.add(http)
      else ready.delete(http)
      await sleep(500)
    }
  }

  async function work() {
    while (!over) {
      const all = [...ready]
      const http = all[Math.floor(Math.random() * all.length)]
      if (http === undefined) {
        failures.push('no replica is ready')
        await sleep(100)
        continue
      }
      const body = { username: 'admin', password }
      const answer = await createRequest(http)('POST', '/users/login', { body, once: true }).catch(String)
      total++
      if (typeof answer === 'string' || answer.status !== 200) failures.push(JSON.stringify(answer))
      else served.set(http, (served.get(http) ?? 0) + 1)
      await sleep(5)
    }
  }

  const env = { DATABASE_URL, AUTH_DRAIN: '', AUTH_LIMIT_FACTOR: '1000' }
  for (const _ of [1, 2, 3]) replicas.push(await spawnService(t, env))
  const addresses = replicas.map(({ http }) => http)
  const watching = addresses.map(watch)
  await waitForValue(() => ready.size, 3)
  const working = Array.from({ length: 4 }, work)
  const allServe = async () => {
    served.clear()
    await waitFor(
      () => addresses.every(http => (served.get(http) ?? 0) > 20),
      () => [...served, failures.length],
    )
  }
  await allServe()
  for (const [place, http] of addresses.entries()) {
    replicas[place]!.child.kill('SIGTERM')
    t.is(await replicas[place]!.ended, 0)
    replicas[place] = await spawnService(t, { ...env, AUTH_HTTP_ADDRESS: new URL(http).host })
    await waitForValue(() => ready.size, 3)
    await allServe()
  }
  over = true
  await Promise.all([...watching, ...working])
  t.log(`${total} logins, ${failures.length} failed`)
  t.deepEqual(failures, [])
})

test('a start fails after a minute without the database, and names it without the password', async t => {
  const port = await freePort()
  const url = await freshDatabase(t)
  const program = launch(t, await serviceEnv(t, { DATABASE_URL: withPort(url, port) }))
  t.is(await program.ended, 1)
  const { username, pathname, password: secret } = new URL(url)
  const at = `postgres://${username}@127.0.0.1:${port}${pathname}`
  const last = program.output().trim().split('\n').at(-1)
  t.is(
    last,
    `The database that DATABASE_URL names (${at}) has not been ready for a minute (ECONNREFUSED): check that PostgreSQL runs there and accepts writes.`,
  )
  t.is(program.output().split('waiting for the database').length, 2)
  t.false(program.output().includes(secret))
})
