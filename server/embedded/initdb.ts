/** A database cluster of the embedded PostgreSQL: how it is made, and the parameters it runs with. */
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chown, mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { platform } from 'node:os'
import { join } from 'node:path'
import { has } from './errno.js'
import type { Programs, Start, User } from './programs.js'

/** Where a cluster is, and how it is to be. */
export interface Place {
  /** The data folder, absolute. */
  readonly dataDir: string
  /** PostgreSQL's own folder in it. */
  readonly folder: string
  /** Password of the role and owner `auth`. */
  readonly password: string
  /** False gives up safety after a crash of the machine for speed. Default true. */
  readonly durable?: boolean
  readonly onLaunch?: () => void
  readonly log: { info(text: string): void; warn(text: string): void }
}

const whole = { recursive: true, force: true }

/** Makes the database beside its place, and moves it there when it is whole. */
export async function initialize(place: Place, { initdb, postgres }: Programs, user: User | undefined, start: Start) {
  const { dataDir, folder, password, log, durable = true } = place
  for (const name of await readdir(dataDir))
    if (name.startsWith('postgres.new-')) await rm(join(dataDir, name), { ...whole, maxRetries: 10 })
  log.info('Making the embedded database')

  const draft = join(dataDir, `postgres.new-${randomBytes(6).toString('hex')}`)
  const data = join(draft, 'data')
  const passwordFile = join(draft, 'password')
  try {
    await mkdir(data, { recursive: true, mode: 0o700 })
    const file = await open(passwordFile, 'wx', 0o600)
    await file.writeFile(password)
    await file.close()
    if (user) for (const path of [draft, data, passwordFile]) await chown(path, user.uid, user.gid)
    const options = { cwd: draft, env: environment(), windowsHide: true }
    const authentication = ['--username=auth', '--auth=scram-sha-256', `--pwfile=${passwordFile}`]
    const locale = ['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
    await succeed(start(initdb, ['-D', data, ...authentication, ...locale, '--no-sync'], options))
    await succeed(start(postgres, ['--single', '-D', data, '-F', 'template1'], options), 'CREATE DATABASE auth\n')
    if (durable) await succeed(start(initdb, ['-D', data, '--sync-only'], options))
    await rename(data, folder)
    if (durable && platform() !== 'win32') {
      const parent = await open(dataDir)
      await parent.sync().finally(() => parent.close())
    }
  } catch (error) {
    // Without `withProcessLock` another process may have been first: its database is as good as ours.
    if (!(has(error, 'ENOTEMPTY') || has(error, 'EEXIST'))) throw error
  } finally {
    await rm(draft, whole)
  }
}

/** For tests, which have many services at once on one server, in databases that live for seconds. */
const volatile = {
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  max_connections: 300,
  autovacuum: 'off',
}

/** Command-line parameters of a server. */
export function parameters(port: number, durable: boolean): string[] {
  const values: Record<string, string | number> = {
    listen_addresses: '127.0.0.1',
    port,
    unix_socket_directories: '',
    max_connections: 100,
    shared_buffers: '128MB',
    io_method: 'sync',
    max_logical_replication_workers: 0,
    log_timezone: 'UTC',
    timezone: 'UTC',
    // Texts of failed statements and of their errors may quote what users entered.
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    ...(durable ? {} : volatile),
  }
  return Object.entries(values).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

/** Nothing of ours but the path: PG… variables would change what the programs do. */
export function environment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot, TEMP } = process.env
  return { PATH, LC_ALL: 'C', ...(platform() === 'win32' ? { SystemRoot, TEMP } : {}) }
}

/** Exit code of a program, undefined when it was killed or couldn't be started. */
export function finish(child: ChildProcess): Promise<number | undefined> {
  return new Promise(resolve => {
    child.once('error', () => resolve(undefined)).once('close', code => resolve(code ?? undefined))
  })
}

/** Gives a program its input and waits for it to end. Throws an Error with what it said when it fails. */
async function succeed(child: ChildProcess, input = ''): Promise<void> {
  let said = ''
  child.stdout?.resume()
  child.stderr?.setEncoding('utf8').on('data', text => {
    said += text
  })
  child.stdin?.on('error', () => {}).end(input)
  const code = await finish(child)
  if (code !== 0) throw new Error(`The embedded database can’t be made: ${said.trim() || `exit code ${code}`}`)
}
