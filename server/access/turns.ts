import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import { network } from '../clientaddress.js'
import { Refusal } from '../refusal.js'
import { createFairQueue, type Room } from '../room.js'

/** Lets so many work at a time. */
export interface Turns {
  /**
   * Waits for a turn of the call's client address, which ends when what it returns is disposed of. Refuses with
   * DEADLINE_EXCEEDED as soon as the caller has gone or the deadline has passed, and with OVERLOADED when too many wait.
   */
  begin(call: Pick<Call, 'address' | 'deadline' | 'signal'>): Promise<Disposable>
}

/** How many may wait. */
const mostWaiting = 2_000

/** Milliseconds between two looks at whether there is room again. */
const pause = 20

interface Waiter {
  readonly deadline: number
  readonly start: () => void
  readonly leave: () => void
}

/**
 * Lets `atOnce` work at a time, and begin no faster than `room` has room for them. Of the client addresses of those who
 * wait each is next in turn, so that one with many doesn't keep out one with few.
 */
export function createTurns(atOnce: number, room: Room = { take: () => true }): Turns {
  const queue = createFairQueue<Waiter>()
  let waiting = 0
  let working = 0
  let looking: NodeJS.Timeout | undefined

  /** Gives turns to those who are next. */
  function go(): void {
    for (let next = queue.first(); next && working < atOnce; next = queue.first()) {
      // Its timer may be late.
      if (next.deadline <= Date.now()) {
        next.leave()
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
    begin({ address, deadline, signal }) {
      return new Promise((resolve, reject) => {
        const late = () => reject(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 }))
        if (signal.aborted) return late()
        if (waiting === mostWaiting) return reject(new Refusal(Reason.OVERLOADED, { retryAfter: 1 }))
        const key = network(address)
        const waiter: Waiter = {
          deadline,
          start() {
            end()
            resolve(turn)
          },
          leave() {
            queue.delete(key, waiter)
            end()
            late()
          },
        }
        const timer = setTimeout(waiter.leave, deadline - Date.now())
        signal.addEventListener('abort', waiter.leave)
        function end() {
          waiting--
          clearTimeout(timer)
          signal.removeEventListener('abort', waiter.leave)
        }
        waiting++
        queue.add(key, waiter)
        go()
      })
    },
  }
}
