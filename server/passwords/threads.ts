// The threads that run bcrypt: a fixed number at low priority, so that calls that hash nothing stay undisturbed.
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../requests/refusal.js'

/** Hash a text. Only its first 72 bytes count. */
export interface HashJob {
  readonly kind: 'hash'
  readonly text: string
  /** Work factor: each one more doubles the work. */
  readonly cost: number
}

/** Compare a text with a bcrypt hash; without a hash the answer is no. A no takes the time of `cost` at least. */
export interface CompareJob {
  readonly kind: 'compare'
  readonly text: string | Uint8Array
  readonly hash: string | undefined
  readonly cost: number
}

export type Job = HashJob | CompareJob

/** What a thread answers: the hash, or whether text and hash match. */
export type Result = string | boolean

export interface ThreadsOptions {
  /** The usual work factor; times are estimated by jobs of this cost. */
  readonly cost: number
  /** Number of threads; by default as many as the machine runs in parallel. */
  readonly count?: number | undefined
  /** Receives the error of a thread that broke; the next job starts another. */
  readonly onFault?: ((error: unknown) => void) | undefined
}

/** Threads that start with the first jobs. Idle ones don't keep the process alive. */
export interface Threads {
  readonly count: number
  /** Jobs that run. */
  readonly running: number
  /** Jobs that could start at once. */
  readonly free: number
  /** Moving average of a job of the usual cost, in ms. */
  readonly averageMs: number
  /** Milliseconds that the running jobs still need, added up. */
  remainingMs(): number
  /** Runs a job; call it only while `free` isn't 0. Refuses with INTERNAL when its thread breaks, UNAVAILABLE at the end. */
  run(job: Job): Promise<Result>
  /** Ends the threads in the middle of what they do. */
  close(): Promise<void>
}

interface Task {
  readonly job: Job
  readonly startedAt: number
  readonly resolve: (result: Result) => void
  readonly reject: (error: Refusal) => void
}

interface Thread {
  readonly worker: Worker
  /** What it works on. */
  task?: Task
}

/** Milliseconds that one unit of bcrypt's work took where this was written; only the first estimate rests on it. */
const firstGuess = 0.06

/** Program of the threads. */
const program = new URL('dist/server/passwords/hash-thread.js', import.meta.resolve('#package'))

export function createThreads({ cost, count = availableParallelism(), onFault }: ThreadsOptions): Threads {
  const threads = new Set<Thread>()
  let averageMs = firstGuess * 2 ** cost
  let closed = false

  const tasks = () => [...threads].flatMap(({ task }) => task ?? [])

  function startThread(): Thread {
    const thread: Thread = { worker: new Worker(program, { name: 'hashing' }) }
    threads.add(thread)
    thread.worker.on('message', (result: Result) => finish(thread, result))
    thread.worker.on('error', error => onFault?.(error))
    thread.worker.on('exit', () => {
      threads.delete(thread)
      // A new thread starts with the next job, so one that can't start refuses a job each time and never spins.
      thread.task?.reject(new Refusal(closed ? Reason.UNAVAILABLE : Reason.INTERNAL))
    })
    return thread
  }

  function finish(thread: Thread, result: Result): void {
    const { job, startedAt, resolve } = thread.task!
    // The way to the thread and back counts, too. Weaker or stronger hashes from elsewhere would spoil the estimate.
    if (job.cost === cost) averageMs += (performance.now() - startedAt - averageMs) / 8
    delete thread.task
    // A closed pool waits for the end of its threads.
    if (!closed) thread.worker.unref()
    resolve(result)
  }

  return {
    count,
    get running() {
      return tasks().length
    },
    get free() {
      return closed ? 0 : count - tasks().length
    },
    get averageMs() {
      return averageMs
    },
    remainingMs() {
      const now = performance.now()
      return tasks().reduce((sum, { startedAt }) => sum + Math.max(0, averageMs - (now - startedAt)), 0)
    },
    run(job) {
      return new Promise<Result>((resolve, reject) => {
        const thread = [...threads].find(({ task }) => !task) ?? startThread()
        thread.task = { job, startedAt: performance.now(), resolve, reject }
        thread.worker.ref()
        thread.worker.postMessage(job)
      })
    },
    async close() {
      closed = true
      await Promise.all([...threads].map(({ worker }) => worker.terminate()))
    },
  }
}
