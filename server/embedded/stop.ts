// Stops the embedded PostgreSQL when its last process leaves.
import { spawn } from 'node:child_process'
import { platform } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'
import type pg from 'pg'
import { type Cluster, finish, logOf } from './cluster.js'
import { findPostmaster, type Postmaster } from './postmaster.js'
import { findPrograms } from './programs.js'

/** Key of the advisory lock. Any number works, because no other software uses this database. */
export const lockKey = 1

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

/** Releases the shared lock of a process, and stops PostgreSQL if no other process holds it. */
export async function leave(cluster: Cluster, client: pg.Client): Promise<void> {
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

/** Stops PostgreSQL, by force if necessary. */
export async function end(cluster: Cluster, { pid }: Pick<Postmaster, 'pid'>): Promise<void> {
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
