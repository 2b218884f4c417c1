/**
 * The embedded PostgreSQL of a data folder, shared by every process that uses the folder: the first starts it, later
 * ones join it, the last one to leave stops it. It runs in a session of its own and outlives a process that is killed;
 * the next one joins it again.
 *
 * What tells the processes of each other is a session-level advisory lock that each holds as shared: whoever can have
 * it exclusively is the last. PostgreSQL's own postmaster.pid says whether and where it runs.
 *
 * This room owns the folder: its secrets (secrets.ts), how the database is made and run (initdb.ts), by which programs
 * and as whom (programs.ts), one process at a time (folderlock.ts). What is in the database is none of its business.
 * It gives away a URL and a master key; database/source.ts asks for them where no DATABASE_URL is set.
 */
import { spawn } from 'node:child_process'
import { closeSync, existsSync, fchownSync, openSync } from 'node:fs'
import { readFile, realpath, stat, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { platform } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { absent, has } from './errno.js'
import { listens, withProcessLock } from './folder-lock.js'
import { environment, finish, initialize, type Place, parameters } from './initdb.js'
import { chooseUser, findPrograms, startAs } from './programs.js'
import { embeddedSecrets } from './secrets.js'

/** A PostgreSQL that this process uses. */
export interface Embedded {
  /** `postgres://` URL of its database, password included. It changes when the database comes back at another port. */
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
  /** Called when PostgreSQL has been launched and all that is left is to wait for it. */
  readonly onLaunch?: () => void
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
const timeout = 120_000

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
  let revival: Promise<void> = Promise.resolve()

  const watch = () => {
    membership.client.once('end', () => {
      if (!leaving) revival = revive()
    })
  }
  // Without the lock the next process to leave would stop the database under our feet; and nobody else may be there
  // to start it again. It comes back at its last port, unless that has been taken.
  const revive = async () => {
    while (!leaving) {
      try {
        membership = await attach(place)
        watch()
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
    get url() {
      return urlOf(place, membership.port)
    },
    stop() {
      stopped ??= stop()
      return stopped
    },
  }
}

/** Becomes one of the processes that use the database, which is started if need be. */
async function attach(place: Place): Promise<{ client: pg.Client; port: number }> {
  const end = Date.now() + timeout
  for (;;) {
    const running = await findPostmaster(place.folder)
    if (running?.ready) {
      const client = await hold(place, running.port)
      if (client) return { client, port: running.port }
    }
    if (!running) await withProcessLock(place.dataDir, () => launch(place))
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

/** Ways to end PostgreSQL, each for so many ms; after the later ones it recovers at its next start, and loses nothing. */
const endings = [
  ['fast', 'SIGINT', 10_000],
  ['immediate', 'SIGQUIT', 3_000],
  // A postmaster that is frozen heeds no other.
  ['immediate', 'SIGKILL', 3_000],
] as const

async function leave(place: Place, client: pg.Client): Promise<void> {
  try {
    const running = (await isLast(client)) ? await findPostmaster(place.folder) : undefined
    if (running) await end(place, running)
  } catch (error) {
    // It ended by itself meanwhile, or another process has stopped it.
    if (await findPostmaster(place.folder)) throw error
  } finally {
    await Promise.race([client.end().catch(() => {}), sleep(1000)])
  }
}

/** Whether nobody else uses the database. One that doesn't answer is of use to nobody. */
async function isLast(client: pg.Client): Promise<boolean> {
  const ask = async (text: string) =>
    (await client.query({ text, values: [lockKey], query_timeout: 5_000 } as pg.QueryConfig)).rows
  try {
    await ask('SELECT pg_advisory_unlock_shared($1)')
    return (await ask('SELECT pg_try_advisory_lock($1) AS last'))[0].last
  } catch (error) {
    if ((error as Error).message === 'Query read timeout') return true
    throw error
  }
}

async function end(place: Place, { pid }: Postmaster): Promise<void> {
  for (const [mode, signal, timeout] of endings) {
    if (platform() === 'win32') {
      const { pg_ctl } = await findPrograms()
      await finish(spawn(pg_ctl, ['stop', '-W', '-m', mode, '-D', place.folder], { windowsHide: true }))
    } else {
      process.kill(pid, signal)
    }
    for (const until = performance.now() + timeout; performance.now() < until; await sleep(5)) {
      if ((await findPostmaster(place.folder))?.pid !== pid) return
    }
  }
  throw new Error(`PostgreSQL in ${place.folder} doesn’t stop; see ${logOf(place)}`)
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
    place.onLaunch?.()
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

/** What PostgreSQL said before it gave up. */
async function lastWords(place: Place): Promise<string> {
  const lines = (await readFile(logOf(place), 'utf8').catch(absent))?.trim().split('\n') ?? []
  return `${lines.slice(-3).join(' | ') || 'it said nothing'} (${logOf(place)})`
}

function logOf({ dataDir }: Place): string {
  return join(dataDir, 'postgres.log')
}

/** It speaks no TLS: asking whether it does would take a connection of its own each time. */
function urlOf({ password }: Place, port: number): string {
  return `postgres://auth:${password}@127.0.0.1:${port}/auth?sslmode=disable`
}
