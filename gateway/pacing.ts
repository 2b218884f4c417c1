/**
 * Lets refusals out at a bounded rate. Each of them costs little, but a client that hammers on as fast as it can would
 * leave the thread no time for others. So its refusals wait: its connections are full of requests under way, and what it
 * sends ahead isn't read. While there is room nobody waits. Answers to large requests are counted among the refusals,
 * since to read them takes as long as several; no other answer ever waits.
 */
import { availableParallelism } from 'node:os'
import { network } from '../server/clientaddress.js'
import { bodyLimit } from './body.js'
import type { Request } from './listener.js'

/** How many refusals leave, and how many may wait. */
export const pacingLimits = {
  /** Refusals a second to clients of whose refusals none waits; they leave at once. */
  singlesPerSecond: 50 * availableParallelism(),
  /** Refusals that leave at once to clients that have several under way, where few of them left a moment ago. */
  refusalsAtOnce: 100,
  /** Refusals a second to such clients in the long run, all together: a hundredth of all cores' time. */
  refusalsPerSecond: 25 * availableParallelism(),
  /** Refusals that wait; whoever has one of them already and would add another is cut off. */
  mostHeld: 5_000,
}

/** Bytes of a body that count as one more refusal: to read them takes as long. */
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

/** Decides when refusals leave. */
export interface Pacing {
  /** How many refusals wait. */
  held(): number
  /** Waits for the turn of a refusal; of client addresses whose refusals wait each lets one out in turn. */
  turn(request: Request): Promise<void>
  /** Lets everything out. */
  close(): void
}

/**
 * Prepares pacing; `factor` multiplies the refusals that leave, `onCut` is told of each client that is cut off. The client
 * address of a request is its header `x-forwarded-for`.
 */
export function createPacing(limits: typeof pacingLimits, factor = 1, onCut = () => {}): Pacing {
  const singles = createRoom(limits.singlesPerSecond * factor, limits.singlesPerSecond * factor)
  const rest = createRoom(limits.refusalsAtOnce * factor, limits.refusalsPerSecond * factor)
  const lines = new Map<string, Held[]>()
  let held = 0
  let ticking: NodeJS.Timeout | undefined
  let closed = false
  let looks = 0

  function letOut() {
    if (++looks % sweep === 0) dropGone()
    while (held > 0) {
      const [address, line] = lines.entries().next().value!
      if (!rest.take(line[0]!.weight)) return
      line.shift()!.leave()
      held--
      // To the end, behind all others.
      lines.delete(address)
      if (line.length > 0) lines.set(address, line)
    }
    clearInterval(ticking)
    ticking = undefined
  }

  /** Else whoever comes, is refused and goes again would fill the room of all others, and the memory. */
  function dropGone() {
    for (const [address, line] of lines) {
      for (const each of line.splice(0)) {
        if (isGone(each.request)) {
          each.leave()
          held--
        } else line.push(each)
      }
      if (line.length === 0) lines.delete(address)
    }
  }

  return {
    held: () => held,
    async turn(request) {
      const weight = weightOf(request)
      const address = network(request.headers['x-forwarded-for'] as string)
      const line = lines.get(address) ?? []
      if (closed || (line.length === 0 && singles.take(weight))) return
      if (held >= limits.mostHeld) {
        if (line.length > 0) {
          onCut()
          request.socket.destroy()
        }
        return
      }
      lines.set(address, line)
      held++
      ticking ??= setInterval(letOut, tick)
      await new Promise<void>(leave => {
        line.push({ request, weight, leave })
      })
    },
    close() {
      closed = true
      clearInterval(ticking)
      for (const line of lines.values()) for (const { leave } of line) leave()
      lines.clear()
      held = 0
    },
  }
}

function isGone(request: Request): boolean {
  return 'stream' in request ? request.stream.destroyed : request.socket.destroyed
}

/** Room for so much at once, which comes back evenly. */
function createRoom(atOnce: number, perSecond: number) {
  let room = atOnce
  let at = performance.now()
  return {
    /** Takes as much as a weight, unless nothing is left. */
    take(weight: number): boolean {
      const now = performance.now()
      room = Math.min(atOnce, room + ((now - at) / 1000) * perSecond)
      at = now
      if (room < 1) return false
      room -= weight
      return true
    },
  }
}

/** Whether a request is larger than any that is meant well. */
export function isLarge(request: Request): boolean {
  return weightOf(request) > 1
}

/** A body whose length isn't told counts as the longest there is. */
function weightOf({ headers }: Request): number {
  const bytes = headers['transfer-encoding'] === undefined ? Number(headers['content-length'] ?? 0) : bodyLimit
  return 1 + Math.floor(Math.min(bytes, bodyLimit) / bytesOfOne)
}
