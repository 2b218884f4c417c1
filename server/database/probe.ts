import type pg from 'pg'
import type { Connections } from './connections.js'

/** Milliseconds that a connection has to show that it can write. */
const timeout = 2_000

/** Milliseconds for which what was found is believed. */
const shelfLife = 500

// A server or session that is read-only refuses it, even though there is nothing to be written; so nothing is.
const write = 'UPDATE migrations SET name = name WHERE false'

/** The pool's connections. */
interface Pool {
  acquire(): Promise<pg.Client>
  release(client: pg.Client): void
}

/** Makes what tells whether a connection of the pool can write. It asks one at a time, whoever wants to know. */
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
        // It could be waiting for a lock, but not on this table.
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
