/** Two PostgreSQL servers: a primary, and a standby with synchronous replication. */
import { type ChildProcess, spawnSync } from 'node:child_process'
import { appendFile, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { environment, finish, initialize, parameters } from '../../server/embedded/initdb.js'
import { chooseUser, findPrograms, startAs } from '../../server/embedded/programs.js'
import { ask, type Teardown } from './database.js'
import { freePort } from './relay.js'
import { waitFor } from './wait.js'

/** Database URLs of the two. */
export interface Pair {
  readonly primary: string
  readonly standby: string
}

/** Starts the two; they stop with the test. */
export async function startPair(t: Teardown): Promise<Pair> {
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
