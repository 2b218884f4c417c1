import { createThreads } from './threads.js'

/** How long a hash of a work factor takes here, in ms, and how many are computed at once. */
export async function measureHashing(cost: number): Promise<{ milliseconds: number; atOnce: number }> {
  const threads = createThreads({ cost })
  try {
    // The first job starts the thread.
    await threads.run({ kind: 'hash', text: 'x', cost: 4 })
    const startedAt = performance.now()
    await threads.run({ kind: 'hash', text: 'x', cost })
    return { milliseconds: performance.now() - startedAt, atOnce: threads.count }
  } finally {
    await threads.close()
  }
}
