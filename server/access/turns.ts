import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import { network } from '../clientaddress.js'
import { refuse } from '../refusal.js'
import type { Room } from '../room.js'

/** Lets so many work at a time. */
export interface Turns {
  /**
   * Waits for a turn of the call's client address, which ends when what it returns is disposed of. Refuses with
   * DEADLINE_EXCEEDED when it comes too late.
   */
  begin(call: Pick<Call, 'address' | 'deadline'>): Promise<Disposable>
}

/** Milliseconds between two looks at whether there is room again. */
const pause = 20

/**
 * Lets `atOnce` work at a time, and begin no faster than `room` has room for them. Of the client addresses of those who
 * wait each is next in turn, so that one with many doesn't keep out one with few.
 */
export function createTurns(atOnce: number, room: Room = { take: () => true }): Turns {
  const lines = new Map<string, (() => void)[]>()
  let working = 0
  let looking: NodeJS.Timeout | undefined

  /** Gives turns to those who are next. */
  function go(): void {
    while (lines.size > 0 && working < atOnce) {
      if (!room.take(1)) {
        if (!looking) looking = setTimeout(look, pause)
        return
      }
      working++
      const [from, line] = lines.entries().next().value!
      line.shift()!()
      // To the end, behind all others.
      lines.delete(from)
      if (line.length > 0) lines.set(from, line)
    }
  }

  function look(): void {
    looking = undefined
    go()
  }

  function end(): void {
    working--
    go()
  }

  const turn: Disposable = { [Symbol.dispose]: end }
  return {
    async begin({ address, deadline }) {
      await new Promise<void>(start => {
        const from = network(address)
        const line = lines.get(from)
        if (line) line.push(start)
        else lines.set(from, [start])
        go()
      })
      if (deadline > Date.now()) return turn
      // Nobody waits for it any longer.
      end()
      return refuse(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
    },
  }
}
