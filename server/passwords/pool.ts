// Runs bcrypt on threads of low priority behind a bounded queue. It owns who waits for how long: accounts take turns,
// and what can't be done in time is refused before any work is spent on it. It knows nothing of passwords.
//
// Threads of the lowest priority (niceness 19) leave calls that hash nothing undisturbed, but a machine that is busy
// with other work may give them no processor time at all. A job that takes far too long is therefore taken away from
// its thread and done once more by one of higher priority, and for a while such threads do the others, too.
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

/** What a job answers: the hash, or whether text and hash match. */
export type Outcome<J extends Job> = J extends HashJob ? string : boolean

/** What a thread reports of a job. */
export interface Report {
  readonly result: string | boolean
}

/** Who wants something hashed, and until when. */
export interface Turn {
  /** Accounts with waiting jobs take turns. */
  readonly account: string
  /** When the caller stops waiting, in ms since 1970. The pool's own patience ends earlier if this is far off. */
  readonly deadline: number
  /** Aborted when the caller has gone: its waiting jobs leave the queue. */
  readonly signal?: AbortSignal
  /** How many jobs are going to be run; 1 unless told. */
  readonly jobs?: number
}

/** A place in the queue. It counts as waiting until its jobs have started or it is released. */
export interface Place {
  /** Runs a job. Refuses with OVERLOADED when its time passes in the queue, DEADLINE_EXCEEDED when the caller has gone. */
  run<J extends Job>(job: J): Promise<Outcome<J>>
  /** Gives the place up, with everything that still waits in it. */
  release(): void
}

/** State of the pool. */
export interface HashingStats {
  /** Jobs in the queue. */
  readonly waiting: number
  /** Jobs that places were reserved for and that aren't in the queue yet. */
  readonly reserved: number
  /** Jobs on a thread. */
  readonly running: number
  /** Jobs done since the start. */
  readonly done: number
  /** Reservations and jobs refused for lack of time or room since the start. */
  readonly shed: number
  /** How long the job that started last had waited, in ms. */
  readonly lastWaitMs: number
  /** Moving average of a job of the usual cost, in ms. */
  readonly averageMs: number
}

export interface HashingOptions {
  /** The usual work factor; waits are estimated by jobs of this cost. */
  readonly cost: number
  /** Threads; as many as the machine runs at once unless told. */
  readonly threads?: number
  /** Most jobs waiting or reserved; 1000 unless told. */
  readonly limit?: number
  /** Longest time from reservation to result, in ms, whatever the caller's deadline; 10 000 unless told. */
  readonly patience?: number
  /** Told how long each job waited, in ms, when it starts. */
  readonly onWait?: (ms: number) => void
  /** Told when a thread broke; it is replaced. */
  readonly onFault?: (error: unknown) => void
}

export interface Hashing {
  /**
   * Takes a place before anything is spent on a call. Refuses with OVERLOADED (and seconds to wait) when the jobs
   * wouldn't be done in time or the queue is full, with DEADLINE_EXCEEDED when the deadline is already past.
   */
  reserve(turn: Turn): Place
  /** Takes a place, runs one job, gives the place up. */
  run<J extends Job>(job: J, turn: Turn): Promise<Outcome<J>>
  /** State of the pool, for metrics. */
  stats(): HashingStats
  /** Refuses everything with UNAVAILABLE from now on and ends the threads. */
  close(): Promise<void>
}

interface Task {
  readonly job: Job
  readonly account: string
  readonly since: number
  readonly resolve: (result: string | boolean) => void
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

/** Part of a wait that its estimate may be wrong by. */
const doubt = 0.1

/** Milliseconds that a call needs besides its hash: what is admitted must be answered in time. */
const rest = 100

/** Milliseconds of delay that mean nothing. */
const hiccup = 1000

/** Program of the threads. */
const program = new URL('dist/server/passwords/hashthread.js', import.meta.resolve('#package'))

/** A pool whose threads start with the first jobs. Idle threads don't keep the process alive. */
export function createHashing(options: HashingOptions): Hashing {
  const { cost, threads: size = availableParallelism(), limit = 1000, patience = 10_000, onWait, onFault } = options
  const threads = new Set<Thread>()
  /** Accounts whose turn comes next first; a Map keeps the order in which they (re-)entered. */
  const queue = new Map<string, Task[]>()
  /** Jobs reserved or waiting, by account. */
  const load = new Map<string, number>()
  let outstanding = 0
  let waiting = 0
  let done = 0
  let shed = 0
  let lastWaitMs = 0
  let averageMs = firstGuess * 2 ** cost
  let fastestMs = Number.POSITIVE_INFINITY
  /** Jobs taken away from their threads, waiting for another. */
  const takenAway: Task[] = []
  let firmUntil = 0
  let closed = false

  function startThread(firm: boolean): Thread {
    const workerData = firm ? niceness.firm : niceness.yielding
    const worker = new Worker(program, { name: 'hashing', workerData })
    const thread: Thread = { worker, firm, startedAt: 0, stuck: false }
    threads.add(thread)
    worker.unref()
    worker.on('message', (report: Report) => finish(thread, report))
    worker.on('error', error => onFault?.(error))
    worker.on('exit', () => {
      threads.delete(thread)
      clearTimeout(thread.overdue)
      thread.task?.reject(new Refusal(closed ? Reason.UNAVAILABLE : Reason.INTERNAL))
      // A new thread starts with the next job, so one that can't start refuses a job each time and never spins.
      startTasks()
    })
    return thread
  }

  function startTasks(): void {
    while (running() < size && !closed) {
      const again = takenAway.shift()
      const task = again ?? takeTask()
      if (!task) return
      if (!again) {
        lastWaitMs = performance.now() - task.since
        onWait?.(lastWaitMs)
      }
      startTask(freeThread(), task)
    }
  }

  function freeThread(): Thread {
    const isIdle = (thread: Thread) => !thread.task && !thread.stuck
    const free = (firm: boolean) => {
      const alike = [...threads].filter(thread => thread.firm === firm)
      const idle = alike.find(isIdle)
      if (idle || alike.length === size) return idle
      // One of the other kind makes room: each takes its memory.
      for (const thread of threads) if (thread.firm !== firm && isIdle(thread)) return replace(thread, firm)
      return startThread(firm)
    }
    // As fewer than `size` jobs run and a firm thread is never stuck, there is always one of those.
    return (performance.now() < firmUntil ? undefined : free(false)) ?? free(true)!
  }

  function replace(thread: Thread, firm: boolean): Thread {
    threads.delete(thread)
    void thread.worker.terminate()
    return startThread(firm)
  }

  function startTask(thread: Thread, task: Task): void {
    thread.task = task
    thread.startedAt = performance.now()
    thread.worker.ref()
    thread.worker.postMessage(task.job)
    if (thread.firm) return
    const { job } = task
    const work = job.kind === 'compare' ? Math.max(job.cost, Number(job.hash?.slice(4, 6) ?? 0)) : job.cost
    const patient = starving * Math.min(fastestMs, averageMs) * 2 ** (work - cost) + hiccup
    thread.overdue = setTimeout(() => takeAway(thread), patient).unref()
  }

  function takeAway(thread: Thread): void {
    const { task } = thread
    if (!task) return
    delete thread.task
    thread.stuck = true
    thread.worker.unref()
    firmUntil = performance.now() + firmFor
    takenAway.push(task)
    startTasks()
  }

  function finish(thread: Thread, { result }: Report): void {
    const { task } = thread
    // Another has done its job, and its kind isn't wanted now.
    if (!task) return void thread.worker.terminate()
    const took = performance.now() - thread.startedAt
    // The way to the thread and back counts, too. Weaker or stronger hashes from elsewhere would spoil the estimate.
    if (task.job.cost === cost) {
      averageMs += (took - averageMs) / 8
      fastestMs = Math.min(fastestMs, took)
    }
    done++
    clearTimeout(thread.overdue)
    delete thread.task
    thread.worker.unref()
    startTasks()
    task.resolve(result)
  }

  function takeTask(): Task | undefined {
    for (const [account, tasks] of queue) {
      const task = tasks.shift()
      queue.delete(account)
      if (tasks.length > 0) queue.set(account, tasks)
      waiting--
      addLoad(account, -1)
      return task
    }
    return undefined
  }

  function enqueue(task: Task): void {
    const tasks = queue.get(task.account)
    if (tasks) tasks.push(task)
    else queue.set(task.account, [task])
    waiting++
    startTasks()
  }

  /** Takes a task out of the queue; false when it isn't waiting any more. */
  function dequeue(task: Task): boolean {
    const again = takenAway.indexOf(task)
    if (again >= 0) {
      takenAway.splice(again, 1)
      return true
    }
    const tasks = queue.get(task.account)
    const index = tasks?.indexOf(task) ?? -1
    if (!tasks || index < 0) return false
    tasks.splice(index, 1)
    if (tasks.length === 0) queue.delete(task.account)
    waiting--
    addLoad(task.account, -1)
    return true
  }

  function addLoad(account: string, jobs: number): void {
    const left = (load.get(account) ?? 0) + jobs
    outstanding += jobs
    if (left > 0) load.set(account, left)
    else load.delete(account)
  }

  /** Milliseconds until the jobs of a new place would be done: as accounts take turns, long queues of others count little. */
  function estimate(account: string, jobs: number): number {
    const own = (load.get(account) ?? 0) + jobs
    let ahead = own - 1
    for (const [other, theirs] of load) if (other !== account) ahead += Math.min(theirs, own)
    let busy = 0
    for (const thread of threads) {
      if (thread.task) busy += Math.max(0, averageMs - (performance.now() - thread.startedAt))
    }
    return (ahead * averageMs + busy) / size + averageMs
  }

  function overloaded(ms: number): Refusal {
    shed++
    return new Refusal(Reason.OVERLOADED, { retryAfter: Math.max(1, Math.ceil(ms / 1000)) })
  }

  /** Makes room in a full queue: who waits with the most jobs gives up its last, if that is more than the newcomer has. */
  function makeRoom(account: string, jobs: number): boolean {
    const own = (load.get(account) ?? 0) + jobs
    let longest: Task[] = []
    for (const tasks of queue.values()) if (tasks.length > longest.length) longest = tasks
    const last = longest.at(-1)
    if (!last || longest.length <= own) return false
    dequeue(last)
    last.reject(overloaded(averageMs))
    return true
  }

  function reserve({ account, deadline, signal, jobs = 1 }: Turn): Place {
    if (closed) throw new Refusal(Reason.UNAVAILABLE)
    const time = Math.min(deadline - Date.now(), patience)
    if (signal?.aborted || time <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED)
    // An idle thread takes any job: only so can a bad estimate mend.
    if (running() + outstanding >= size) {
      const late = estimate(account, jobs) * (1 + doubt) + rest - time
      if (late > 0) throw overloaded(late)
    }
    while (outstanding + jobs > limit) if (!makeRoom(account, jobs)) throw overloaded(averageMs)
    return createPlace(account, jobs, time, signal)
  }

  function running(): number {
    let count = 0
    for (const { task } of threads) if (task) count++
    return count
  }

  function createPlace(account: string, jobs: number, time: number, signal: AbortSignal | undefined): Place {
    const tasks = new Set<Task>()
    let left = jobs
    /** Why nothing can be run any more. */
    let over: (() => Refusal) | undefined
    addLoad(account, left)
    const timer = setTimeout(end, time, () => overloaded(averageMs)).unref()
    const onAbort = () => {
      end(() => new Refusal(Reason.DEADLINE_EXCEEDED))
      // A thread can't be stopped in the middle of a hash, but nobody waits for the result.
      for (const task of tasks) task.reject(new Refusal(Reason.DEADLINE_EXCEEDED))
    }
    signal?.addEventListener('abort', onAbort, { once: true })

    function end(why: () => Refusal): void {
      if (over) return
      over = why
      clearTimeout(timer)
      for (const task of tasks) if (dequeue(task)) task.reject(why())
      addLoad(account, -left)
      left = 0
    }

    return {
      run<J extends Job>(job: J) {
        if (closed) return Promise.reject(new Refusal(Reason.UNAVAILABLE))
        if (over) return Promise.reject(over())
        // The job takes over what the place counted for it; more jobs than were reserved count from now on.
        if (left > 0) left--
        else addLoad(account, 1)
        return new Promise<Outcome<J>>((resolve, reject) => {
          const task: Task = {
            job,
            account,
            since: performance.now(),
            resolve: result => {
              tasks.delete(task)
              resolve(result as Outcome<J>)
            },
            reject: error => {
              tasks.delete(task)
              reject(error)
            },
          }
          tasks.add(task)
          enqueue(task)
        })
      },
      release() {
        end(() => new Refusal(Reason.DEADLINE_EXCEEDED))
        signal?.removeEventListener('abort', onAbort)
      },
    }
  }

  return {
    reserve,
    async run(job, turn) {
      const place = reserve(turn)
      try {
        return await place.run(job)
      } finally {
        place.release()
      }
    },
    stats() {
      const queued = waiting + takenAway.length
      return { waiting: queued, reserved: outstanding - waiting, running: running(), done, shed, lastWaitMs, averageMs }
    },
    async close() {
      closed = true
      for (let task = takenAway.shift() ?? takeTask(); task; task = takenAway.shift() ?? takeTask()) {
        task.reject(new Refusal(Reason.UNAVAILABLE))
      }
      await Promise.all([...threads].map(({ worker }) => worker.terminate()))
    },
  }
}
