/**
 * The embedded PostgreSQL of a data folder. All processes that use the folder share it: the first starts it, later ones
 * connect to it, the last one to leave stops it. PostgreSQL is detached, so it continues to run when a process is
 * killed, and the next process connects to it.
 *
 * Each process holds a session-level advisory lock in shared mode. A process that acquires the lock in exclusive mode is
 * the last. PostgreSQL's postmaster.pid shows whether PostgreSQL is running, and its port.
 *
 * This folder owns its part of the data folder: secrets (secrets.ts), the cluster (cluster.ts), the programs and their user
 * (programs.ts), and the lock for the start (folder-lock.ts). It provides a database URL and a master key, for
 * database/database-choice.ts, when no DATABASE_URL is set.
 */
import { spawn } from 'node:child_process'
import { closeSync, existsSync, fchownSync, openSync } from 'node:fs'
import { readFile, realpath, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { platform } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { hasCode, ignoreMissing } from '../process/errno.js'
import { type Cluster, environment, finish, initialize, parameters } from './cluster.js'
import { listens, withFolderLock } from './folder-lock.js'
import { chooseUser, findPrograms, startAs } from './programs.js'
import { embeddedSecrets } from './secrets.js'

/** A running PostgreSQL that this process uses. */
export type Embedded = Awaited<ReturnType<typeof startEmbedded>>

/** Settings of `startEmbedded`. */
export type Options = Omit<Cluster, 'folder' | 'password'>

/** The content of postmaster.pid of a running PostgreSQL. */
interface Postmaster {
  readonly pid: number
  readonly port: number
  /** Whether PostgreSQL accepts connections. */
  readonly ready: boolean
}

/** Key of the advisory lock. Any number works, because no other software uses this database. */
const lockKey = 1
/** Maximum milliseconds of a start. */
const timeout = 120_000

/**
 * Starts the PostgreSQL of a data folder, or connects to the running one. Creates the database at the first start.
 * Throws an Error that says what to do when this system can't run PostgreSQL.
 */
export async function startEmbedded(options: Options) {
  const { databasePassword: password } = await embeddedSecrets(options.dataDir)
  const dataDir = await realpath(options.dataDir)
  const cluster: Cluster = { ...options, dataDir, folder: join(dataDir, 'postgres'), password }

  let leaving = false
  let connection = await attach(cluster)
  let reconnection: Promise<void> = Promise.resolve()

  const watch = () => {
    connection.client.once('end', () => {
      if (!leaving) reconnection = reconnect()
    })
  }
  // Without the lock, another process that leaves would stop the database while this process uses it. PostgreSQL
  // restarts at its last port, unless the port is in use.
  const reconnect = async () => {
    while (!leaving) {
      try {
        connection = await attach(cluster)
        watch()
        return
      } catch {
        options.log.warn('The embedded PostgreSQL can’t be restarted yet')
        await sleep(1000)
      }
    }
  }
  watch()

  let stopped: Promise<void> | undefined
  const stop = async () => {
    leaving = true
    await reconnection
    await leave(cluster, connection.client)
  }
  return {
    /** `postgres://` URL of the database, with the password. Changes when PostgreSQL restarts at another port. */
    get url() {
      return urlOf(cluster, connection.port)
    },
    /** Releases the database, and stops it when no other process uses it. Close other connections first. */
    stop() {
      stopped ??= stop()
      return stopped
    },
  }
}

/** Starts the database if needed, and connects to it with the shared lock. */
async function attach(cluster: Cluster): Promise<{ client: pg.Client; port: number }> {
  const end = Date.now() + timeout
  for (;;) {
    const running = await findPostmaster(cluster.folder)
    if (running?.ready) {
      const client = await connectShared(cluster, running.port)
      if (client) return { client, port: running.port }
    }
    if (!running) await withFolderLock(cluster.dataDir, () => launch(cluster))
    if (Date.now() > end) throw new Error(`PostgreSQL in ${cluster.folder} takes no connections; see ${logOf(cluster)}`)
    await sleep(10)
  }
}

/** Opens a connection with the shared lock; undefined when the database is starting or stopping. */
async function connectShared(cluster: Cluster, port: number): Promise<pg.Client | undefined> {
  const client = new pg.Client({
    connectionString: urlOf(cluster, port),
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
    // Class 57 (operator intervention, such as a shutdown) and 53 (too many connections) are temporary, like
    // ECONNREFUSED.
    if (error instanceof pg.DatabaseError && !/^5[37]/.test(error.code ?? '')) throw error
    return undefined
  }
}

/**
 * Shutdown modes, their signals, and the ms until the next mode. After an immediate shutdown, PostgreSQL recovers at its
 * next start, without loss of data.
 */
const shutdowns = [
  ['fast', 'SIGINT', 10_000],
  ['immediate', 'SIGQUIT', 3_000],
  // A stopped postmaster (SIGSTOP) handles no other signal.
  ['immediate', 'SIGKILL', 3_000],
] as const

async function leave(cluster: Cluster, client: pg.Client): Promise<void> {
  try {
    const running = (await isLast(client)) ? await findPostmaster(cluster.folder) : undefined
    if (running) await end(cluster, running)
  } catch (error) {
    // PostgreSQL ended, or another process stopped it.
    if (await findPostmaster(cluster.folder)) throw error
  } finally {
    await Promise.race([client.end().catch(() => {}), sleep(1000, undefined, { ref: false })])
  }
}

/** Whether no other process uses the database. An unresponsive database counts as unused. */
async function isLast(client: pg.Client): Promise<boolean> {
  const query = async (text: string) =>
    (await client.query({ text, values: [lockKey], query_timeout: 5_000 } as pg.QueryConfig)).rows
  try {
    await query('SELECT pg_advisory_unlock_shared($1)')
    return (await query('SELECT pg_try_advisory_lock($1) AS last'))[0].last
  } catch (error) {
    if ((error as Error).message === 'Query read timeout') return true
    throw error
  }
}

async function end(cluster: Cluster, { pid }: Postmaster): Promise<void> {
  for (const [mode, signal, timeout] of shutdowns) {
    if (platform() === 'win32') {
      const { pg_ctl } = await findPrograms()
      await finish(spawn(pg_ctl, ['stop', '-W', '-m', mode, '-D', cluster.folder], { windowsHide: true }))
    } else {
      process.kill(pid, signal)
    }
    for (const until = performance.now() + timeout; performance.now() < until; await sleep(5)) {
      if ((await findPostmaster(cluster.folder))?.pid !== pid) return
    }
  }
  throw new Error(`PostgreSQL in ${cluster.folder} doesn’t stop; see ${logOf(cluster)}`)
}

/** Returns the PostgreSQL that runs in the folder; undefined when none runs, even if a stale postmaster.pid exists. */
async function findPostmaster(folder: string): Promise<Postmaster | undefined> {
  const lines = (await readFile(join(folder, 'postmaster.pid'), 'utf8').catch(ignoreMissing))?.split('\n')
  if (!lines) return undefined
  const pid = Number(lines[0])
  if (!(await runsIn(folder, pid))) return undefined
  return { pid, port: Number(lines[3]), ready: lines[7]?.trim() === 'ready' }
}

/** Whether the process is the PostgreSQL of the folder, as far as the operating system can tell. */
async function runsIn(folder: string, pid: number): Promise<boolean> {
  // The file is incomplete: PostgreSQL is writing it, or was when the power failed.
  if (!(pid > 0)) return false
  try {
    process.kill(pid, 0)
  } catch (error) {
    if (hasCode(error, 'ESRCH')) return false
  }
  if (platform() !== 'linux') return true
  try {
    // PostgreSQL's working directory is its folder. After a reboot, another program may have the process id.
    const [theirs, ours] = await Promise.all([stat(`/proc/${pid}/cwd`), stat(folder)])
    return theirs.dev === ours.dev && theirs.ino === ours.ino
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return false
    return (await readFile(`/proc/${pid}/comm`, 'utf8').catch(() => '')).trim() === 'postgres'
  }
}

/** Starts PostgreSQL and waits until it accepts connections. Returns at once when PostgreSQL is running. */
async function launch(cluster: Cluster): Promise<void> {
  const { folder, dataDir, log } = cluster
  if (await findPostmaster(folder)) return
  const programs = await findPrograms()
  const user = chooseUser(folder)
  const start = startAs(user, programs, dataDir, text => log.warn(text))
  if (!existsSync(folder)) await initialize(cluster, programs, user, start)
  else await claimPidFile(folder)

  for (let attempt = 1; ; attempt++) {
    const port = await choosePort(attempt === 1 ? await lastPort(folder) : undefined)
    const output = openSync(logOf(cluster), 'w', 0o600)
    if (user) fchownSync(output, user.uid, user.gid)
    const child = start(programs.postgres, ['-D', folder, ...parameters(port, cluster.durable ?? true)], {
      cwd: folder,
      env: environment(),
      detached: true,
      windowsHide: true,
      stdio: ['ignore', output, output],
    })
    closeSync(output)
    cluster.onLaunch?.()
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
    // Most likely another program uses the port: tries another port.
    if (attempt === 3) throw new Error(`PostgreSQL doesn’t start: ${await lastLogLines(cluster)}`)
  }
}

/**
 * Replaces the process id in a stale postmaster.pid with the id of this process. PostgreSQL refuses to start when the id
 * belongs to a live process other than its parent. Keeps the other lines, by which PostgreSQL detects child processes
 * that survived the postmaster.
 */
async function claimPidFile(folder: string): Promise<void> {
  const path = join(folder, 'postmaster.pid')
  const content = await readFile(path, 'utf8').catch(ignoreMissing)
  if (content !== undefined) await writeFile(path, [process.pid, ...content.split('\n').slice(1)].join('\n'))
}

/** Returns the port of the last start, which the URLs of other processes that use the database contain. */
async function lastPort(folder: string): Promise<number | undefined> {
  const options = await readFile(join(folder, 'postmaster.opts'), 'utf8').catch(ignoreMissing)
  const port = /"port=(\d+)"/.exec(options ?? '')?.[1]
  return port ? Number(port) : undefined
}

/** Returns the preferred port if it is free, else any free port. */
async function choosePort(preferred = 0): Promise<number> {
  const server = createServer()
  if (!(await listens(server, { port: preferred, host: '127.0.0.1' }))) return choosePort()
  const { port } = server.address() as { port: number }
  await new Promise(done => server.close(done))
  return port
}

/** Returns the last lines of PostgreSQL's log, and the path of the log. */
async function lastLogLines(cluster: Cluster): Promise<string> {
  const lines = (await readFile(logOf(cluster), 'utf8').catch(ignoreMissing))?.trim().split('\n') ?? []
  return `${lines.slice(-3).join(' | ') || 'no output'} (${logOf(cluster)})`
}

function logOf({ dataDir }: Cluster): string {
  return join(dataDir, 'postgres.log')
}

/** Returns the URL, which disables TLS: the server doesn't support it, and a client that prefers it would connect twice. */
function urlOf({ password }: Cluster, port: number): string {
  return `postgres://auth:${password}@127.0.0.1:${port}/auth?sslmode=disable`
}
