/** PgBouncer, if it is installed: on the PATH, or at PGBOUNCER. */
import { spawn, spawnSync } from 'node:child_process'
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { chooseUser } from '../../server/embedded/programs.js'
import type { Teardown } from './database.js'
import { freePort } from './relay.js'
import { waitFor } from './wait.js'

const program = process.env.PGBOUNCER ?? 'pgbouncer'

/** Its version, such as `1.18.0`; undefined where there is none. */
export const pgbouncerVersion = /PgBouncer (\S+)/.exec(
  spawnSync(program, ['-V'], { encoding: 'utf8' }).stdout ?? '',
)?.[1]

/** Starts it in transaction mode before the server of a database URL, and returns the URL of the database behind it. */
export async function startPgbouncer(t: Teardown, databaseUrl: string, more: Record<string, string | number> = {}) {
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
  // It refuses to run as root.
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
