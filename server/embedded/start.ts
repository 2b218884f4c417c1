/**
 * The embedded PostgreSQL of a data folder. All processes that use the folder share it: the first starts it, later ones
 * connect to it, the last one to leave stops it. PostgreSQL is detached, so it continues to run when a process is
 * killed, and the next process connects to it.
 *
 * Each process holds a session-level advisory lock in shared mode. A process that acquires the lock in exclusive mode is
 * the last. PostgreSQL's postmaster.pid shows whether PostgreSQL is running, and its port.
 *
 * This folder owns its part of the data folder: secrets (secrets.ts), the cluster (cluster.ts), its postmaster
 * (postmaster.ts), the programs and their user (programs.ts), the lock for the start (folder-lock.ts), and the stop
 * (stop.ts). It provides a database URL and a master key, for database/database-choice.ts, when no DATABASE_URL is set.
 */
import { closeSync, existsSync, fchownSync, openSync } from 'node:fs'
import { readFile, realpath } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import pg from 'pg'
import { ignoreMissing } from '../process/errno.js'
import { type Cluster, environment, finish, initialize, logOf, parameters } from './cluster.js'
import { withFolderLock } from './folder-lock.js'
import { choosePort } from './port.js'
import { claimPidFile, findPostmaster, lastPort } from './postmaster.js'
import { chooseUser, findPrograms, startAs } from './programs.js'
import { embeddedSecrets } from './secrets.js'
import { end, leave, lockKey } from './stop.js'

/** A running PostgreSQL that this process uses. */
export type Embedded = Awaited<ReturnType<typeof startEmbedded>>

/** Settings of `startEmbedded`. */
export interface Options extends Omit<Cluster, 'folder' | 'password'> {
  /** The key of AUTH_MASTER_KEY, if that is set. */
  readonly masterKey?: Buffer | undefined
}

/** Maximum milliseconds of a start. */
const timeout = 120_000

/**
 * Starts the PostgreSQL of a data folder, or connects to the running one. Creates the database at the first start.
 * Throws an Error that says what to do when this system can't run PostgreSQL.
 */
export async function startEmbedded(options: Options) {
  const { databasePassword: password, masterKey } = await embeddedSecrets(options.dataDir, options.masterKey)
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
  // restarts at its last port, unless the port is in use. A stop still needs it until its last step.
  const reconnect = async () => {
    while (!leaving) {
      try {
        connection = await attach({ ...cluster, signal: undefined })
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
    masterKey,
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
  const until = performance.now() + timeout
  let isOurs = false
  for (;;) {
    const running = await findPostmaster(cluster.folder)
    if (running?.ready) {
      try {
        const client = await connectShared(cluster, running.port)
        if (client) return { client, port: running.port }
      } catch (error) {
        // No other process uses what this one launched, and none can connect to.
        if (isOurs) await end(cluster, running)
        throw error
      }
    }
    if (cluster.signal?.aborted) {
      if (isOurs && running) await end(cluster, running)
      cluster.signal.throwIfAborted()
    }
    const launchOnce = async () => {
      isOurs = await launch(cluster)
    }
    if (!running) await withFolderLock(cluster.dataDir, launchOnce, cluster.signal)
    if (performance.now() > until)
      throw new Error(`PostgreSQL in ${cluster.folder} takes no connections; see ${logOf(cluster)}`)
    await sleep(10)
  }
}

/** Opens a connection with the shared lock; undefined when the database is starting or stopping. */
async function connectShared(cluster: Cluster, port: number): Promise<pg.Client | undefined> {
  const client = new pg.Client({
    connectionString: urlOf(cluster, port),
    // The driver takes what is missing here from PG… variables of the environment.
    options: '-c search_path=pg_catalog',
    client_encoding: 'UTF8',
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
    if (!(error instanceof pg.DatabaseError) || /^5[37]/.test(error.code ?? '')) return undefined
    if (error.code !== '28P01') throw error
    const file = join(cluster.dataDir, 'database-password')
    throw new Error(`${file} isn’t the password of the embedded database: restore it.`)
  }
}

/** Starts PostgreSQL, waits until it accepts connections, and returns true. Returns false when PostgreSQL is running. */
async function launch(cluster: Cluster): Promise<boolean> {
  const { folder, dataDir, log, signal } = cluster
  if (await findPostmaster(folder)) return false
  const programs = await findPrograms()
  const user = chooseUser(folder)
  const start = startAs(user, programs, dataDir, text => log.warn(text))
  if (!existsSync(folder)) await initialize(cluster, programs, user, start)
  else await claimPidFile(folder)
  log.info('Starting the embedded database')

  for (let attempt = 1; ; attempt++) {
    signal?.throwIfAborted()
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
    const ending = finish(child).then(() => {
      ended = true
    })
    while (!ended) {
      if ((await findPostmaster(folder))?.ready) {
        child.unref()
        return true
      }
      // No other process uses it before it accepts connections. One that hasn't written its pid yet gets the signal again.
      if (signal?.aborted && !ended) await end(cluster, { pid: child.pid! })
      await Promise.race([ending, sleep(5)])
    }
    if (await findPostmaster(folder)) return false
    // Most likely another program uses the port: tries another port.
    if (attempt === 3) throw new Error(`PostgreSQL doesn’t start: ${await lastLogLines(cluster)}`)
  }
}

/** Returns the last lines of PostgreSQL's log, and the path of the log. */
async function lastLogLines(cluster: Cluster): Promise<string> {
  const lines = (await readFile(logOf(cluster), 'utf8').catch(ignoreMissing))?.trim().split('\n') ?? []
  return `${lines.slice(-3).join(' | ') || 'no output'} (${logOf(cluster)})`
}

/** Returns the URL, which disables TLS: the server doesn't support it, and a client that prefers it would connect twice. */
function urlOf({ password }: Cluster, port: number): string {
  return `postgres://auth:${password}@127.0.0.1:${port}/auth?sslmode=disable`
}
