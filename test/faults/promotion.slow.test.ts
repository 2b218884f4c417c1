/** The primary vanishes from the network under load, and its standby is promoted. */

import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { appendFile, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'
import { environment, finish, initialize, parameters } from '../../server/embedded/cluster.js'
import { chooseUser, findPrograms, startAs } from '../../server/embedded/programs.js'
import { ask, type Teardown } from '../_helpers/database.js'
import { freePort, startRelay, withPort } from '../_helpers/relay.js'
import { startTestService } from '../_helpers/service.js'
import { addressesOf, launch, serviceEnv } from '../_helpers/spawned.js'
import { testWith } from '../_helpers/tools.js'
import { waitFor, waitForValue } from '../_helpers/wait.js'

/** Database URLs of the two. */
interface Pair {
  readonly primary: string
  readonly standby: string
}

/** Starts the two; they stop with the test. */
async function startPair(t: Teardown): Promise<Pair> {
  const dataDir = await mkdtemp(join(tmpdir(), 'auth-pair-'))
  const programs = await findPrograms()
  const user = chooseUser(dataDir)
  const start = startAs(user, programs, dataDir, () => {})
  const password = 'passe-partout'
  const servers: ChildProcess[] = []
  t.teardown(async () => {
    for (const server of servers) {
      const ended = finish(server)
      server.kill('SIGQUIT')
      await ended
    }
    await rm(dataDir, { recursive: true, force: true })
  })

  const run = async (name: string, ...more: string[]): Promise<string> => {
    const port = await freePort()
    const url = `postgres://auth:${password}@127.0.0.1:${port}/auth`
    const folder = join(dataDir, name)
    const values = [...parameters(port, false), ...more.flatMap(each => ['-c', each])]
    servers.push(
      start(programs.postgres, ['-D', folder, ...values], { cwd: folder, env: environment(), stdio: 'ignore' }),
    )
    await waitFor(() =>
      ask(url, 'SELECT').then(
        () => true,
        () => false,
      ),
    )
    return url
  }

  const folder = join(dataDir, 'first')
  await initialize({ dataDir, folder, password, durable: false, log: { info() {}, warn() {} } }, programs, user, start)
  spawnSync('cp', ['-a', folder, join(dataDir, 'second')])
  const primary = await run('first', 'synchronous_commit=remote_apply')
  const { port } = new URL(primary)
  await writeFile(join(dataDir, 'second/standby.signal'), '')
  await appendFile(
    join(dataDir, 'second/postgresql.auto.conf'),
    `primary_conninfo = 'host=127.0.0.1 port=${port} user=auth password=${password}'\n`,
  )
  const standby = await run('second')
  await ask(primary, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
  await ask(primary, 'SELECT pg_reload_conf()')
  await waitFor(
    async () => (await ask(primary, `SELECT FROM pg_stat_replication WHERE sync_state = 'sync'`)).length > 0,
  )
  return { primary, standby }
}

/** Starts it in front of the servers of these database URLs, and returns the URL of the primary. */
async function startHaproxy(t: Teardown, databaseUrls: readonly string[]): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'auth-haproxy-'))
  const port = await freePort()
  const servers = await Promise.all(
    databaseUrls.map(
      async (url, index) => `server s${index} 127.0.0.1:${new URL(url).port} check port ${await answerChecks(t, url)}`,
    ),
  )
  const lines = [
    ...['defaults', 'mode tcp', 'timeout client 30m', 'timeout server 30m', 'timeout connect 1s', 'timeout check 1s'],
    ...['listen auth', `bind 127.0.0.1:${port}`, 'option httpchk GET /primary', 'http-check expect status 200'],
    'default-server inter 500ms fall 2 rise 1 on-marked-down shutdown-sessions',
    ...servers,
  ]
  await writeFile(join(folder, 'cfg'), `${lines.join('\n')}\n`)
  const child = spawn(process.env.HAPROXY!, ['-db', '-f', join(folder, 'cfg')], { stdio: 'ignore' })
  const ended = new Promise(resolve => child.once('close', resolve))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
    await rm(folder, { recursive: true, force: true })
  })
  const url = withPort(databaseUrls[0]!, port)
  // It uses all of them in turn until its first check.
  await waitFor(async () => (await isPrimary(url)) && (await isPrimary(url)))
  return url
}

/** Serves whether a server is the primary, as Patroni's `GET /primary` does. Returns the port. */
async function answerChecks(t: Teardown, databaseUrl: string): Promise<number> {
  const server = createServer(async (_, response) => {
    response.writeHead((await isPrimary(databaseUrl)) ? 200 : 503).end()
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => {
    server.close()
    server.closeAllConnections()
  })
  return (server.address() as AddressInfo).port
}

function isPrimary(databaseUrl: string): Promise<boolean> {
  return ask(databaseUrl, 'SELECT pg_is_in_recovery() AS standby').then(
    ([row]) => row?.standby === false,
    () => false,
  )
}

const behindHaproxy = testWith('HAPROXY=path', Boolean(process.env.HAPROXY))
behindHaproxy('behind HAProxy a promotion causes seconds of 503, and no acknowledged write is lost', async t => {
  const { primary, standby } = await startPair(t)
  const relay = await startRelay(t, primary)
  const service = await startTestService(t, {
    DATABASE_URL: await startHaproxy(t, [relay.url, standby]),
    AUTH_LIMIT_FACTOR: '1000',
  })
  const { token } = await service.signUp('ROLE_CLIENT')

  const acknowledged: string[] = []
  const answers: Record<string, number> = {}
  let ended = false
  t.teardown(() => {
    ended = true
  })
  let recovered = 0
  const note = ({ status, json }: { status: number; json?: { reason?: string } }) => {
    const key = [status, json?.reason].filter(Boolean).join(' ')
    answers[key] = (answers[key] ?? 0) + 1
  }
  const write = async () => {
    while (!ended) {
      const name = randomUUID()
      const form = { password: 'cavalo-marinho-azul-42', state: 'SP', city: 'Bauru', termsofusage: true }
      const body = { ...form, username: name, nickname: name, roles: ['ROLE_CLIENT'] }
      const answer = await service.request('POST', '/users/signup', { body, once: true })
      note(answer)
      if (answer.status === 200) acknowledged.push(name)
    }
  }
  const read = async () => {
    while (!ended) {
      const answer = await service.request('GET', '/users/me', { token, once: true })
      note(answer)
      if (answer.status === 200) recovered++
    }
  }
  const load = [write(), write(), write(), read(), read()]
  await waitForValue(
    () => acknowledged,
    value => value.length > 50,
  )

  relay.goDark()
  const darkSince = performance.now()
  const before = acknowledged.length
  await ask(standby, 'SELECT pg_promote()')
  await waitForValue(
    () => acknowledged,
    value => value.length > before,
  )
  const first = ((performance.now() - darkSince) / 1000).toFixed(1)
  await waitFor(
    () => acknowledged.length > before + 50,
    () => acknowledged.length,
  )
  const seconds = ((performance.now() - darkSince) / 1000).toFixed(1)
  recovered = 0
  await waitFor(
    () => recovered > 50,
    () => recovered,
  )
  ended = true
  await Promise.all(load)
  t.log(
    `${acknowledged.length} acknowledged, the first again after ${first} s, 50 after ${seconds} s, ${JSON.stringify(answers)}`,
  )
  t.deepEqual(
    Object.keys(answers).filter(key => !['200', '503 UNAVAILABLE'].includes(key)),
    [],
  )
  const kept = new Set((await ask(standby, 'SELECT username FROM users')).map(row => row.username))
  t.deepEqual(
    acknowledged.filter(name => !kept.has(name)),
    [],
  )
})

test.serial('a start waits until a standby is promoted and takes writes', async t => {
  const { standby } = await startPair(t)
  const program = launch(t, await serviceEnv(t, { DATABASE_URL: standby }))
  await waitFor(() => {
    if (!program.alive()) throw new Error(`the service ended: ${program.output()}`)
    return program.output().includes('waiting for the database')
  })
  await ask(standby, 'SELECT pg_promote()')
  t.truthy((await addressesOf(program)).http)
})
