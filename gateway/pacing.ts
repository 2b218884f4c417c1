/**
 * Lets refusals out at a bounded rate. Each of them costs little, but a client that hammers on as fast as it can would
 * leave the thread no time for others. So its refusals wait: its connections are full of requests under way, and what it
 * sends ahead isn't read. While there is room nobody waits, and clients that ask for one thing at a time don't wait
 * behind those that ask for many. A large body, which none that is meant well has, waits alike before it is read, since
 * that takes as long as several refusals; no other answer ever waits.
 */
import { availableParallelism } from 'node:os'
import { network } from '../server/clientaddress.js'
import { createRoom, type Room } from '../server/room.js'
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

/** Those who wait for the same room, by client address. */
interface Lane {
  readonly room: Room
  readonly lines: Map<string, Held[]>
}

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
 * Prepares pacing; `factor` multiplies the refusals that leave, `onCut` is told of each client that is cut off. The client
 * address of a request is its header `x-forwarded-for`.
 */
export function createPacing(limits: typeof pacingLimits, factor = 1, onCut = () => {}): Pacing {
  const lane = (atOnce: number, perSecond: number): Lane => ({
    room: createRoom(atOnce * factor, perSecond * factor),
    lines: new Map(),
  })
  const singles = lane(limits.singlesPerSecond, limits.singlesPerSecond)
  const rest = lane(limits.refusalsAtOnce, limits.refusalsPerSecond)
  const lanes = [singles, rest]
  let held = 0
  let ticking: NodeJS.Timeout | undefined
  let closed = false
  let looks = 0

  function letOut() {
    if (++looks % sweep === 0) dropGone()
    for (const { room, lines } of lanes) {
      for (const [address, line] of lines) {
        const [first] = line as [Held]
        if (!room.take(first.weight)) break
        line.shift()
        first.leave()
        held -= first.weight
        // To the end, behind all others.
        lines.delete(address)
        if (line.length > 0) lines.set(address, line)
      }
    }
    if (held > 0) return
    clearInterval(ticking)
    ticking = undefined
  }

  /** Else whoever comes, is refused and goes again would fill the room of all others, and the memory. */
  function dropGone() {
    for (const { lines } of lanes) {
      for (const [address, line] of lines) {
        for (const each of line.splice(0)) {
          if (isGone(each.request)) {
            each.leave()
            held -= each.weight
          } else line.push(each)
        }
        if (line.length === 0) lines.delete(address)
      }
    }
  }

  /** Waits for a turn; of client addresses for which something waits each gets one after the other. */
  async function turn(request: Request, weight: number) {
    const { room, lines } = isAlone(request) ? singles : rest
    if (closed || (lines.size === 0 && room.take(weight))) return
    const address = network(request.headers['x-forwarded-for'] as string)
    const line = lines.get(address) ?? []
    if (held >= limits.mostHeld) {
      if (lanes.some(({ lines }) => lines.has(address))) {
        onCut()
        request.socket.destroy()
      }
      return
    }
    lines.set(address, line)
    held += weight
    ticking ??= setInterval(letOut, tick)
    await new Promise<void>(leave => {
      line.push({ request, weight, leave })
    })
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
      for (const { lines } of lanes) {
        for (const line of lines.values()) for (const { leave } of line) leave()
        lines.clear()
      }
      held = 0
    },
  }
}

function weightOf(bytes: number): number {
  return 1 + Math.floor(bytes / bytesOfOne)
}
