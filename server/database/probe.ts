import type pg from 'pg'
import type { Connections } from './connections.js'

/** Milliseconds for a connection to show that it can write. */
const timeout = 2_000

/** Milliseconds for which a result is reused. */
const shelfLife = 500

// It writes nothing, but a read-only server or session refuses it.
const write = 'UPDATE migrations SET name = name WHERE false'

/** The pool of connections. */
interface Pool {
  acquire(): Promise<pg.Client>
  release(client: pg.Client): void
}

/** Makes a function that says whether a connection of the pool can write. Parallel callers share one probe. */
export function createProbe(pool: Pool, connections: Connections): () => Promise<boolean> {
  let answer: Promise<boolean> | undefined

  async function probe(): Promise<boolean> {
    let asked: pg.Client | undefined
    let late = false
    const work = async () => {
      const client = await pool.acquire()
      try {
        if (late) return false
        asked = client
        await client.query(write)
        return true
      } finally {
        asked = undefined
        pool.release(client)
      }
    }
    let timer: NodeJS.Timeout | undefined
    const limit = new Promise<boolean>(resolve => {
      timer = setTimeout(() => {
        late = true
        // Nothing locks this table for long, so the server is unresponsive.
        if (asked) connections.giveUp(asked)
        resolve(false)
      }, timeout)
    })
    const result = await Promise.race([work().catch(() => false), limit])
    clearTimeout(timer)
    return result
  }

  return () => {
    answer ??= probe().finally(() => setTimeout(() => (answer = undefined), shelfLife).unref())
    return answer
  }
}
