/**
 * Lets refusals out at a bounded rate. Each of them costs little, but a client that hammers on as fast as it can would
 * leave the thread no time for others. So its refusals wait: its connections are full of requests under way, and what it
 * sends ahead isn't read. While there is room nobody waits, and clients that ask for one thing at a time don't wait
 * behind those that ask for many. A large body, which none that is meant well has, waits alike before it is read, since
 * that takes as long as several refusals; no other answer ever waits.
 */
import { availableParallelism } from 'node:os'
import { network } from '../server/clientaddress.js'
import { createFairQueue, createRoom } from '../server/room.js'
import { bodyLimit } from './body.js'
import { isAlone, isGone, type Request } from './listener.js'

/** How many refusals leave, and how many may wait. */
export const pacingLimits = {
  /** Refusals a second, and at once, of requests that are alone on their connections. */
  singlesPerSecond: 25 * availableParallelism(),
  /** Refusals of requests that aren't alone which leave at once, where few of them left a moment ago. */
  refusalsAtOnce: 100,
  /** Refusals a second of such requests in the long run, all together: a hundredth of all cores’ time. */
  refusalsPerSecond: 15 * availableParallelism(),
  /** Refusals that wait; whoever has one of them already and would add another is cut off. */
  mostHeld: 5_000,
}

/** Bytes of a large body that count as a refusal: to read them takes as long. No smaller body waits. */
const bytesOfOne = 8 * 1024

/** Milliseconds between two looks at who may go. */
const tick = 10

/** Looks after which those whose clients have gone are dropped. */
const sweep = 100

interface Held {
  readonly request: Request
  readonly weight: number
  readonly leave: () => void
}

/** Decides when refusals leave and large requests are read. */
export interface Pacing {
  /** How many wait; a large request counts as several. */
  held(): number
  /** Waits until a body of so many bytes may be read. */
  arrive(request: Request, bytes: number): Promise<void>
  /** Waits until a refusal may leave. */
  refuse(request: Request, status: number): Promise<void>
  /** Lets everything out. */
  close(): void
}

/**
 * Prepares pacing; a `factor` above 1 multiplies the refusals that leave (where less is allowed, more is refused, and nobody
 * shall wait longer for that), `onCut` is told of each client that is cut off. The client address of a request is its header
 * `x-forwarded-for`.
 */
export function createPacing(limits: typeof pacingLimits, factor = 1, onCut = () => {}): Pacing {
  /** Room, and those who wait for it by client address. */
  const createKind = (atOnce: number, perSecond: number) => ({
    room: createRoom(atOnce * Math.max(1, factor), perSecond * Math.max(1, factor)),
    queue: createFairQueue<Held>(),
  })
  const alone = createKind(limits.singlesPerSecond, limits.singlesPerSecond)
  const among = createKind(limits.refusalsAtOnce, limits.refusalsPerSecond)
  const kinds = [alone, among]
  let held = 0
  let ticking: NodeJS.Timeout | undefined
  let closed = false
  let looks = 0

  function letOut() {
    if (++looks % sweep === 0) dropGone()
    for (const { room, queue } of kinds) {
      for (let first = queue.first(); first && room.take(first.weight); first = queue.first()) {
        queue.take()
        leave(first)
      }
    }
    if (held > 0) return
    clearInterval(ticking)
    ticking = undefined
  }

  function leave(each: Held) {
    held -= each.weight
    each.leave()
  }

  /** Else whoever comes, is refused and goes again would fill the room of all others, and the memory. */
  function dropGone() {
    for (const { queue } of kinds) queue.remove(({ request }) => isGone(request)).forEach(leave)
  }

  /** Waits for a turn; of client addresses for which something waits each gets one after the other. */
  async function turn(request: Request, weight: number) {
    const { room, queue } = isAlone(request) ? alone : among
    if (closed || (!queue.first() && room.take(weight))) return
    const address = network(request.headers['x-forwarded-for'] as string)
    if (held >= limits.mostHeld) {
      if (kinds.some(({ queue }) => queue.has(address))) {
        onCut()
        request.socket.destroy()
      }
      return
    }
    held += weight
    ticking ??= setInterval(letOut, tick)
    await new Promise<void>(leave => queue.add(address, { request, weight, leave }))
  }

  return {
    held: () => held,
    async arrive(request, bytes) {
      if (bytes > bytesOfOne) await turn(request, weightOf(bytes))
    },
    async refuse(request, status) {
      // What is too large is thrown away for a while.
      await turn(request, status === 413 ? weightOf(bodyLimit) : 1)
    },
    close() {
      closed = true
      clearInterval(ticking)
      for (const { queue } of kinds) queue.remove(() => true).forEach(leave)
    },
  }
}

function weightOf(bytes: number): number {
  return 1 + Math.floor(bytes / bytesOfOne)
}
