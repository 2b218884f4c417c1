// Creates the database cluster of the embedded PostgreSQL, and defines its parameters.
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chown, mkdir, open, readdir, rename, rm } from 'node:fs/promises'
import { platform } from 'node:os'
import { join } from 'node:path'
import { hasCode } from '../process/errno.js'
import type { Programs, Start, User } from './programs.js'

/** The location and options of a cluster. */
export interface Cluster {
  /** Absolute path of the data folder. */
  readonly dataDir: string
  /** PostgreSQL's data directory inside it. */
  readonly folder: string
  /** Password of the role `auth`, which owns the database. */
  readonly password: string
  /** False is faster, but may lose data when the machine crashes. Default true. */
  readonly durable?: boolean
  /** Called when PostgreSQL has been launched, before it accepts connections. */
  readonly onLaunch?: () => void
  /** Gives up a start that hasn't succeeded, and ends what it has launched. */
  readonly signal?: AbortSignal | undefined
  readonly log: { info(text: string): void; warn(text: string): void }
}

const recursive = { recursive: true, force: true }

/** Creates the cluster in a temporary folder, and renames the folder when the cluster is complete. Throws on failure. */
export async function initialize(
  cluster: Cluster,
  { initdb, postgres }: Programs,
  user: User | undefined,
  start: Start,
) {
  const { dataDir, folder, password, log, durable = true, signal } = cluster
  for (const name of await readdir(dataDir))
    if (name.startsWith('postgres.new-')) await rm(join(dataDir, name), { ...recursive, maxRetries: 10 })
  log.info('Creating the embedded database')

  const draft = join(dataDir, `postgres.new-${randomBytes(6).toString('hex')}`)
  const data = join(draft, 'data')
  const passwordFile = join(draft, 'password')
  try {
    await mkdir(data, { recursive: true, mode: 0o700 })
    const file = await open(passwordFile, 'wx', 0o600)
    await file.writeFile(password)
    await file.close()
    if (user) for (const path of [draft, data, passwordFile]) await chown(path, user.uid, user.gid)
    const options = { cwd: draft, env: environment(), windowsHide: true, signal }
    const authentication = ['--username=auth', '--auth=scram-sha-256', `--pwfile=${passwordFile}`]
    const locale = ['--encoding=UTF8', '--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']
    const iterations = durable ? [] : ['--set=scram_iterations=1']
    await succeed(start(initdb, ['-D', data, ...authentication, ...iterations, ...locale, '--no-sync'], options))
    await succeed(start(postgres, ['--single', '-D', data, '-F', 'template1'], options), 'CREATE DATABASE auth\n')
    if (durable) await succeed(start(initdb, ['-D', data, '--sync-only'], options))
    await rename(data, folder)
    if (durable && platform() !== 'win32') {
      const parent = await open(dataDir)
      await parent.sync().finally(() => parent.close())
    }
  } catch (error) {
    // The lock doesn't exclude processes in other containers, which may have created the cluster first.
    if (!(hasCode(error, 'ENOTEMPTY') || hasCode(error, 'EEXIST'))) throw error
  } finally {
    await rm(draft, recursive)
  }
}

/** Parameters for tests: many services share a server, and databases exist for seconds. */
const volatile = {
  fsync: 'off',
  synchronous_commit: 'off',
  full_page_writes: 'off',
  max_connections: 600,
  autovacuum: 'off',
}

/** Returns the command-line arguments of a server. */
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
    // Failed statements and their errors may contain user input.
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    ...(durable ? {} : volatile),
  }
  return Object.entries(values).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

/** Returns the environment of the programs, without PG… variables, which would change their behavior. */
export function environment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot, TEMP } = process.env
  return { PATH, LC_ALL: 'C', ...(platform() === 'win32' ? { SystemRoot, TEMP } : {}) }
}

/** Waits for a program to end. Returns its exit code; undefined when it was killed or couldn't be started. */
export function finish(child: ChildProcess): Promise<number | undefined> {
  return new Promise(resolve => {
    // One that an AbortSignal ends reports it before it has ended.
    child.once('error', () => child.pid ?? resolve(undefined)).once('close', code => resolve(code ?? undefined))
  })
}

/** Writes the input of a program and waits for it to end. Throws an Error with its stderr when it fails. */
async function succeed(child: ChildProcess, input = ''): Promise<void> {
  let stderr = ''
  child.stdout?.resume()
  child.stderr?.setEncoding('utf8').on('data', text => {
    stderr += text
  })
  child.stdin?.on('error', () => {}).end(input)
  const code = await finish(child)
  if (code !== 0) throw new Error(`The embedded database can’t be created: ${stderr.trim() || `exit code ${code}`}`)
}

/** The path of PostgreSQL's log. */
export function logOf({ dataDir }: Cluster): string {
  return join(dataDir, 'postgres.log')
}
