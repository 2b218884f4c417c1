/** Patience by progress: a busy machine may take its time, as long as something moves. */
import { setTimeout as sleep } from 'node:timers/promises'

/** Times that a service may say it is busy before that is its answer. */
export const patience = 60

/** Milliseconds between two looks. */
const pause = 50

/** Looks in a row that may find nothing new: a minute where nothing else runs, longer where this process has to wait, too. */
const quietLooks = 1200

/**
 * Waits until `look` finds something (neither undefined nor false) and returns that. It goes on as long as what
 * `progress` returns changes, and rejects after a minute in which it didn't.
 */
export async function waitFor<T>(
  look: () => T | undefined | false | Promise<T | undefined | false>,
  progress: () => unknown = () => undefined,
): Promise<T> {
  let last: unknown
  for (let quiet = 0; quiet < quietLooks; quiet++) {
    const found = await look()
    if (found !== undefined && found !== false) return found
    const now = JSON.stringify(await progress())
    if (now !== last) quiet = 0
    last = now
    await sleep(pause)
  }
  throw new Error(`waited in vain: ${look}${last === undefined ? '' : `; last seen: ${last}`}`)
}

/** Whether a promise settles within so many ms: many times what it needs, and less than it would take otherwise. */
export async function within(ms: number, promise: Promise<unknown>): Promise<boolean> {
  const timer = new AbortController()
  const late = sleep(ms, false, { signal: timer.signal }).catch(() => false)
  const settled = await Promise.race([promise.then(() => true), late])
  timer.abort()
  return settled
}
