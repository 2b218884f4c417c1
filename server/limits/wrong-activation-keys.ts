// Wrong activation keys of each user in a window of time, which all replicas count together, as far as this process knows them: a
// refusal needs no statement. What an account may fail otherwise is in access/sign-in.ts, and a network in rate-limits.ts.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Refusal } from '../requests/refusal.js'
import { maxEntries } from './cache-size.js'

/** Minimum milliseconds between two reads of failures that have reached the limit. */
const confirmedFor = 250

/** Failures of a user. Times are in ms. */
interface Cached {
  readonly count: number
  readonly until: number
  /** When the database last confirmed that they reached the limit. */
  readonly confirmedAt?: number
}

/**
 * Creates the failures of users, by id, in a process. `max` failures in a window reach the limit; `now` is a clock in ms.
 */
export function createWrongActivationKeys(deps: {
  readonly max: number
  /** Counts a failure for all replicas. Returns the failures of the window, and the seconds until it ends. */
  readonly count: (id: number) => Promise<{ readonly count: number; readonly seconds: number }>
  /** Reads the failures of all replicas. */
  readonly read: (id: number) => Promise<number>
  readonly now: () => number
}) {
  const { max, count, read, now } = deps
  /** Counts by id. */
  const counts = new LRUCache<number, Cached>(maxEntries(100_000))
  /** Attempts in flight by id. */
  const inFlight = new Map<number, number>()

  function countOf(id: number): Cached {
    const cached = counts.get(id)
    return cached && cached.until > now() ? cached : { count: 0, until: 0 }
  }

  const reached = (retryAfter: number) => new Refusal(Reason.TOO_MANY_ATTEMPTS, { retryAfter, limit: 'activation' })

  return {
    /**
     * Refuses with TOO_MANY_ATTEMPTS when the failures have reached the limit. It reads them again once in 250 ms then, because an
     * administrator can clear them.
     */
    async check(id: number): Promise<void> {
      const { count, until, confirmedAt = 0 } = countOf(id)
      if (count < max) return
      if (now() - confirmedAt > confirmedFor) {
        counts.set(id, { count, until, confirmedAt: now() })
        counts.set(id, { count: await read(id), until, confirmedAt: now() })
      }
      if (countOf(id).count >= max) throw reached((until - now()) / 1000)
    },
    /**
     * Counts an attempt as in flight until the result is disposed of. Refuses with TOO_MANY_ATTEMPTS when failures and
     * attempts in flight reach the limit.
     */
    begin(id: number): Disposable {
      const others = inFlight.get(id) ?? 0
      if (countOf(id).count + others >= max) throw reached(1)
      inFlight.set(id, others + 1)
      return {
        [Symbol.dispose]() {
          const left = inFlight.get(id)! - 1
          if (left > 0) inFlight.set(id, left)
          else inFlight.delete(id)
        },
      }
    },
    /** Counts a failure, and returns the failures of the window. */
    async add(id: number): Promise<number> {
      const { count: failures, seconds } = await count(id)
      if (failures > countOf(id).count) counts.set(id, { count: failures, until: now() + seconds * 1000 })
      return failures
    },
  }
}
