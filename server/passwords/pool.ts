// Runs bcrypt on threads behind a bounded queue. It owns who waits for how long: what can't be done in time is refused
// before any work is spent on it. The order is queue.ts's, the threads are threads.ts's; it knows nothing of passwords.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { activeContext, type Context, inSpan, spanSince, tracing } from '../observability/tracing.js'
import type { Call } from '../requests/call.js'
import { networksOf } from '../requests/client-address.js'
import { Refusal } from '../requests/refusal.js'
import { createQueue, type Turn } from './queue.js'
import { type CompareJob, createThreads, type HashJob, type Job, type Result, type ThreadsOptions } from './threads.js'

/** What a job answers: the hash, or whether text and hash match. */
export type Outcome<J extends Job> = J extends HashJob ? string : J extends CompareJob ? boolean : Result

/** A caller that waits, and until when. */
export interface Waiter extends Turn {
  /** When the caller stops waiting, in ms since 1970; the pool refuses it earlier when that is beyond `maxWaitMs`. */
  readonly deadline: number
  /** Aborted when the caller has gone: its waiting jobs leave the queue. */
  readonly signal?: AbortSignal
  /** The caller's place in the scheduler, given back meanwhile. */
  readonly work?: Call['work']
}

/** The waiter that a call makes for an account: it isn't known until a sign-in has shown that. */
export function waiterOf(
  { address, deadline, signal, work }: Call,
  account: string,
  kind: 'administration' | 'other' = 'other',
): Waiter {
  return { kind, networks: networksOf(address), account, deadline, signal, work }
}

/** State of the pool. */
export interface PoolStats {
  /** Jobs in the queue. */
  readonly waiting: number
  /** Jobs on a thread. */
  readonly running: number
  /** Calls refused for lack of time or room since the start. */
  readonly shed: number
  /** Moving average of a job of the usual cost, in ms. */
  readonly averageMs: number
}

export interface PoolOptions extends ThreadsOptions {
  /** Maximum of waiting jobs, 1000 by default. */
  readonly limit?: number
  /** In ms, 8 000 by default: no job is admitted that would wait longer, and none waits a quarter longer than that. */
  readonly maxWaitMs?: number
  /** How much a network failed and signed up lately: the queue ranks networks by it. */
  readonly usedOf?: (network: string) => number
  /** Receives how long each job waited, in ms, when it starts. */
  readonly onWait?: (ms: number) => void
}

export interface Pool {
  /**
   * Runs jobs and returns their outcomes. Refuses with OVERLOADED (and seconds to wait) when they wouldn't be done in
   * time, the queue is full, or their time passes in it; with DEADLINE_EXCEEDED when the caller has gone.
   */
  run<J extends Job>(jobs: readonly J[], waiter: Waiter): Promise<Outcome<J>[]>
  /** Throws the refusal with which `run` would meet so many jobs for lack of time. It costs little: ask before other work. */
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
  readonly since: number
  /** The span that it is a part of, where there is a tracer. */
  readonly parent: Context | undefined
  readonly result: Promise<Result>
  readonly resolve: (result: Result) => void
  readonly reject: (error: Refusal) => void
}

/** Part of a wait that its estimate may be wrong by. */
const margin = 0.1

/** Part of the wait that is random: callers that arrive together and wait in vain aren't refused all at once. */
const jitter = 0.25

/** Milliseconds that a call needs besides its hash: what is admitted must be answered in time. */
const overheadMs = 100

/** A pool whose threads start with the first jobs. */
export function createPool(options: PoolOptions): Pool {
  const { limit = 1000, maxWaitMs = 8_000, usedOf, onWait } = options
  const threads = createThreads(options)
  const queue = createQueue<Task & { readonly turn: Turn }>(usedOf)
  const idleTasks: Task[] = []
  let shed = 0
  let closed = false

  function start(): void {
    while (threads.free > 0) {
      const task = queue.take()
      const next = task ?? idleTasks.shift()
      if (!next) return
      if (task) onWait?.(performance.now() - task.since)
      run(next).then(next.resolve, next.reject).finally(start)
    }
  }

  function run({ job, since, parent }: Task): Promise<Result> {
    if (!tracing || !parent) return threads.run(job)
    spanSince(since, { name: 'hash wait' }, parent)
    const attributes = { 'auth.hash.kind': job.kind, 'auth.hash.cost': job.cost }
    return inSpan({ name: 'hash', attributes, parent }, () => threads.run(job))
  }

  function overloaded(ms = threads.averageMs): Refusal {
    shed++
    return new Refusal(Reason.OVERLOADED, { retryAfter: ms / 1000, limit: 'hashing' })
  }

  function timeFor({ deadline, signal }: Waiter, max = maxWaitMs): number {
    if (closed) throw new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
    const time = Math.min(deadline - Date.now(), max)
    if (signal?.aborted || time <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
    return time
  }

  function check(waiter: Waiter, jobs: number): void {
    const time = timeFor(waiter)
    // An idle thread takes any job: only so can a wrong average mend.
    if (threads.free > queue.size) return
    const { averageMs, count } = threads
    const estimate = (queue.ahead(waiter, jobs) * averageMs + threads.remainingMs()) / count + averageMs
    const late = estimate * (1 + margin) + overheadMs - time
    if (late > 0) throw overloaded(late)
  }

  return {
    check,
    async run<J extends Job>(jobs: readonly J[], waiter: Waiter) {
      check(waiter, jobs.length)
      const { signal } = waiter
      const tasks = jobs.map(job => ({ ...createTask(job), turn: waiter }))
      // A thread can't be stopped in the middle of a hash; its result is ignored.
      const refuse = (refusal: Refusal) => {
        for (const task of tasks) task.reject(refusal)
      }
      const onAbort = () => refuse(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
      const onTimeout = () => {
        if (tasks.some(task => queue.remove(task))) refuse(overloaded())
      }
      const timer = setTimeout(onTimeout, timeFor(waiter, maxWaitMs * (1 + jitter * Math.random()))).unref()
      signal?.addEventListener('abort', onAbort, { once: true })
      for (const task of tasks) queue.add(task)
      while (queue.size > limit) queue.evict()!.reject(overloaded())
      start()
      try {
        const all = () => Promise.all(tasks.map(({ result }) => result))
        return (await (waiter.work ? waiter.work.away(all) : all())) as Outcome<J>[]
      } finally {
        clearTimeout(timer)
        signal?.removeEventListener('abort', onAbort)
        // When one was refused, the others are of no use.
        for (const task of tasks) queue.remove(task)
      }
    },
    async whenIdle(job) {
      if (closed || idleTasks.length >= limit) return undefined
      const task = createTask(job)
      idleTasks.push(task)
      start()
      return task.result as Promise<string>
    },
    stats() {
      const { running, averageMs } = threads
      return { waiting: queue.size, running, shed, averageMs }
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

function createTask(job: Job): Task {
  let settle!: Pick<Task, 'resolve' | 'reject'>
  const result = new Promise<Result>((resolve, reject) => {
    settle = { resolve, reject }
  })
  // Of several jobs that are refused together, only the first is listened to.
  result.catch(() => {})
  return { job, since: performance.now(), parent: tracing ? activeContext() : undefined, result, ...settle }
}
