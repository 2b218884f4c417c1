import { setTimeout as sleep } from 'node:timers/promises'
import { type Statement, sql } from './sql.js'

/** Maximum milliseconds of a probe. */
const timeout = 2_000

/** Milliseconds for which a result is cached. */
const cachedFor = 500

/** Creates a function that returns whether a connection of the pool can write. One probe at a time asks; callers share it. */
export function createProbe(run: (query: Statement) => Promise<unknown>): () => Promise<boolean> {
  let answer: Promise<boolean> | undefined

  async function probe(): Promise<boolean> {
    try {
      // Changes no row, but fails on a read-only server or session.
      await run(sql`UPDATE migrations SET name = name WHERE false`)
      return true
    } catch {
      return false
    } finally {
      setTimeout(() => (answer = undefined), cachedFor).unref()
    }
  }

  return () => {
    answer ??= probe()
    return Promise.race([answer, sleep(timeout, false, { ref: false })])
  }
}
