// Runs bcrypt on threads behind a bounded queue. It owns who waits for how long: what can't be done in time is refused
// before any work is spent on it. The order is queue.ts's, the threads are threads.ts's; it knows nothing of passwords.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import { network } from '../clientaddress.js'
import { Refusal } from '../refusal.js'
import { activeContext, type Context, inSpan, spanSince, tracing } from '../tracing.js'
import { createQueue, type Turn } from './queue.js'
import { type CompareJob, createThreads, type HashJob, type Job, type Result, type ThreadsOptions } from './threads.js'

/** What a job answers: the hash, or whether text and hash match. */
export type Outcome<J extends Job> = J extends HashJob ? string : J extends CompareJob ? boolean : Result

/** Who waits, and until when. */
export interface Waiter extends Turn {
  /** When the caller stops waiting, in ms since 1970. The pool's own patience ends earlier if this is far off. */
  readonly deadline: number
  /** Aborted when the caller has gone: its waiting jobs leave the queue. */
  readonly signal?: AbortSignal
  /** The caller's place in the scheduler, given back meanwhile. */
  readonly work?: Call['work']
}

/** The waiter that a call makes for an account: it isn't known until a sign-in has shown that. */
export function waiterOf({ address, deadline, signal, work }: Call, account: string): Waiter {
  return { known: false, address: network(address), account, deadline, signal, work }
}

/** State of the pool. */
export interface PoolStats {
  /** Jobs in the queue. */
  readonly waiting: number
  /** Jobs on a thread. */
  readonly running: number
  /** Jobs done since the start. */
  readonly done: number
  /** Calls refused for lack of time or room since the start. */
  readonly shed: number
  /** How long the job that started last had waited, in ms. */
  readonly lastWaitMs: number
  /** Moving average of a job of the usual cost, in ms. */
  readonly averageMs: number
}

export interface PoolOptions extends ThreadsOptions {
  /** Most jobs waiting; 1000 unless told. */
  readonly limit?: number
  /** In ms: no job is admitted that would wait longer, whatever the caller's deadline, nor waits a quarter longer; 8 000 unless told. */
  readonly patience?: number
  /** How much a client address has failed and signed up of late: who did least goes first. */
  readonly usedOf?: (address: string) => number
  /** Told how long each job waited, in ms, when it starts. */
  readonly onWait?: (ms: number) => void
}

export interface Pool {
  /**
   * Runs jobs and returns their outcomes. Refuses with OVERLOADED (and seconds to wait) when they wouldn't be done in
   * time, the queue is full, or their time passes in it; with DEADLINE_EXCEEDED when the caller has gone.
   */
  run<J extends Job>(jobs: readonly J[], waiter: Waiter): Promise<Outcome<J>[]>
  /** Throws the refusal with which `run` would meet so many jobs now. It costs nothing: ask before other work. */
  check(waiter: Waiter, jobs: number): void
  /** Runs a job once nothing else waits and a thread is idle; undefined when too many wait for that already. */
  whenIdle(job: HashJob): Promise<string | undefined>
  /** State of the pool, for metrics. */
  stats(): PoolStats
  /** Refuses everything with UNAVAILABLE from now on and ends the threads. */
  close(): Promise<void>
}

interface Task {
  readonly job: Job
  readonly known: boolean
  readonly since: number
  /** The span that it is a part of, where there is a tracer. */
  readonly parent: Context | undefined
  readonly resolve: (result: Result) => void
  readonly reject: (error: Refusal) => void
}

/** Part of a wait that its estimate may be wrong by. */
const doubt = 0.1

/** Part of the patience that chance adds: those who came together and wait in vain aren't refused all at once. */
const spread = 0.25

/** Turns of late that say how much known sign-ins leave to others. */
const memory = 50

/** Milliseconds that a call needs besides its hash: what is admitted must be answered in time. */
const rest = 100

/** A pool whose threads start with the first jobs. */
export function createPool(options: PoolOptions): Pool {
  const { limit = 1000, patience = 8_000, usedOf, onWait } = options
  const threads = createThreads(options)
  const queue = createQueue<Task>(usedOf)
  const idleTasks: Task[] = []
  let done = 0
  let shed = 0
  let lastWaitMs = 0
  let knownShare = 0
  let closed = false

  function start(): void {
    while (threads.free > 0) {
      const task = queue.take()
      const next = task ?? idleTasks.shift()
      if (!next) return
      if (task) {
        lastWaitMs = performance.now() - task.since
        knownShare += (Number(task.known) - knownShare) / memory
        onWait?.(lastWaitMs)
      }
      run(next)
        .then(
          result => {
            done++
            next.resolve(result)
          },
          error => next.reject(error),
        )
        .finally(start)
    }
  }

  function run({ job, since, parent }: Task): Promise<Result> {
    if (!tracing || !parent) return threads.run(job)
    spanSince(since, { name: 'hash wait' }, parent)
    const attributes = { 'auth.hash.kind': job.kind, 'auth.hash.cost': job.cost }
    return inSpan({ name: 'hash', attributes, parent }, () => threads.run(job))
  }

  function overloaded(ms: number): Refusal {
    shed++
    return new Refusal(Reason.OVERLOADED, { retryAfter: ms / 1000, limit: 'hashing' })
  }

  function timeFor({ deadline, signal }: Waiter, most = patience): number {
    if (closed) throw new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
    const time = Math.min(deadline - Date.now(), most)
    if (signal?.aborted || time <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
    return time
  }

  function check(waiter: Waiter, jobs: number): void {
    const time = timeFor(waiter)
    // An idle thread takes any job: only so can a bad estimate mend.
    if (threads.free > queue.size) return
    const { averageMs, count } = threads
    const estimate = (queue.ahead(waiter, jobs, knownShare) * averageMs + threads.remainingMs()) / count + averageMs
    const late = estimate * (1 + doubt) + rest - time
    if (late > 0) throw overloaded(late)
  }

  function makeRoom(waiter: Waiter, jobs: number): void {
    while (queue.size + jobs > limit) {
      const evicted = queue.makeRoom(waiter, jobs)
      if (!evicted) throw overloaded(threads.averageMs)
      evicted.reject(overloaded(threads.averageMs))
    }
  }

  return {
    check,
    async run<J extends Job>(jobs: readonly J[], waiter: Waiter) {
      check(waiter, jobs.length)
      makeRoom(waiter, jobs.length)
      const { signal } = waiter
      const waiting = jobs.map(job => createTask(job, waiter.known))
      const timer = setTimeout(
        () => {
          for (const { task } of waiting) if (queue.remove(waiter, task)) task.reject(overloaded(threads.averageMs))
        },
        timeFor(waiter, patience * (1 + spread * Math.random())),
      ).unref()
      const onAbort = () => {
        // A thread can't be stopped in the middle of a hash, but nobody waits for the result.
        for (const { task } of waiting) {
          queue.remove(waiter, task)
          task.reject(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
        }
      }
      signal?.addEventListener('abort', onAbort, { once: true })
      for (const { task } of waiting) queue.add(waiter, task)
      start()
      try {
        const all = () => Promise.all(waiting.map(({ result }) => result))
        return (await (waiter.work ? waiter.work.away(all) : all())) as Outcome<J>[]
      } finally {
        clearTimeout(timer)
        signal?.removeEventListener('abort', onAbort)
        // When one was refused, nobody wants the others.
        for (const { task } of waiting) queue.remove(waiter, task)
      }
    },
    async whenIdle(job) {
      if (closed || idleTasks.length >= limit) return undefined
      const { task, result } = createTask(job, false)
      idleTasks.push(task)
      start()
      return result as Promise<string>
    },
    stats() {
      const { running, averageMs } = threads
      return { waiting: queue.size, running, done, shed, lastWaitMs, averageMs }
    },
    async close() {
      closed = true
      const gone = new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
      for (let task = queue.take(); task; task = queue.take()) task.reject(gone)
      for (const task of idleTasks.splice(0)) task.reject(gone)
      await threads.close()
    },
  }
}

function createTask(job: Job, known: boolean): { task: Task; result: Promise<Result> } {
  let settle!: Pick<Task, 'resolve' | 'reject'>
  const result = new Promise<Result>((resolve, reject) => {
    settle = { resolve, reject }
  })
  // Of several jobs that are refused together, only the first is listened to.
  result.catch(() => {})
  const parent = tracing ? activeContext() : undefined
  return { task: { job, known, since: performance.now(), parent, ...settle }, result }
}
