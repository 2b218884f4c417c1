// The threads that run bcrypt: a fixed number at low priority, so that they don't delay other calls.
import { availableParallelism } from 'node:os'
import { fileURLToPath } from 'node:url'
import { Piscina } from 'piscina'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../requests/refusal.js'

/** A text to hash. bcrypt reads its first 72 bytes. */
export interface HashJob {
  readonly kind: 'hash'
  readonly text: string
  /** Work factor: an increase by 1 doubles the work. */
  readonly cost: number
}

/**
 * A text to compare with a bcrypt hash; without a hash it doesn't match. A mismatch takes at least the time of `cost`.
 */
export interface CompareJob {
  readonly kind: 'compare'
  readonly text: string | Uint8Array
  readonly hash: string | undefined
  readonly cost: number
}

export type Job = HashJob | CompareJob

/** The result of a job: the hash, or whether text and hash match. */
export type Result = string | boolean

/** Settings of the threads. */
export interface ThreadsOptions {
  /** The configured work factor. Jobs of this cost update the average duration. */
  readonly cost: number
  /** Number of threads. Default: the parallelism of the machine. */
  readonly count?: number | undefined
  /** Called with the error of a thread that crashed; the next job starts another thread. */
  readonly onFault?: ((error: unknown) => void) | undefined
}

/** Initial average duration of a job, in ms, divided by 2 to the power of its cost, until jobs are measured. */
const initialUnitMs = 0.06

const filename = fileURLToPath(new URL('./hash-thread.js', import.meta.url))

/** Creates the threads of a pool. They start with the first jobs; idle ones don't keep the process alive. */
export function createThreads({ cost, count = availableParallelism(), onFault }: ThreadsOptions) {
  const threads = new Piscina<Job, Result>({ filename, minThreads: 0, maxThreads: count, idleTimeout: Infinity })
  let averageMs = initialUnitMs * 2 ** cost
  let [running, closed] = [0, false]

  return {
    count,
    /** Idle or unstarted threads. */
    get free() {
      return closed ? 0 : count - running
    },
    /** Moving average duration of a job of the configured cost, in ms. */
    get averageMs() {
      return averageMs
    },
    /**
     * Runs a job; `free` must not be 0. Refuses with INTERNAL when the thread crashes, and with UNAVAILABLE when `close`
     * ends it.
     */
    async run(job: Job): Promise<Result> {
      running++
      const startedAt = performance.now()
      try {
        const result = await threads.run(job)
        // The time includes the messages to and from the thread. Imported hashes of another cost would distort the average.
        if (job.cost === cost) averageMs += (performance.now() - startedAt - averageMs) / 8
        return result
      } catch (error) {
        if (closed) throw new Refusal(Reason.UNAVAILABLE)
        onFault?.(error)
        throw new Refusal(Reason.INTERNAL)
      } finally {
        running--
      }
    },
    /** Terminates the threads and their jobs. */
    async close(): Promise<void> {
      closed = true
      await threads.destroy()
    },
  }
}

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
