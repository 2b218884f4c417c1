// Schedules requests: each passes once, at the listener (HTTP) or in calls/run.ts (gRPC).
import { availableParallelism } from 'node:os'
import { createContextKey } from '@connectrpc/connect'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Turn } from '../requests/call.js'
import { Refusal } from '../requests/refusal.js'
import { type Bucket, createBucket } from './bucket.js'
import { maxEntries } from './cache-size.js'
import { createFairQueue, type QueueBounds } from './fair-queue.js'

/**
 * Limits of a scheduler. Costs are in ms of main thread and database. Shares are fractions of the time of all cores.
 */
export interface SchedulerLimits {
  /** Shares of networks, innermost first: an address or /64, a /24 or /56, a /48. Requests within them go first. */
  readonly networkShares: readonly number[]
  /** Share of a peer that acts for many clients: a service with a key, or a trusted proxy that names no clients. */
  readonly peer: number
  /** Burst of a share: the number of seconds that an empty share takes to refill. */
  readonly burst: number
  /** Rate at which `overShareBudget` refills while all hash threads are busy. */
  readonly overShare: number
  /**
   * Budget of all requests that exceed the shares of their networks. It is full again in the next turn of the event loop,
   * except while all hash threads are busy.
   */
  readonly overShareBudget: number
  /** Maximum running requests. Requests that exceed their shares use at most half of these slots. */
  readonly slots: number
  /** Maximum waiting requests, separately for those within and those over their shares. */
  readonly waiting: QueueBounds
}

/** The limits of a service. For the measurements behind them, see test/bench/measurements.md. */
export const schedulerLimits: SchedulerLimits = {
  networkShares: [0.0035, 0.01, 0.016],
  peer: 0.025,
  burst: 0.5,
  overShare: 0.025,
  overShareBudget: 4,
  slots: 32,
  waiting: { innermost: 256, outermost: 512, all: 2_000 },
}

/** A request for a turn. */
export interface TurnRequest {
  /** Its networks, innermost first; or one name, for a peer that acts for many clients. */
  readonly networks: readonly string[]
  /** Milliseconds of main thread and database. */
  readonly cost: number
  /** When its answer is due, in ms since 1970. It doesn't begin when it can't be done by then. */
  readonly deadline: number
  /** Whether it may need a hash. */
  readonly hashes?: boolean | undefined
}

/** The hash threads, to which requests beyond their shares leave the processors. */
export interface Hashing {
  /** Whether every thread runs a job. */
  isBusy(): boolean
  /** Milliseconds that a hash takes, until its caller has the answer. */
  needed(): number
  /** Calls `listener` when a thread becomes idle. */
  watchIdle(listener: () => void): void
}

/** For a process that hashes nothing. */
export const noHashing: Hashing = { isBusy: () => false, needed: () => 0, watchIdle() {} }

/** A request in the scheduler. */
interface ScheduledRequest extends TurnRequest, Turn {
  state: 'waiting' | 'running' | 'paused' | 'ended'
  /** Whether it exceeded the share of a network when it asked. */
  readonly isOverShare: boolean
  /** Ends the wait: with its turn, or with a refusal. */
  settle: ((refusal?: Reason) => void) | undefined
}

/** Passes the turn of a request to a Transport in the same process. */
export const turnKey = createContextKey<Turn | undefined>(undefined)

/** Decides when requests begin. */
export type Scheduler = ReturnType<typeof createScheduler>

/** Maximum cached networks. An evicted network starts again with a full burst. */
const maxNetworks = 50_000

/**
 * Minimum milliseconds between two wake-ups while all hash threads are busy. Each wake-up interrupts one, so it begins several
 * requests.
 */
const drainInterval = 20

/** Maximum delay of a timer. */
const maxDelay = 2 ** 31 - 1

/**
 * Creates a scheduler. Requests within the shares of all their networks begin as soon as a slot is free. Requests over a
 * share begin after them, from a common budget. Both wait in fair order by network, outermost first. While all hash
 * threads are busy, the budget refills slowly, which leaves most of the cores to them.
 */
export function createScheduler(
  { networkShares, peer, burst, overShare, overShareBudget, slots, waiting }: SchedulerLimits,
  hashing: Hashing,
  cores = availableParallelism(),
) {
  const withinShareQueue = createFairQueue<ScheduledRequest>(waiting)
  const overShareQueue = createFairQueue<ScheduledRequest>(waiting)
  const budget = createBucket({ capacity: overShareBudget, perSecond: overShare * cores * 1000 })
  const shares = new LRUCache<string, Bucket>(maxEntries(maxNetworks))
  let [running, overShareRunning, shed, charged] = [0, 0, 0, 0]
  let [isOpen, turnEnds, timerRuns] = [false, false, false]

  const queueOf = ({ isOverShare }: ScheduledRequest) => (isOverShare ? overShareQueue : withinShareQueue)

  /** Takes the cost of a request from the shares of all its networks; false, without taking it, when one has too little. */
  function takeShares({ networks, cost }: TurnRequest): boolean {
    const now = performance.now()
    const buckets: Bucket[] = []
    for (let level = networks.length - 1; level >= 0; level--) {
      const network = networks[level]!
      let bucket = shares.get(network)
      if (!bucket) {
        const perSecond = (networks.length === 1 ? peer : networkShares[level]!) * cores * 1000
        bucket = createBucket({ capacity: perSecond * burst, perSecond })
        shares.set(network, bucket)
      }
      if (bucket.blockedFor(cost, now) > 0) return false
      buckets.push(bucket)
    }
    for (const bucket of buckets) bucket.spend(cost, now)
    return true
  }

  /** Admits a request, and takes the cost of one over its share; false if it must wait. Then `drain` runs when this changes. */
  function admit({ cost, isOverShare }: ScheduledRequest): boolean {
    if (isOpen) return true
    if (running >= slots) return false
    if (!isOverShare) return true
    if (overShareRunning >= slots / 2) return false
    // A cost that exceeds the budget takes all of it.
    const tokens = Math.min(cost, overShareBudget)
    const fits = budget.acquire(tokens)
    if (!hashing.isBusy()) wakeAtTurnEnd()
    // Timers use whole milliseconds. Rounds up, so that the tokens are available.
    else if (!fits) wakeAfter(Math.floor(Math.max(budget.blockedFor(tokens), drainInterval)) + 1)
    return fits
  }

  hashing.watchIdle(() => overShareQueue.size > 0 && wakeAtTurnEnd())

  function wakeAtTurnEnd(): void {
    if (turnEnds) return
    turnEnds = true
    setImmediate(() => {
      turnEnds = false
      budget.fill()
      drain()
    })
  }

  function wakeAfter(ms: number): void {
    if (timerRuns) return
    timerRuns = true
    setTimeout(() => {
      timerRuns = false
      drain()
    }, ms)
  }

  function begin(entry: ScheduledRequest): void {
    entry.state = 'running'
    running++
    if (entry.isOverShare) overShareRunning++
    entry.settle?.()
  }

  function stop(entry: ScheduledRequest, state: 'paused' | 'ended'): void {
    const { state: before, isOverShare } = entry
    entry.state = state
    if (before !== 'running') return
    running--
    if (isOverShare) overShareRunning--
    drain()
  }

  /** Lets a paused request go on without waiting again: its work is half done. The request may have ended meanwhile. */
  function resume(entry: ScheduledRequest): void {
    if (entry.state === 'paused') begin(entry)
  }

  /** The last moment at which a request can begin and be done in time, in ms since 1970. */
  const latest = ({ deadline, hashes, cost }: TurnRequest) => deadline - (hashes ? hashing.needed() : cost)

  function refuse(entry: ScheduledRequest, reason: Reason): void {
    shed++
    entry.settle!(reason)
  }

  // Shared by all entries: closures for each would take as long as the rest of a turn.
  const methods: Turn & ThisType<ScheduledRequest> = {
    async pause(work) {
      if (this.state !== 'running') return work()
      stop(this, 'paused')
      try {
        return await work()
      } finally {
        resume(this)
      }
    },
    charge(cost) {
      charged += cost
      queueOf(this).charge(this.networks, cost)
      if (this.isOverShare) budget.spend(cost)
      else for (const network of this.networks) shares.get(network)?.spend(cost)
    },
    [Symbol.dispose]() {
      stop(this, 'ended')
    },
  }
  const { pause, charge, [Symbol.dispose]: dispose } = methods

  function wait(entry: ScheduledRequest, { signal }: { readonly signal: AbortSignal }): Promise<Turn> {
    return new Promise((resolve, reject) => {
      const queue = queueOf(entry)
      const leave = (reason: Reason) => {
        entry.state = 'ended'
        reject(new Refusal(reason, { retryAfter: 1 }))
      }
      if (signal.aborted) return leave(Reason.DEADLINE_EXCEEDED)
      const onAbort = () => {
        queue.remove(entry)
        entry.settle!(Reason.DEADLINE_EXCEEDED)
      }
      const onDeadline = () => {
        queue.remove(entry)
        refuse(entry, Reason.DEADLINE_EXCEEDED)
      }
      const timer = setTimeout(onDeadline, Math.min(latest(entry) - Date.now(), maxDelay))
      signal.addEventListener('abort', onAbort)
      entry.settle = reason => {
        entry.settle = undefined
        clearTimeout(timer)
        signal.removeEventListener('abort', onAbort)
        if (reason === undefined) resolve(entry)
        else leave(reason)
      }
      const evicted = queue.add(entry)
      if (evicted) refuse(evicted, Reason.OVERLOADED)
    })
  }

  function drain(): void {
    for (const queue of [withinShareQueue, overShareQueue]) {
      for (let next = queue.peek(); next; next = queue.peek()) {
        if (latest(next) <= Date.now()) {
          queue.remove(next)
          refuse(next, Reason.DEADLINE_EXCEEDED)
        } else if (admit(next)) begin(queue.take()!)
        else break
      }
    }
  }

  return {
    /**
     * Returns the turn of a request, at once if possible. Refuses with OVERLOADED when too many wait, and with
     * DEADLINE_EXCEEDED when the deadline passes or the signal is aborted.
     */
    take(request: TurnRequest, caller: { readonly signal: AbortSignal }): Turn | Promise<Turn> {
      const { networks, cost, deadline, hashes } = request
      if (latest(request) <= Date.now()) return Promise.reject(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
      charged += cost
      const isOverShare = !takeShares(request)
      const entry: ScheduledRequest = {
        networks,
        cost,
        deadline,
        hashes,
        isOverShare,
        state: 'waiting',
        settle: undefined,
        pause,
        charge,
        [Symbol.dispose]: dispose,
      }
      if (queueOf(entry).size > 0 || !admit(entry)) return wait(entry, caller)
      begin(entry)
      return entry
    },
    /**
     * Its state, for metrics: waiting and running requests, and since the start those that it refused or shed, and the
     * milliseconds that requests were charged.
     */
    stats: () => ({ waiting: withinShareQueue.size + overShareQueue.size, running, shed, charged }),
    /** Removes all limits: waiting and new requests begin at once. */
    open() {
      isOpen = true
      drain()
    },
  }
}
