// The postmaster of the embedded PostgreSQL, by its file postmaster.pid.
import { readFile, stat, writeFile } from 'node:fs/promises'
import { platform } from 'node:os'
import { join } from 'node:path'
import { hasCode, ignoreMissing } from '../process/errno.js'

/** The content of postmaster.pid of a running PostgreSQL. */
export interface Postmaster {
  readonly pid: number
  readonly port: number
  /** Whether PostgreSQL accepts connections. */
  readonly ready: boolean
}

/** Returns the PostgreSQL that runs in the folder; undefined when none runs, even if a stale postmaster.pid exists. */
export async function findPostmaster(folder: string): Promise<Postmaster | undefined> {
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

/**
 * Replaces the process id in a stale postmaster.pid with the id of this process. PostgreSQL refuses to start when the id
 * belongs to a live process other than its parent. Keeps the other lines, by which PostgreSQL detects child processes
 * that survived the postmaster.
 */
export async function claimPidFile(folder: string): Promise<void> {
  const path = join(folder, 'postmaster.pid')
  const content = await readFile(path, 'utf8').catch(ignoreMissing)
  if (content !== undefined) await writeFile(path, [process.pid, ...content.split('\n').slice(1)].join('\n'))
}

/** Returns the port of the last start, which the URLs of other processes that use the database contain. */
export async function lastPort(folder: string): Promise<number | undefined> {
  const options = await readFile(join(folder, 'postmaster.opts'), 'utf8').catch(ignoreMissing)
  const port = /"port=(\d+)"/.exec(options ?? '')?.[1]
  return port ? Number(port) : undefined
}
