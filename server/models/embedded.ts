/**
 * The embedded PostgreSQL of a data folder, shared by every process that uses the folder: the first starts it, later
 * ones join it, the last one to leave stops it. It runs in a session of its own and outlives a process that is killed;
 * the next one joins it again.
 *
 * What tells the processes of each other is a session-level advisory lock that each holds as shared: whoever can have
 * it exclusively is the last. PostgreSQL's own postmaster.pid says whether and where it runs.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash, randomBytes } from 'node:crypto'
import { closeSync, existsSync, fchownSync, openSync } from 'node:fs'
import {
  chown,
  link,
  mkdir,
  open,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  stat,
  unlink,
  writeFile,
} from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { platform, tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { chooseUser, findPrograms, type Programs, type Start, startAs, type User } from './postgres.js'

/** A PostgreSQL that this process uses. */
export interface Embedded {
  /** `postgres://` URL of its database, password included. It stays the same until `stop`. */
  readonly url: string
  /** Leaves it, and stops it when no other process uses it. Close other connections first. */
  stop(): Promise<void>
}

/** Settings of `startEmbedded`. */
export interface Options {
  /** The data folder; made when there is none. */
  readonly dataDir: string
  readonly log: { info(text: string): void; warn(text: string): void }
  /** False gives up safety after a crash of the machine for speed: for tests. Default true. */
  readonly durable?: boolean
}

interface Place extends Options {
  /** The data folder, absolute. */
  readonly dataDir: string
  /** PostgreSQL's own folder in it. */
  readonly folder: string
  readonly password: string
}

/** What postmaster.pid says of the PostgreSQL that runs in a folder. */
interface Postmaster {
  readonly pid: number
  readonly port: number
  /** Takes connections. */
  readonly ready: boolean
}

/** Any number; the lock is in a database of our own. */
const lockKey = 1
const patience = 120_000
const whole = { recursive: true, force: true }

/**
 * Starts the PostgreSQL of a data folder, or joins the one that runs there; makes the database at the first start.
 * Throws an Error that says what to do when this system can't run it.
 */
export async function startEmbedded(options: Options): Promise<Embedded> {
  const { databasePassword: password } = await embeddedSecrets(options.dataDir)
  const dataDir = await realpath(options.dataDir)
  const place: Place = { ...options, dataDir, folder: join(dataDir, 'postgres'), password }

  let leaving = false
  let membership = await attach(place)
  const { port } = membership
  let revival: Promise<void> = Promise.resolve()

  const watch = () => {
    membership.client.once('end', () => {
      if (!leaving) revival = revive()
    })
  }
  // Without the lock the next process to leave would stop the database under our feet; and nobody else may be there
  // to start it again. It comes back at its last port, so the URL stays good.
  const revive = async () => {
    while (!leaving) {
      try {
        membership = await attach(place)
        watch()
        if (membership.port !== port) options.log.warn('The embedded PostgreSQL came back at another port: restart')
        return
      } catch {
        options.log.warn('The embedded PostgreSQL can’t be started again yet')
        await sleep(1000)
      }
    }
  }
  watch()

  let stopped: Promise<void> | undefined
  const stop = async () => {
    leaving = true
    await revival
    await leave(place, membership.client)
  }
  return {
    url: urlOf(place, port),
    stop() {
      stopped ??= stop()
      return stopped
    },
  }
}

/**
 * The secrets of an embedded set-up, each made once and kept in a file of the data folder that only its owner reads:
 * `master-key` (for AUTH_MASTER_KEY, in base64) and `database-password`. Makes the folder when there is none.
 */
export async function embeddedSecrets(dataDir: string): Promise<{ masterKey: Buffer; databasePassword: string }> {
  const folder = resolve(dataDir)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const masterKey = await keep(join(folder, 'master-key'), () => randomBytes(32).toString('base64'))
  const databasePassword = await keep(join(folder, 'database-password'), () => randomBytes(24).toString('hex'))
  return { masterKey: Buffer.from(masterKey, 'base64'), databasePassword }
}

/** The content of a file, made when there is none. All processes get the same, and never a part of it. */
async function keep(path: string, make: () => string): Promise<string> {
  for (;;) {
    try {
      return (await readFile(path, 'utf8')).trim()
    } catch (error) {
      if (!has(error, 'ENOENT')) throw error
    }
    const draft = `${path}.${randomBytes(6).toString('hex')}`
    const file = await open(draft, 'wx', 0o600)
    try {
      await file.writeFile(`${make()}\n`)
      await file.sync()
      // Unlike rename, link fails when another process was first.
      await link(draft, path)
    } catch (error) {
      if (!has(error, 'EEXIST')) throw error
    } finally {
      await file.close()
      await unlink(draft)
    }
  }
}

/** Becomes one of the processes that use the database, which is started if need be. */
async function attach(place: Place): Promise<{ client: pg.Client; port: number }> {
  const end = Date.now() + patience
  for (;;) {
    const running = await findPostmaster(place.folder)
    if (running?.ready) {
      const client = await hold(place, running.port)
      if (client) return { client, port: running.port }
    }
    if (!running) await alone(place, () => launch(place))
    if (Date.now() > end) throw new Error(`PostgreSQL in ${place.folder} takes no connections; see ${logOf(place)}`)
    await sleep(10)
  }
}

/** A connection with the shared lock; undefined when the database is about to start or stop. */
async function hold(place: Place, port: number): Promise<pg.Client | undefined> {
  const client = new pg.Client({
    connectionString: urlOf(place, port),
    application_name: 'auth: uses this database',
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
  })
  client.on('error', () => {}) // `end` follows
  try {
    await client.connect()
    await client.query('SELECT pg_advisory_lock_shared($1)', [lockKey])
    return client
  } catch (error) {
    await client.end().catch(() => {})
    // 57: operator intervention, such as a shutdown; 53: too many connections. Both pass, like a refused connection.
    if (error instanceof pg.DatabaseError && !/^5[37]/.test(error.code ?? '')) throw error
    return undefined
  }
}

async function leave(place: Place, client: pg.Client): Promise<void> {
  try {
    await client.query('SELECT pg_advisory_unlock_shared($1)', [lockKey])
    const { rows } = await client.query('SELECT pg_try_advisory_lock($1) AS last', [lockKey])
    const running = rows[0].last ? await findPostmaster(place.folder) : undefined
    if (!running) return
    if (platform() === 'win32') {
      const { pg_ctl } = await findPrograms()
      await finish(spawn(pg_ctl, ['stop', '-m', 'fast', '-D', place.folder], { windowsHide: true }))
    } else {
      process.kill(running.pid, 'SIGINT') // fast shutdown
    }
    const end = Date.now() + patience
    while ((await findPostmaster(place.folder))?.pid === running.pid) {
      if (Date.now() > end) throw new Error(`PostgreSQL in ${place.folder} doesn’t stop; see ${logOf(place)}`)
      await sleep(5)
    }
  } catch (error) {
    // It ended by itself meanwhile, or another process has stopped it.
    if (await findPostmaster(place.folder)) throw error
  } finally {
    await client.end().catch(() => {})
  }
}

/** The PostgreSQL that runs in the folder; undefined when none does, whatever a leftover postmaster.pid says. */
async function findPostmaster(folder: string): Promise<Postmaster | undefined> {
  const lines = (await readFile(join(folder, 'postmaster.pid'), 'utf8').catch(absent))?.split('\n')
  if (!lines) return undefined
  const pid = Number(lines[0])
  if (!(await runsIn(folder, pid))) return undefined
  return { pid, port: Number(lines[3]), ready: lines[7]?.trim() === 'ready' }
}

/** Whether the process is the PostgreSQL of the folder, as far as the system tells. */
async function runsIn(folder: string, pid: number): Promise<boolean> {
  if (!(pid > 0)) return false // the file is being written, or was when the power failed
  try {
    process.kill(pid, 0)
  } catch (error) {
    if (has(error, 'ESRCH')) return false
  }
  if (platform() !== 'linux') return true
  try {
    // PostgreSQL's working directory is its folder; after a reboot the number may be another program's.
    const [theirs, ours] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(folder)])
    return theirs.dev === ours.dev && theirs.ino === ours.ino
  } catch (error) {
    if (has(error, 'ENOENT')) return false
    return (await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')).trim() === 'postgres'
  }
}

/** Starts PostgreSQL and waits until it takes connections. Returns at once when it runs already. */
async function launch(place: Place): Promise<void> {
  const { folder, dataDir, log } = place
  if (await findPostmaster(folder)) return
  const programs = await findPrograms()
  const user = chooseUser(folder)
  const start = startAs(user, programs, dataDir, text => log.warn(text))
  if (!existsSync(folder)) await initialize(place, programs, user, start)
  else await disown(folder)

  for (let attempt = 1; ; attempt++) {
    const port = await choosePort(attempt === 1 ? await lastPort(folder) : undefined)
    const output = openSync(logOf(place), 'w', 0o600)
    if (user) fchownSync(output, user.uid, user.gid)
    const child = start(programs.postgres, ['-D', folder, ...parameters(port, place.durable ?? true)], {
      cwd: folder,
      env: environment(),
      detached: true,
      windowsHide: true,
      stdio: ['ignore', output, output],
    })
    closeSync(output)
    let ended = false
    const end = finish(child).then(() => {
      ended = true
    })
    while (!ended) {
      if ((await findPostmaster(folder))?.ready) {
        child.unref()
        return
      }
      await Promise.race([end, sleep(5)])
    }
    if (await findPostmaster(folder)) return
    // Most likely another program took the port meanwhile.
    if (attempt === 3) throw new Error(`PostgreSQL doesn’t start: ${await lastWords(place)}`)
  }
}

/**
 * Puts our number into a leftover postmaster.pid. PostgreSQL refuses to start when the number there belongs to any
 * living process but its parent; the rest of the file must stay, it leads to processes that outlived the postmaster.
 */
async function disown(folder: string): Promise<void> {
  const path = join(folder, 'postmaster.pid')
  const content = await readFile(path, 'utf8').catch(absent)
  if (content !== undefined) await writeFile(path, [process.pid, ...content.split('\n').slice(1)].join('\n'))
}

/** Makes the database beside its place, and moves it there when it is whole. */
async function initialize(place: Place, { initdb, postgres }: Programs, user: User | undefined, start: Start) {
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
    // Without the guard of `alone` another process may have been first: its database is as good as ours.
    if (!(has(error, 'ENOTEMPTY') || has(error, 'EEXIST'))) throw error
  } finally {
    await rm(draft, whole)
  }
}

function parameters(port: number, durable: boolean): string[] {
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
    // Texts of failed statements and of their errors may quote what people entered.
    log_min_messages: 'log',
    log_min_error_statement: 'panic',
    log_error_verbosity: 'terse',
    ...(durable ? {} : { fsync: 'off', synchronous_commit: 'off', full_page_writes: 'off' }),
  }
  return Object.entries(values).flatMap(([name, value]) => ['-c', `${name}=${value}`])
}

/** Nothing of ours but the path: PG… variables would change what the programs do. */
function environment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot, TEMP } = process.env
  return { PATH, LC_ALL: 'C', ...(platform() === 'win32' ? { SystemRoot, TEMP } : {}) }
}

/** The port of the last start, which processes that use the database know. */
async function lastPort(folder: string): Promise<number | undefined> {
  const options = await readFile(join(folder, 'postmaster.opts'), 'utf8').catch(absent)
  const port = /"port=(\d+)"/.exec(options ?? '')?.[1]
  return port ? Number(port) : undefined
}

/** The preferred port if it is free, else any free one. */
async function choosePort(preferred = 0): Promise<number> {
  const server = createServer()
  if (!(await listens(server, { port: preferred, host: '127.0.0.1' }))) return choosePort()
  const { port } = server.address() as { port: number }
  await new Promise(done => server.close(done))
  return port
}

/**
 * Runs a task while no other process runs one for the same folder. The guard is a socket name, which the system frees
 * however a process ends.
 */
async function alone(place: Place, task: () => Promise<void>): Promise<void> {
  const name = `auth-${createHash('sha256').update(place.dataDir).digest('hex').slice(0, 32)}`
  const path =
    { linux: `\0${name}`, win32: `\\\\.\\pipe\\${name}` }[platform() as string] ?? join(tmpdir(), `${name}.sock`)
  const server = createServer(socket => socket.destroy())
  const end = Date.now() + patience
  while (!(await listens(server, { path }))) {
    // Elsewhere the name is a file, which a process that was killed leaves behind.
    if (path.endsWith('.sock') && !(await answers(path))) await rm(path, { force: true })
    if (Date.now() > end)
      throw new Error(`Another process has been starting PostgreSQL in ${place.folder} for too long`)
    await sleep(20)
  }
  try {
    await task()
  } finally {
    await new Promise(done => server.close(done))
  }
}

function listens(server: Server, where: { port: number; host: string } | { path: string }): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error) => {
      server.off('listening', succeeded)
      if (has(error, 'EADDRINUSE')) resolve(false)
      else reject(error)
    }
    const succeeded = () => {
      server.off('error', failed)
      resolve(true)
    }
    server.once('error', failed).once('listening', succeeded).listen(where)
  })
}

function answers(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect({ path })
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}

/** Exit code of a program, undefined when it was killed or couldn't be started. */
function finish(child: ChildProcess): Promise<number | undefined> {
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

/** What PostgreSQL said before it gave up. */
async function lastWords(place: Place): Promise<string> {
  const lines = (await readFile(logOf(place), 'utf8').catch(absent))?.trim().split('\n') ?? []
  return `${lines.slice(-3).join(' | ') || 'it said nothing'} (${logOf(place)})`
}

function logOf({ dataDir }: Place): string {
  return join(dataDir, 'postgres.log')
}

function urlOf({ password }: Place, port: number): string {
  return `postgres://auth:${password}@127.0.0.1:${port}/auth`
}

function has(error: unknown, code: string): boolean {
  return (error as NodeJS.ErrnoException).code === code
}

/** For `catch`: a file that isn't there is no error. */
function absent(error: unknown): undefined {
  if (!has(error, 'ENOENT')) throw error
}
