import type pg from 'pg'
import type { Connections } from './connections.js'

/** Maximum milliseconds of a probe, and of its statement. */
const timeout = 2_000

/** Milliseconds for which a result is cached. */
const cachedFor = 500

// Changes no row, but fails on a read-only server or session.
const write = 'UPDATE migrations SET name = name WHERE false'

/** Creates a function that returns whether a connection of the pool can write. Parallel callers share one probe. */
export function createProbe(
  onConnection: <T>(work: (client: pg.Client) => Promise<T>) => Promise<T>,
  connections: Connections,
): () => Promise<boolean> {
  let answer: Promise<boolean> | undefined

  async function probe(): Promise<boolean> {
    let late = false
    const work = async (client: pg.Client) => {
      // No transaction locks this table for long, so the server is unresponsive. The time in the pool's line doesn't count.
      const silent = setTimeout(() => connections.discard(client), timeout)
      try {
        if (late) return false
        await client.query(write)
        return true
      } finally {
        clearTimeout(silent)
      }
    }
    let timer: NodeJS.Timeout | undefined
    const limit = new Promise<boolean>(resolve => {
      timer = setTimeout(() => {
        late = true
        resolve(false)
      }, timeout)
    })
    const result = await Promise.race([onConnection(work).catch(() => false), limit])
    clearTimeout(timer)
    return result
  }

  return () => {
    answer ??= probe().finally(() => setTimeout(() => (answer = undefined), cachedFor).unref())
    return answer
  }
}
