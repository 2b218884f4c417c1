// Schedules requests. This folder owns the use of the main thread and the database: every request passes the scheduler
// once, at the listener (HTTP) or at dispatch (gRPC). The row of its RPC in the access policy sets the cost of a request.
// The folder access/ limits the failures of networks, and passwords/ schedules the hash threads.
import { availableParallelism } from 'node:os'
import { LRUCache } from 'lru-cache'
import type { Slot } from '../requests/call.js'
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

/** Why a waiting request is shed: too many wait, or its deadline has passed. */
export type Shed = 'overloaded' | 'late'

/** A request, with its state in the scheduler. Endpoints extend this class. */
export abstract class Work implements Slot {
  state: 'new' | 'waiting' | 'running' | 'released' | 'done' = 'new'
  /** Whether it exceeded the share of a network on submission. */
  isOverShare = false
  scheduler: SlotOwner | undefined
  constructor(
    /** Its networks, innermost first; or one name, for a peer that acts for many clients. */
    readonly networks: readonly string[],
    /** Milliseconds of main thread and database. */
    readonly cost: number,
    /** When it leaves the queue, in ms since 1970. */
    readonly deadline: number,
  ) {}
  /** Begins the request. Called at most once, and not after `end`. */
  abstract begin(): void
  /** Refuses the request. Called instead of `begin`. */
  abstract shed(why: Shed): void
  async releaseDuring<T>(wait: () => Promise<T>): Promise<T> {
    this.scheduler?.release(this)
    try {
      return await wait()
    } finally {
      this.scheduler?.reacquire(this)
    }
  }
}

/** The part of a scheduler that `Work` uses. */
interface SlotOwner {
  release(work: Work): void
  reacquire(work: Work): void
}

/** State of a scheduler, for metrics. */
interface SchedulerStats {
  readonly waiting: number
  readonly running: number
  /** Number of requests shed since the start. */
  readonly shed: number
}

/** Decides when requests begin. */
export interface Scheduler {
  /** Begins a request now or later, or sheds it. */
  submit(work: Work): void
  /** Ends a request in any state. Call it when the response is written or the client disconnects. */
  end(work: Work): void
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
  const withinShareQueue = createFairQueue<Work>(waiting)
  const overShareQueue = createFairQueue<Work>(waiting)
  const overShareBucket = createTokenBucket(overShareBudget, overShare * cores * 1000)
  const shares = new LRUCache<string, TokenBucket>(maxEntries(maxNetworks))
  let [running, overShareRunning, shed, spentInTurn] = [0, 0, 0, 0]
  let [isOpen, draining, turnEnds] = [false, false, false]
  let drainTimer: NodeJS.Timeout | undefined
  let sweepTimer: NodeJS.Timeout | undefined

  const queueOf = ({ isOverShare }: Work) => (isOverShare ? overShareQueue : withinShareQueue)
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
  function takeShares({ networks, cost }: Work): boolean {
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
  function admit({ cost, isOverShare }: Work): boolean {
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

  function begin(work: Work): void {
    work.state = 'running'
    running++
    if (work.isOverShare) overShareRunning++
    work.begin()
  }

  function freeSlot(work: Work): void {
    running--
    if (work.isOverShare) overShareRunning--
  }

  function shedNow(work: Work, why: Shed): void {
    work.state = 'done'
    shed++
    work.shed(why)
  }

  function drain(): void {
    // A request may end inside `begin`, which calls this function again.
    if (draining) return
    draining = true
    for (const queue of [withinShareQueue, overShareQueue]) {
      for (let next = queue.peek(); next && admit(next); next = queue.peek()) {
        queue.take()
        if (next.deadline <= Date.now()) shedNow(next, 'late')
        else begin(next)
      }
    }
    draining = false
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
      for (const work of queue.removeIf(({ deadline }) => deadline <= now)) shedNow(work, 'late')
    }
    drain()
  }

  const owner: SlotOwner = {
    release(work) {
      if (work.state !== 'running') return
      work.state = 'released'
      freeSlot(work)
      drain()
    },
    reacquire(work) {
      if (work.state !== 'released') return
      work.state = 'running'
      running++
      if (work.isOverShare) overShareRunning++
    },
  }

  return {
    submit(work) {
      work.scheduler = owner
      work.isOverShare = !takeShares(work)
      const queue = queueOf(work)
      if (queue.size === 0 && admit(work)) return begin(work)
      work.state = 'waiting'
      const evicted = queue.add(work)
      if (evicted) shedNow(evicted, 'overloaded')
      startSweepTimer()
    },
    end(work) {
      const { state } = work
      work.state = 'done'
      if (state === 'waiting') queueOf(work).remove(work)
      if (state !== 'running') return
      freeSlot(work)
      drain()
    },
    stats: () => ({ waiting: waitingSize(), running, shed }),
    open() {
      isOpen = true
      drain()
    },
  }
}
