// The deadline of a call: the caller's own, or that of the RPC's policy if it is earlier.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from './call.js'
import { Refusal, refuse } from './refusal.js'

/** The deadline in ms since 1970 of a call that begins. `seconds` is the time in the RPC's policy. */
export function deadlineOf({ deadline }: Pick<Call, 'deadline'>, seconds = 15): number {
  return Math.min(deadline, Date.now() + seconds * 1000)
}

/** Refuses with DEADLINE_EXCEEDED when the caller has disconnected or the deadline has passed. */
export function checkPresence(call: Pick<Call, 'gone' | 'deadline'>): void {
  if (call.gone || call.deadline <= Date.now()) refuse(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
}

/** Refuses with a reason if the work takes longer than `ms`, but doesn't stop it. */
export function inTime<T>(ms: number, reason: Reason, work: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Refusal(reason, { retryAfter: 1 })), ms)
    const end = (settle: () => void) => {
      clearTimeout(timer)
      settle()
    }
    work.then(
      result => end(() => resolve(result)),
      error => end(() => reject(error)),
    )
  })
}
