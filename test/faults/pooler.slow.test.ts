/** A pooler in transaction mode in front of the database keeps no named statements. */

import { spawn } from 'node:child_process'
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { chooseUser } from '../../server/embedded/programs.js'
import { databaseOfRole, freshDatabase, type Teardown } from '../_helpers/database.js'
import { startPooler } from '../_helpers/pooler.js'
import { freePort } from '../_helpers/relay.js'
import { createRequest, password, startTestService, type TestService } from '../_helpers/service.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitFor } from '../_helpers/wait.js'

const program = process.env.PGBOUNCER ?? 'pgbouncer'

/** Starts it in transaction mode in front of the server of a database URL, and returns the URL through it. */
async function startPgbouncer(t: Teardown, databaseUrl: string, more: Record<string, string | number> = {}) {
  const at = new URL(databaseUrl)
  const folder = await mkdtemp(join(tmpdir(), 'auth-pooler-'))
  const port = await freePort()
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'plain',
    auth_file: join(folder, 'users'),
    pool_mode: 'transaction',
    default_pool_size: 8,
    max_client_conn: 200,
    logfile: join(folder, 'log'),
    ...more,
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`)
  const databases = `* = host=${at.hostname} port=${at.port}`
  await writeFile(join(folder, 'ini'), ['[databases]', databases, '[pgbouncer]', ...lines, ''].join('\n'))
  await writeFile(join(folder, 'users'), `"${at.username}" "${at.password}"\n`)
  // It can't run as root.
  const user = chooseUser(folder)
  await chmod(folder, 0o755)
  if (user)
    for (const path of [folder, join(folder, 'ini'), join(folder, 'users')]) await chown(path, user.uid, user.gid)
  const child = spawn(program, [join(folder, 'ini')], { stdio: 'ignore', ...user })
  const ended = new Promise(resolve => child.once('close', resolve))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
    await rm(folder, { recursive: true, force: true })
  })
  const url = Object.assign(new URL(databaseUrl), { port: String(port) }).href
  await waitFor(async () => {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => {})
    return client.connect().then(
      () => client.end().then(() => true),
      () => false,
    )
  })
  return url
}

/** The number of each response to 300 requests that read and write, 20 at a time. */
async function ask(t: ExecutionContext, { request, signUp }: TestService): Promise<Record<string, number>> {
  const users = await Promise.all(Array.from({ length: 6 }, () => signUp('ROLE_CLIENT')))
  const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
  const send = (index: number) => {
    const { username, token } = users[index % users.length]!
    if (index < users.length) return request('POST', '/users/login', { query: { username, password }, once: true })
    return index % 3 === 0
      ? request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body, once: true })
      : request('GET', '/users/me', { token, once: true })
  }
  const counts: Record<string, number> = {}
  let sent = 0
  const work = async () => {
    while (sent < 300) {
      const { status, json } = await send(sent++)
      const key = [status, json?.reason].filter(Boolean).join(' ')
      counts[key] = (counts[key] ?? 0) + 1
    }
  }
  await Promise.all(Array.from({ length: 20 }, work))
  t.log(counts)
  return counts
}

const poolers = {
  'a pooler': async (t: ExecutionContext, url: string) => {
    const pooler = await startPooler(t, url)
    pooler.lendForTransactions()
    return pooler.url
  },
  ...(process.env.PGBOUNCER && { PgBouncer: startPgbouncer }),
}
for (const [name, start] of Object.entries(poolers)) {
  test.serial(
    `behind ${name} in transaction mode every call is answered as without a pooler, from the start`,
    async t => {
      const service = await startTestService(t, { DATABASE_URL: await start(t, await freshDatabase(t)) })
      t.deepEqual(await ask(t, service), { 200: 300 })
    },
  )

  test.serial(`behind ${name} a process stops using named statements before its first call`, async t => {
    const DATABASE_URL = await freshDatabase(t)
    await startTestService(t, { DATABASE_URL })
    const { http, output } = await spawnService(t, { DATABASE_URL: await start(t, DATABASE_URL) })
    await createRequest(http)('GET', '/forgotpasswords/findallforgotpasswordquestions')
    await waitFor(() => output().includes('"msg":"call"'), output)
    // A call that detects it in a transaction would be refused.
    t.regex(output(), /statements run unprepared.*\n(.*\n)*.*"msg":"call"/)
  })
}

test.serial('a pooler that switches to transaction mode later is detected, without an internal error', async t => {
  const pooler = await startPooler(t, await freshDatabase(t), 16)
  const service = await startTestService(t, { DATABASE_URL: pooler.url })
  t.deepEqual(await ask(t, service), { 200: 300 })
  pooler.lendForTransactions()
  await waitFor(async () => {
    const { 200: _, '503 UNAVAILABLE': __, ...others } = await ask(t, service)
    t.deepEqual(others, {})
    return true
  })
  t.deepEqual(await ask(t, service), { 200: 300 })
})

if (process.env.PGBOUNCER)
  test.serial(
    'behind PgBouncer, formats and isolation hold whatever its role sets, and the log names sessions from before',
    async t => {
      const url = await databaseOfRole(
        t,
        `ALTER ROLE :name SET datestyle = 'SQL', 'DMY'`,
        `ALTER ROLE :name SET timezone = 'America/Sao_Paulo'`,
        `ALTER ROLE :name SET standard_conforming_strings = off`,
        `ALTER ROLE :name SET default_transaction_isolation = 'serializable'`,
      )
      const lines: string[] = []
      const service = await startTestService(
        t,
        { DATABASE_URL: await startPgbouncer(t, url) },
        { onLine: line => lines.push(line) },
      )
      const text = `SELECT current_setting('datestyle') AS style, current_setting('timezone') AS zone,
      current_setting('standard_conforming_strings') AS strings`
      for (let times = 0; times < 10; times++) {
        const [row] = await service.registry.database.run({ name: '', text }, [])
        t.deepEqual(row, { style: 'ISO, MDY', zone: 'UTC', strings: 'on' })
      }
      t.regex(lines.join(''), /"wrong":\["default_transaction_isolation = serializable"\].*reconnect it/)
      const { username } = await service.signUp('ROLE_CLIENT')
      const statuses = await Promise.all(
        Array.from({ length: 10 }, (_, index) =>
          service.request('POST', '/users/login', { query: { username, password: `wrong ${index}` }, once: true }),
        ),
      )
      t.deepEqual([...new Set(statuses.map(({ status }) => status))].length, 1)
      const right = await service.request('POST', '/users/login', { query: { username, password }, once: true })
      t.is(right.status, 429)
    },
  )
