import { createThreads } from './threads.js'

/** Measures a hash of a work factor on this machine: its duration in ms, and the number of hash threads. */
export async function measureHashing(cost: number): Promise<{ milliseconds: number; atOnce: number }> {
  const threads = createThreads({ cost })
  try {
    // The first job includes the start of the thread.
    await threads.run({ kind: 'hash', text: 'x', cost: 4 })
    const startedAt = performance.now()
    await threads.run({ kind: 'hash', text: 'x', cost })
    return { milliseconds: performance.now() - startedAt, atOnce: threads.count }
  } finally {
    await threads.close()
  }
}
