// When requests are worked on. This room owns the main thread and the database as resources: every request passes its
// scheduler once, at the listener (HTTP) or at dispatch (gRPC), whatever it asks for. What a request costs is said by its row
// of the access policy; what a network may fail is access/'s, what is hashed passwords/'. It knows neither HTTP nor gRPC.
import { availableParallelism } from 'node:os'
import { LRUCache } from 'lru-cache'
import type { Place } from '../requests/call.js'
import { createFairQueue, type QueueBounds } from './fair-queue.js'
import { createTokenBucket, type TokenBucket } from './token-bucket.js'

/** How much is scheduled. Costs are in ms of main thread and database; shares are parts of the time of all cores. */
export interface SchedulerLimits {
  /** Share of a network that starts at once: of an address or /64, of a /24 or /56, of a /48. */
  readonly light: readonly number[]
  /** The same for a peer that stands for many: a service by its key, a trusted proxy for itself. */
  readonly peer: number
  /** What a network may use at once, as the seconds in which its share comes to that. */
  readonly burst: number
  /** Share of all others together while `isHashing`. */
  readonly heavy: number
  /** Cost of them that starts in one turn of the event loop otherwise. */
  readonly turn: number
  /** Requests that are worked on at one time; those beyond their shares have half of these places. */
  readonly places: number
  /** Requests that wait, at most: of those within their shares, and of the others. */
  readonly waiting: QueueBounds
}

/** The limits of a service. docs/performance.md shows what they were measured with. */
export const schedulerLimits: SchedulerLimits = {
  light: [0.004, 0.016, 0.032],
  peer: 0.025,
  burst: 2,
  heavy: 0.04,
  turn: 4,
  places: 32,
  waiting: { innermost: 256, outermost: 512, all: 2_000 },
}

/** Why a request that waits is refused: too many wait, or its deadline has passed. */
export type Shed = 'overloaded' | 'late'

/**
 * A request on its way through a scheduler, which keeps its state here. Each kind of endpoint extends it.
 */
export abstract class Work implements Place {
  state: 'new' | 'waiting' | 'running' | 'away' | 'done' = 'new'
  /** Whether it was beyond the share of its networks. */
  heavy = false
  scheduler: Places | undefined
  constructor(
    /** Its networks, innermost first; one name for a peer that stands for many. */
    readonly networks: readonly string[],
    /** Milliseconds of main thread and database. */
    readonly cost: number,
    /** When it leaves the queue, in ms since 1970. */
    readonly deadline: number,
  ) {}
  /** Begins it. Called once, and not after `end`. */
  abstract begin(): void
  /** Answers that it isn't begun. Called instead. */
  abstract shed(why: Shed): void
  /** Gives the place back while something else than the main thread and the database works for it, or it waits. */
  async away<T>(wait: () => Promise<T>): Promise<T> {
    this.scheduler?.leave(this)
    try {
      return await wait()
    } finally {
      this.scheduler?.reenter(this)
    }
  }
}

/** What `Work` needs of its scheduler. */
interface Places {
  leave(work: Work): void
  reenter(work: Work): void
}

/** What a scheduler has at the moment. */
export interface SchedulerStats {
  readonly waiting: number
  readonly running: number
  /** Requests that were refused because too many waited or their deadline had passed, since the start. */
  readonly shed: number
}

/** Decides when requests begin. */
export interface Scheduler {
  /** Begins a request at once, later, or never: then it is shed. */
  submit(work: Work): void
  /** Ends a request, whatever state it is in: its answer is out, or its client has left. */
  end(work: Work): void
  stats(): SchedulerStats
  /** Sheds nothing and paces nothing from now on: what waits begins. */
  open(): void
}

/** Networks whose shares are remembered; the longest unused ones are forgotten, and start with a full one. */
const networksKnown = 50_000

/**
 * Milliseconds between two wake-ups while `isHashing`, at least: each interrupts a hash thread, so that one begins several
 * requests.
 */
const paceInterval = 20

/** Milliseconds between two looks at whose deadline has passed. */
const sweepInterval = 100

/**
 * A scheduler in which requests within the share of their networks begin as soon as there is a place, and the others in fair
 * order by network, outermost first. `isHashing` says whether threads hash at the moment: then those others leave them the
 * processors.
 */
export function createScheduler(
  { light, peer, burst, heavy, turn, places, waiting }: SchedulerLimits,
  isHashing: () => boolean,
  cores = availableParallelism(),
): Scheduler {
  const lightQueue = createFairQueue<Work>(waiting)
  const heavyQueue = createFairQueue<Work>(waiting)
  const pace = createTokenBucket(turn, heavy * cores * 1000)
  const shares = new LRUCache<string, TokenBucket>({ max: networksKnown })
  let [running, heavyRunning, shed, spentInTurn] = [0, 0, 0, 0]
  let [isOpen, draining, turnEnds] = [false, false, false]
  let timer: NodeJS.Timeout | undefined
  let sweeping: NodeJS.Timeout | undefined

  function shareOf(network: string, rate: number): TokenBucket {
    let bucket = shares.get(network)
    if (!bucket) {
      bucket = createTokenBucket(rate * burst, rate)
      shares.set(network, bucket)
    }
    return bucket
  }

  /** Takes a cost out of the shares of all networks of a request, unless one of them has less left than it needs. */
  function isLight({ networks, cost }: Work): boolean {
    const now = performance.now()
    const isPeer = networks.length === 1
    for (let level = networks.length - 1; level >= 0; level--) {
      const rate = (isPeer ? peer : light[level]!) * cores * 1000
      if (shareOf(networks[level]!, rate).blockedFor(cost, now) > 0) return false
    }
    for (const network of networks) shares.get(network)!.acquire(cost, now)
    return true
  }

  /** Whether a request may begin now. What stands in its way calls `drain` when it is gone. */
  function mayBegin({ cost, heavy }: Work): boolean {
    if (isOpen) return true
    if (running >= places) return false
    if (!heavy) return true
    if (heavyRunning >= places / 2) return false
    if (!isHashing()) {
      if (spentInTurn >= turn) return false
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
    // One that costs more than fits in is due when it is full.
    const price = Math.min(cost, turn)
    if (pace.acquire(price)) return true
    if (!timer) timer = setTimeout(drainLater, Math.floor(Math.max(pace.blockedFor(price), paceInterval)) + 1)
    return false
  }

  function drainLater(): void {
    timer = undefined
    drain()
  }

  function begin(work: Work): void {
    work.state = 'running'
    running++
    if (work.heavy) heavyRunning++
    work.begin()
  }

  function leave(work: Work): void {
    running--
    if (work.heavy) heavyRunning--
  }

  function shedNow(work: Work, why: Shed): void {
    work.state = 'done'
    shed++
    work.shed(why)
  }

  function drain(): void {
    // What begins may end at once.
    if (draining) return
    draining = true
    for (const queue of [lightQueue, heavyQueue]) {
      for (let next = queue.peek(); next && mayBegin(next); next = queue.peek()) {
        queue.take()
        if (next.deadline <= Date.now()) shedNow(next, 'late')
        else begin(next)
      }
    }
    draining = false
    watch()
  }

  /** Sees to it that what waits leaves at its deadline. */
  function watch(): void {
    if (!sweeping && lightQueue.size + heavyQueue.size > 0) sweeping = setTimeout(sweep, sweepInterval)
  }

  function sweep(): void {
    sweeping = undefined
    const now = Date.now()
    for (const queue of [lightQueue, heavyQueue]) {
      for (const work of queue.removeIf(({ deadline }) => deadline <= now)) shedNow(work, 'late')
    }
    drain()
  }

  const holder: Places = {
    leave(work) {
      if (work.state !== 'running') return
      work.state = 'away'
      leave(work)
      drain()
    },
    reenter(work) {
      if (work.state !== 'away') return
      work.state = 'running'
      running++
      if (work.heavy) heavyRunning++
    },
  }

  return {
    submit(work) {
      work.scheduler = holder
      work.heavy = !isLight(work)
      const queue = work.heavy ? heavyQueue : lightQueue
      if (queue.size === 0 && mayBegin(work)) return begin(work)
      work.state = 'waiting'
      const evicted = queue.add(work)
      if (evicted) shedNow(evicted, 'overloaded')
      watch()
    },
    end(work) {
      const { state } = work
      work.state = 'done'
      if (state === 'waiting') (work.heavy ? heavyQueue : lightQueue).remove(work)
      if (state !== 'running') return
      leave(work)
      drain()
    },
    stats: () => ({ waiting: lightQueue.size + heavyQueue.size, running, shed }),
    open() {
      isOpen = true
      drain()
    },
  }
}
