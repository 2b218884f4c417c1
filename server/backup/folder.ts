// The folder of backups: the names of scheduled backups, how many are kept, and what crashed backups leave there.
import { randomBytes } from 'node:crypto'
import { readdir, stat, unlink, utimes } from 'node:fs/promises'
import { join } from 'node:path'

/** Milliseconds between two updates of the modification time of an unfinished backup. */
const updateInterval = 10_000

/** Milliseconds since the last update after which an unfinished backup is abandoned: its process was killed. */
const abandonedAfter = 10 * 60_000

/** Returns the name of a backup that is made now, in UTC. Names sort by time. */
export function timedName(): string {
  return `registry-${new Date().toISOString().replace(/:|\.\d+/g, '')}.age`
}

/** Returns the path under which a backup is written until it is complete. */
export function partialPath(file: string): string {
  return `${file}.${randomBytes(6).toString('hex')}.partial`
}

/** Keeps the modification time of an unfinished backup current, until the returned function is called. */
export function keepCurrent(partial: string): () => void {
  const update = () => {
    const now = new Date()
    // The file doesn't exist before the first byte.
    utimes(partial, now, now).catch(() => {})
  }
  const timer = setInterval(update, updateInterval)
  return () => clearInterval(timer)
}

/** Deletes unfinished backups that no process is writing. */
export async function removeAbandoned(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    if (!/\.[\da-f]{12}\.partial$/.test(name)) continue
    const path = join(folder, name)
    // Another process may complete or delete it meanwhile.
    const { mtimeMs } = await stat(path).catch(() => ({ mtimeMs: Number.POSITIVE_INFINITY }))
    if (mtimeMs < Date.now() - abandonedAfter) await unlink(path)
  }
}

/** Deletes the oldest backups with names of `timedName`, except the newest `keep`. Returns the deleted names. */
export async function removeOldest(folder: string, keep: number): Promise<string[]> {
  const names = (await readdir(folder)).filter(name => /^registry-\d{4}-\d\d-\d\dT\d{6}Z\.age$/.test(name)).sort()
  const oldest = names.slice(0, -keep)
  for (const name of oldest) await unlink(join(folder, name))
  return oldest
}
