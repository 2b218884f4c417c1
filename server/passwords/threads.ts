// The threads that run bcrypt: a fixed number, of low priority, so that calls that hash nothing stay undisturbed.
//
// Threads of the lowest priority (niceness 19) leave other calls alone, but a machine that is busy with other work may
// give them no processor time at all. A job that takes far too long is therefore taken away from its thread and done
// once more by one of higher priority, and for a while such threads do the others, too.
import { availableParallelism } from 'node:os'
import { Worker } from 'node:worker_threads'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../refusal.js'

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
  /** As many as the machine runs at once unless told. */
  readonly count?: number | undefined
  /** Told when a thread broke; it is replaced. */
  readonly onFault?: ((error: unknown) => void) | undefined
}

/** Threads that start with the first jobs. Idle ones don't keep the process alive. */
export interface Threads {
  readonly count: number
  /** Jobs that run, or wait for a thread after theirs was too slow. */
  readonly running: number
  /** Jobs that could start at once. */
  readonly free: number
  /** Moving average of a job of the usual cost, in ms. */
  readonly averageMs: number
  /** Milliseconds that the running jobs need yet, added up. */
  remainingMs(): number
  /** Runs a job; call it only while `free` isn't 0. Refuses with INTERNAL when its thread breaks, UNAVAILABLE at the end. */
  run(job: Job): Promise<Result>
  /** Ends the threads in the middle of what they do. */
  close(): Promise<void>
}

interface Task {
  readonly job: Job
  readonly resolve: (result: Result) => void
  readonly reject: (error: Refusal) => void
}

interface Thread {
  readonly worker: Worker
  /** Whether it insists on a share of a busy machine. */
  readonly firm: boolean
  /** What it works on. */
  task?: Task
  startedAt: number
  /** Whether its job was taken away from it before it was through. */
  stuck: boolean
  overdue?: NodeJS.Timeout
}

/** Niceness of threads (0 is that of other work, 19 the most yielding): as a rule, and where that is too yielding. */
const niceness = { yielding: 19, firm: 5 }

/** A job that takes so many times as long as the fastest of its kind lacks processor time. */
const starving = 8

/** Milliseconds that firm threads then do all jobs. */
const firmFor = 30_000

/** Milliseconds that one unit of bcrypt's work took where this was written; only the first estimate rests on it. */
const firstGuess = 0.06

/** Milliseconds of delay that mean nothing. */
const hiccup = 1000

/** Program of the threads. */
const program = new URL('dist/server/passwords/hashthread.js', import.meta.resolve('#package'))

export function createThreads({ cost, count = availableParallelism(), onFault }: ThreadsOptions): Threads {
  const threads = new Set<Thread>()
  /** Jobs taken away from their threads, waiting for another. */
  const takenAway: Task[] = []
  let averageMs = firstGuess * 2 ** cost
  let fastestMs = Number.POSITIVE_INFINITY
  let firmUntil = 0
  let closed = false

  const working = () => [...threads].filter(({ task }) => task).length
  const isIdle = (thread: Thread) => !thread.task && !thread.stuck

  function startThread(firm: boolean): Thread {
    const workerData = firm ? niceness.firm : niceness.yielding
    const thread: Thread = {
      worker: new Worker(program, { name: 'hashing', workerData }),
      firm,
      startedAt: 0,
      stuck: false,
    }
    threads.add(thread)
    thread.worker.unref()
    thread.worker.on('message', (result: Result) => finish(thread, result))
    thread.worker.on('error', error => onFault?.(error))
    thread.worker.on('exit', () => {
      threads.delete(thread)
      clearTimeout(thread.overdue)
      // A new thread starts with the next job, so one that can't start refuses a job each time and never spins.
      thread.task?.reject(new Refusal(closed ? Reason.UNAVAILABLE : Reason.INTERNAL))
    })
    return thread
  }

  function freeThread(): Thread {
    // As fewer than `count` jobs run and a firm thread is never stuck, there is always one of those.
    return (performance.now() < firmUntil ? undefined : freeOf(false)) ?? freeOf(true)!
  }

  function freeOf(firm: boolean): Thread | undefined {
    const alike = [...threads].filter(thread => thread.firm === firm)
    const idle = alike.find(isIdle)
    if (idle || alike.length === count) return idle
    // One of the other kind makes room: each takes its memory.
    const other = [...threads].find(thread => thread.firm !== firm && isIdle(thread))
    if (other) {
      threads.delete(other)
      void other.worker.terminate()
    }
    return startThread(firm)
  }

  function start(task: Task): void {
    const thread = freeThread()
    thread.task = task
    thread.startedAt = performance.now()
    thread.worker.ref()
    thread.worker.postMessage(task.job)
    if (thread.firm) return
    const { job } = task
    const work = job.kind === 'compare' ? Math.max(job.cost, Number(job.hash?.slice(4, 6) ?? 0)) : job.cost
    const patience = starving * Math.min(fastestMs, averageMs) * 2 ** (work - cost) + hiccup
    thread.overdue = setTimeout(() => takeAway(thread), patience).unref()
  }

  function takeAway(thread: Thread): void {
    const { task } = thread
    if (!task) return
    delete thread.task
    thread.stuck = true
    thread.worker.unref()
    firmUntil = performance.now() + firmFor
    takenAway.push(task)
    startTakenAway()
  }

  function startTakenAway(): void {
    while (!closed && takenAway.length > 0 && working() < count) start(takenAway.shift()!)
  }

  function finish(thread: Thread, result: Result): void {
    const { task } = thread
    // Another has done its job, and its kind isn't wanted now.
    if (!task) return void thread.worker.terminate()
    const took = performance.now() - thread.startedAt
    // The way to the thread and back counts, too. Weaker or stronger hashes from elsewhere would spoil the estimate.
    if (task.job.cost === cost) {
      averageMs += (took - averageMs) / 8
      fastestMs = Math.min(fastestMs, took)
    }
    clearTimeout(thread.overdue)
    delete thread.task
    // A result that comes while the threads end must not keep anybody from waiting for that.
    if (!closed) thread.worker.unref()
    startTakenAway()
    task.resolve(result)
  }

  return {
    count,
    get running() {
      return working() + takenAway.length
    },
    get free() {
      return closed ? 0 : Math.max(0, count - working() - takenAway.length)
    },
    get averageMs() {
      return averageMs
    },
    remainingMs() {
      const now = performance.now()
      return [...threads].reduce(
        (sum, { task, startedAt }) => sum + (task ? Math.max(0, averageMs - (now - startedAt)) : 0),
        takenAway.length * averageMs,
      )
    },
    run: job => new Promise<Result>((resolve, reject) => start({ job, resolve, reject })),
    async close() {
      closed = true
      for (const task of takenAway.splice(0)) task.reject(new Refusal(Reason.UNAVAILABLE))
      await Promise.all([...threads].map(({ worker }) => worker.terminate()))
    },
  }
}
