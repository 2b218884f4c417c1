// Schedules requests. This folder owns the use of the main thread and the database: every request passes the scheduler
// once, at the listener (HTTP) or at dispatch (gRPC). The row of its RPC in the access policy sets the cost of a request.
// The folder access/ limits the failures of networks, and passwords/ schedules the hash threads.
import { availableParallelism } from 'node:os'
import { createContextKey } from '@connectrpc/connect'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Turn } from '../requests/call.js'
import { Refusal } from '../requests/refusal.js'
import { maxEntries } from './cache-size.js'
import { createFairQueue, type QueueBounds } from './fair-queue.js'
import { createTokenBucket, type TokenBucket } from './token-bucket.js'

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
  /** Common share of all requests that exceed the shares of their networks, while `isHashing`. */
  readonly overShare: number
  /**
   * Budget for requests that exceed their shares: while `isHashing`, the burst of `overShare`; otherwise, the cost at which
   * no more of them begin in one turn of the event loop.
   */
  readonly overShareBudget: number
  /** Maximum running requests. Requests that exceed their shares use at most half of these slots. */
  readonly slots: number
  /** Maximum waiting requests, separately for those within and those over their shares. */
  readonly waiting: QueueBounds
}

/** The limits of a service. For the measurements behind them, see docs/measurements-log.md. */
export const schedulerLimits: SchedulerLimits = {
  networkShares: [0.0035, 0.01, 0.016],
  peer: 0.025,
  burst: 0.5,
  overShare: 0.025,
  overShareBudget: 4,
  slots: 32,
  waiting: { innermost: 256, outermost: 512, all: 2_000 },
}

export type { Turn }

/** A request for a turn. */
export interface TurnRequest {
  /** Its networks, innermost first; or one name, for a peer that acts for many clients. */
  readonly networks: readonly string[]
  /** Milliseconds of main thread and database. */
  readonly cost: number
  /** When it stops waiting, in ms since 1970. */
  readonly deadline: number
}

/** A request in the scheduler. */
interface Entry extends TurnRequest, Turn {
  state: 'waiting' | 'running' | 'paused' | 'ended'
  /** Whether it exceeded the share of a network when it asked. */
  readonly isOverShare: boolean
  /** Ends the wait: with its turn, or with a refusal. */
  settle: ((refusal?: Refusal) => void) | undefined
}

/** Passes the turn of a request to a Transport in the same process. */
export const turnKey = createContextKey<Turn | undefined>(undefined)

/** State of a scheduler, for metrics. */
interface SchedulerStats {
  readonly waiting: number
  readonly running: number
  /** Number of requests shed since the start. */
  readonly shed: number
}

/** Decides when requests begin. */
export interface Scheduler {
  /**
   * Returns the turn of a request, at once if possible. Refuses with OVERLOADED when too many wait, and with
   * DEADLINE_EXCEEDED when the deadline passes or the signal is aborted.
   */
  take(request: TurnRequest, caller: { readonly signal: AbortSignal }): Turn | Promise<Turn>
  stats(): SchedulerStats
  /** Removes all limits: waiting and new requests begin at once. */
  open(): void
}

/** Maximum cached networks. An evicted network starts again with a full burst. */
const maxNetworks = 50_000

/**
 * Minimum milliseconds between two wake-ups while `isHashing`. Each wake-up interrupts a hash thread, so it begins several
 * requests.
 */
const drainInterval = 20

/** Milliseconds between two checks of the deadlines in the queues. */
const sweepInterval = 100

/**
 * Creates a scheduler. Requests within the shares of all their networks begin as soon as a slot is free. Requests over a
 * share begin after them. Both wait in fair order by network, outermost first. While `isHashing`, requests over a share
 * leave most of the cores to the hash threads.
 */
export function createScheduler(
  { networkShares, peer, burst, overShare, overShareBudget, slots, waiting }: SchedulerLimits,
  isHashing: () => boolean,
  cores = availableParallelism(),
): Scheduler {
  const withinShareQueue = createFairQueue<Entry>(waiting)
  const overShareQueue = createFairQueue<Entry>(waiting)
  const overShareBucket = createTokenBucket(overShareBudget, overShare * cores * 1000)
  const shares = new LRUCache<string, TokenBucket>(maxEntries(maxNetworks))
  let [running, overShareRunning, shed, spentInTurn] = [0, 0, 0, 0]
  let [isOpen, turnEnds] = [false, false]
  let drainTimer: NodeJS.Timeout | undefined
  let sweepTimer: NodeJS.Timeout | undefined

  const queueOf = ({ isOverShare }: Entry) => (isOverShare ? overShareQueue : withinShareQueue)
  const waitingSize = () => withinShareQueue.size + overShareQueue.size

  function shareOf(network: string, rate: number): TokenBucket {
    let bucket = shares.get(network)
    if (!bucket) {
      bucket = createTokenBucket(rate * burst, rate)
      shares.set(network, bucket)
    }
    return bucket
  }

  /** Takes the cost of a request from the shares of all its networks; false, without taking it, when one has too little. */
  function takeShares({ networks, cost }: TurnRequest): boolean {
    const now = performance.now()
    const isPeer = networks.length === 1
    for (let level = networks.length - 1; level >= 0; level--) {
      const rate = (isPeer ? peer : networkShares[level]!) * cores * 1000
      if (shareOf(networks[level]!, rate).blockedFor(cost, now) > 0) return false
    }
    for (const network of networks) shares.get(network)!.acquire(cost, now)
    return true
  }

  /** Admits a request, and takes the cost of one over its share; false if it must wait. Then `drain` runs when this changes. */
  function admit({ cost, isOverShare }: Entry): boolean {
    if (isOpen) return true
    if (running >= slots) return false
    if (!isOverShare) return true
    if (overShareRunning >= slots / 2) return false
    if (!isHashing()) {
      if (spentInTurn >= overShareBudget) return false
      spentInTurn += cost
      if (!turnEnds) {
        turnEnds = true
        setImmediate(() => {
          turnEnds = false
          spentInTurn = 0
          drain()
        })
      }
      return true
    }
    // A cost that exceeds the capacity of the bucket takes a full bucket.
    const tokens = Math.min(cost, overShareBudget)
    if (overShareBucket.acquire(tokens)) return true
    if (!drainTimer) {
      const delay = Math.max(overShareBucket.blockedFor(tokens), drainInterval)
      // Timers use whole milliseconds. Rounds up, so that the tokens are available.
      drainTimer = setTimeout(onDrainTimer, Math.floor(delay) + 1)
    }
    return false
  }

  function onDrainTimer(): void {
    drainTimer = undefined
    drain()
  }

  function begin(entry: Entry): void {
    entry.state = 'running'
    running++
    if (entry.isOverShare) overShareRunning++
    entry.settle?.()
  }

  function stop(entry: Entry, state: 'paused' | 'ended'): void {
    const { state: before, isOverShare } = entry
    entry.state = state
    if (before !== 'running') return
    running--
    if (isOverShare) overShareRunning--
    drain()
  }

  /** It doesn't wait again: its work is half done. It may have ended meanwhile. */
  function resume(entry: Entry): void {
    if (entry.state === 'paused') begin(entry)
  }

  function refuse(entry: Entry, reason: Reason): void {
    entry.state = 'ended'
    entry.settle!(new Refusal(reason, { retryAfter: 1 }))
  }

  function shedNow(entry: Entry, reason: Reason): void {
    shed++
    refuse(entry, reason)
  }

  // Shared by all entries: closures for each would take as long as the rest of a turn.
  const methods: Turn & ThisType<Entry> = {
    async pause(work) {
      if (this.state !== 'running') return work()
      stop(this, 'paused')
      try {
        return await work()
      } finally {
        resume(this)
      }
    },
    [Symbol.dispose]() {
      stop(this, 'ended')
    },
  }

  function createEntry({ networks, cost, deadline }: TurnRequest, isOverShare: boolean): Entry {
    const { pause, [Symbol.dispose]: dispose } = methods
    return {
      networks,
      cost,
      deadline,
      isOverShare,
      state: 'waiting',
      settle: undefined,
      pause,
      [Symbol.dispose]: dispose,
    }
  }

  function wait(entry: Entry, { signal }: { readonly signal: AbortSignal }): Promise<Turn> {
    return new Promise((resolve, reject) => {
      const queue = queueOf(entry)
      const onAbort = () => {
        queue.remove(entry)
        refuse(entry, Reason.DEADLINE_EXCEEDED)
      }
      entry.settle = refusal => {
        entry.settle = undefined
        signal.removeEventListener('abort', onAbort)
        if (refusal) reject(refusal)
        else resolve(entry)
      }
      if (signal.aborted) return onAbort()
      signal.addEventListener('abort', onAbort)
      const evicted = queue.add(entry)
      if (evicted) shedNow(evicted, Reason.OVERLOADED)
      startSweepTimer()
    })
  }

  function drain(): void {
    for (const queue of [withinShareQueue, overShareQueue]) {
      for (let next = queue.peek(); next && admit(next); next = queue.peek()) {
        queue.take()
        if (next.deadline <= Date.now()) shedNow(next, Reason.DEADLINE_EXCEEDED)
        else begin(next)
      }
    }
    startSweepTimer()
  }

  function startSweepTimer(): void {
    if (!sweepTimer && waitingSize() > 0) sweepTimer = setTimeout(sweep, sweepInterval)
  }

  /** Sheds the waiting requests whose deadline has passed. */
  function sweep(): void {
    sweepTimer = undefined
    const now = Date.now()
    for (const queue of [withinShareQueue, overShareQueue]) {
      for (const entry of queue.removeIf(({ deadline }) => deadline <= now)) shedNow(entry, Reason.DEADLINE_EXCEEDED)
    }
    drain()
  }

  return {
    take(request, caller) {
      const entry = createEntry(request, !takeShares(request))
      if (queueOf(entry).size > 0 || !admit(entry)) return wait(entry, caller)
      begin(entry)
      return entry
    },
    stats: () => ({ waiting: waitingSize(), running, shed }),
    open() {
      isOpen = true
      drain()
    },
  }
}
