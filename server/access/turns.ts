import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import { network } from '../clientaddress.js'
import { Refusal } from '../refusal.js'
import { createFairQueue, type Room } from '../room.js'

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

interface Waiter {
  readonly deadline: number
  readonly start: () => void
  readonly refuse: () => void
}

/**
 * Lets `atOnce` work at a time, and begin no faster than `room` has room for them. Of the client addresses of those who
 * wait each is next in turn, so that one with many doesn't keep out one with few.
 */
export function createTurns(atOnce: number, room: Room = { take: () => true }): Turns {
  const queue = createFairQueue<Waiter>()
  let working = 0
  let looking: NodeJS.Timeout | undefined

  /** Gives turns to those who are next. */
  function go(): void {
    for (let next = queue.first(); next && working < atOnce; next = queue.first()) {
      if (next.deadline <= Date.now()) {
        queue.skip()
        next.refuse()
      } else if (room.take(1)) {
        queue.take()
        working++
        next.start()
      } else {
        if (!looking) looking = setTimeout(look, pause)
        return
      }
    }
  }

  function look(): void {
    looking = undefined
    go()
  }

  const turn: Disposable = {
    [Symbol.dispose]() {
      working--
      go()
    },
  }
  return {
    async begin({ address, deadline }) {
      await new Promise<void>((start, reject) => {
        // Nobody waits for its answer any longer.
        const refuse = () => reject(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
        queue.add(network(address), { deadline, start, refuse })
        go()
      })
      return turn
    },
  }
}
