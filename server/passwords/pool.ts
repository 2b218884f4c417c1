// Runs bcrypt on threads behind a fair queue that is no longer than what the threads can do in the time that a job may wait.
// threads.ts owns the threads.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { createFairQueue, type Entry } from '../limits/fair-queue.js'
import { activeContext, type Context, inSpan, spanSince, tracing } from '../observability/tracing.js'
import type { Call } from '../requests/call.js'
import { networksOf } from '../requests/client-address.js'
import { Refusal } from '../requests/refusal.js'
import { type CompareJob, createThreads, type HashJob, type Job, type Result, type ThreadsOptions } from './threads.js'

/** The result of a job: the hash, or whether text and hash match. */
type Outcome<J extends Job> = J extends HashJob ? string : J extends CompareJob ? boolean : Result

/** The attributes of a job that decide its place in the queue. */
export interface JobOrigin {
  /** A sign-in of an active account that knows the network; a call of Administration; any other. */
  readonly kind: 'known' | 'administration' | 'other'
  /** Networks of the client address, innermost first. */
  readonly networks: readonly string[]
  /** Username key of the account. Jobs are queued by network, and by account within the innermost one. */
  readonly account: string
}

/** A line of jobs within another one. Of two, that with the lower rank goes first; by default that of a network counts. */
interface Level {
  readonly name: string
  readonly rank?: number | undefined
}

/** The outermost lines of each kind. */
const rest: Level = { name: 'rest', rank: 1 }
const kinds: Record<JobOrigin['kind'], readonly Level[]> = {
  known: [{ name: 'known', rank: 0 }],
  other: [{ name: 'other', rank: 0 }, rest],
  administration: [{ name: 'administration', rank: 1 }, rest],
}

/** A job in the queue, with its lines, innermost first. */
export interface QueuedJob extends Entry {
  readonly levels: readonly Level[]
}

/** The entry of a job. */
export function entryOf({ kind, networks, account }: JobOrigin): QueuedJob {
  // Known networks are equal, whatever failed there: one pupil must not put back the school.
  const rank = kind === 'known' ? 0 : undefined
  const levels: Level[] = [{ name: account, rank: 0 }, ...networks.map(name => ({ name, rank })), ...kinds[kind]]
  return { levels, networks: levels.map(({ name }) => name), cost: 1 }
}

/**
 * Creates the queue of a pool: known sign-ins rank before the rest, other calls before those of Administration, and networks
 * of the rest by the binary logarithm of `recentCount`, their recent failures, sign-ups and refusals. A client gets no more
 * turns by more jobs, accounts, or networks inside its network. `room` returns the maximum of jobs.
 */
export function createJobQueue<T extends QueuedJob>(room: () => number, recentCount = (_network: string) => 0) {
  const bounds = {
    get all() {
      return room()
    },
  }
  return createFairQueue<T>(bounds, ({ levels }, level) => {
    const { name, rank = Math.round(Math.log2(1 + recentCount(name))) } = levels[level]!
    return rank
  })
}

/** A caller in the queue. */
export interface Waiter extends JobOrigin {
  /**
   * When the caller stops waiting, in ms since 1970. The pool refuses jobs that can't end before it, and earlier when this is
   * beyond `maxWaitMs`.
   */
  readonly deadline: number
  /** Aborted when the caller disconnects: its waiting jobs leave the queue. */
  readonly signal?: AbortSignal
  /** The caller's turn in the scheduler, which pauses during the wait. */
  readonly turn?: Call['turn']
}

/**
 * Returns the waiter of a call for an account. A sign-in changes `kind` to `known` when the account knows the network.
 */
export function waiterOf(
  { address, deadline, signal, turn }: Call,
  account: string,
  kind: 'administration' | 'other' = 'other',
): Waiter {
  return { kind, networks: networksOf(address), account, deadline, signal, turn }
}

/** Settings of a pool. */
export interface PoolOptions extends ThreadsOptions {
  /** Maximum waiting jobs, however fast the threads are. Default 1000. */
  readonly limit?: number
  /**
   * Maximum wait in ms; no job waits over 25% longer. Default 8000. At most as many jobs wait as the threads can do in this
   * time: for each one too many, the newest of the longest line is refused.
   */
  readonly maxWaitMs?: number
  /** Recent failures and sign-ups of a network: the queue ranks networks by them. */
  readonly recentCount?: (network: string) => number
  /** Called with the networks of each waiter that is refused for lack of time or room. */
  readonly onRefused?: (networks: readonly string[]) => void
  /** Called with the wait of each job, in ms, when it starts. */
  readonly onWait?: (ms: number) => void
}

/** Hash threads behind a queue. */
export type Pool = ReturnType<typeof createPool>

interface Task extends QueuedJob {
  readonly job: Job
  readonly waiter: Waiter | undefined
  readonly since: number
  /** The parent span, where there is a tracer. */
  readonly parent: Context | undefined
  readonly result: Promise<Result>
  readonly resolve: (result: Result) => void
  readonly reject: (error: Refusal) => void
}

/** Milliseconds from the end of a hash until its caller has the answer, on a busy machine. */
const answerMs = 100

/** Random fraction of the maximum wait: callers that arrive together don't time out together. */
const jitter = 0.25

/** Creates a pool. Its threads start with the first jobs. */
export function createPool(options: PoolOptions) {
  const { limit = 1000, maxWaitMs = 8_000, recentCount, onRefused, onWait } = options
  const threads = createThreads(options)
  /** Maximum of waiting jobs. */
  const room = () => Math.floor(Math.max(1, Math.min(limit, (maxWaitMs * threads.count) / threads.averageMs)))
  const queue = createJobQueue<Task>(room, recentCount)
  const idleTasks: Task[] = []
  let [running, shed, closed] = [0, 0, false]
  let onIdle = () => {}

  function start(): void {
    while (threads.free > 0) {
      const task = queue.take()
      const next = task ?? idleTasks.shift()
      if (!next) {
        onIdle()
        return
      }
      if (task) {
        running++
        onWait?.(performance.now() - task.since)
      }
      run(next)
        .finally(() => {
          if (task) running--
        })
        .then(next.resolve, next.reject)
        .finally(start)
    }
  }

  /** Milliseconds that a job needs from the start of its hash until its caller has the answer. */
  const needed = () => threads.averageMs + answerMs

  function run({ job, since, parent }: Task): Promise<Result> {
    if (!tracing || !parent) return threads.run(job)
    spanSince(since, { name: 'hash wait' }, parent)
    const attributes = { 'auth.hash.kind': job.kind, 'auth.hash.cost': job.cost }
    return inSpan({ name: 'hash', attributes, parent }, () => threads.run(job))
  }

  function overloaded({ networks }: JobOrigin): Refusal {
    shed++
    onRefused?.(networks)
    const seconds = (queue.size * threads.averageMs) / threads.count / 1000
    return new Refusal(Reason.OVERLOADED, { retryAfter: Math.max(1, seconds), limit: 'hashing' })
  }

  /** How long a job may wait, in ms: a hash that ends after the deadline would take a thread in vain. */
  function timeFor({ deadline, signal }: Waiter, max = maxWaitMs): number {
    if (closed) throw new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
    const left = deadline - Date.now()
    if (signal?.aborted || left <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
    return Math.max(0, Math.min(left - needed(), max))
  }

  return {
    /**
     * Throws the refusal that `run` would throw now, or later if no more jobs come, for lack of room or time. Costs little: call
     * it before other work.
     */
    check(waiter: Waiter): void {
      const time = timeFor(waiter)
      if (threads.free > 0) return
      const like = entryOf(waiter)
      const wait = () => ((queue.ahead(like) + 1) * threads.averageMs) / threads.count
      if (!queue.hasRoom(like) || (time < maxWaitMs && wait() > time)) throw overloaded(waiter)
    },
    /**
     * Runs jobs and returns their results in order. Refuses with OVERLOADED (and seconds to wait) when they are too many for
     * their network or wait until they can't end in time; with DEADLINE_EXCEEDED when the caller has disconnected.
     */
    async run<J extends Job>(jobs: readonly J[], waiter: Waiter): Promise<Outcome<J>[]> {
      const time = timeFor(waiter, maxWaitMs * (1 + jitter * Math.random()))
      const { signal } = waiter
      const tasks = jobs.map(job => createTask(job, waiter))
      // A running hash can't be cancelled; its result is ignored.
      const refuse = (refusal: Refusal) => {
        for (const task of tasks) task.reject(refusal)
      }
      const onAbort = () => refuse(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
      const onTimeout = () => {
        if (tasks.some(queue.remove)) refuse(overloaded(waiter))
      }
      const timer = setTimeout(onTimeout, time).unref()
      signal?.addEventListener('abort', onAbort, { once: true })
      for (const task of tasks) {
        for (let evicted = queue.add(task); evicted; evicted = queue.evict())
          evicted.reject(overloaded(evicted.waiter!))
        start()
      }
      try {
        const all = () => Promise.all(tasks.map(({ result }) => result))
        return (await (waiter.turn?.pause(all) ?? all())) as Outcome<J>[]
      } finally {
        clearTimeout(timer)
        signal?.removeEventListener('abort', onAbort)
        // When one job is refused, the results of the others aren't used.
        for (const task of tasks) queue.remove(task)
      }
    },
    /** Whether every thread runs a job that a caller waits for. */
    isBusy: () => running >= threads.count,
    needed,
    /** Calls `listener` when a thread becomes idle. */
    watchIdle(listener: () => void): void {
      onIdle = listener
    },
    /** Runs a job when no other job waits and a thread is idle; undefined when too many such jobs wait. */
    async whenIdle(job: HashJob): Promise<string | undefined> {
      if (closed || idleTasks.length >= limit) return undefined
      const task = createTask(job)
      idleTasks.push(task)
      start()
      return task.result as Promise<string>
    },
    /**
     * State of the pool, for metrics: waiting jobs; running ones without those of `whenIdle`, for which no caller waits; jobs
     * refused for lack of time or room since the start; the average time of a job of the configured cost; the threads.
     */
    stats() {
      const { averageMs, count } = threads
      return { waiting: queue.size, running, shed, averageMs, threads: count }
    },
    /** Refuses all jobs with UNAVAILABLE from now on and ends the threads. */
    async close(): Promise<void> {
      closed = true
      const gone = new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
      for (let task = queue.take(); task; task = queue.take()) task.reject(gone)
      for (const task of idleTasks.splice(0)) task.reject(gone)
      await threads.close()
    },
  }
}

function createTask(job: Job, waiter?: Waiter): Task {
  let settle!: Pick<Task, 'resolve' | 'reject'>
  const result = new Promise<Result>((resolve, reject) => {
    settle = { resolve, reject }
  })
  // `run` handles the first rejection only; this handles those of the other jobs.
  result.catch(() => {})
  return {
    ...(waiter ? entryOf(waiter) : { levels: [], networks: [], cost: 1 }),
    job,
    waiter,
    since: performance.now(),
    parent: tracing ? activeContext() : undefined,
    result,
    ...settle,
  }
}
