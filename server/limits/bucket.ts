import type { BucketLimit } from '../models/bucket.js'

/** A token bucket (RFC 2697). Tokens have any unit, and fractions count. */
export type Bucket = ReturnType<typeof createBucket>

/** Creates a full bucket. `clock` returns milliseconds, as does `now`, which is its present value. */
export function createBucket({ capacity, perSecond }: BucketLimit, clock = () => performance.now()) {
  let level = capacity
  let at = clock()
  function refill(now: number) {
    level = Math.min(capacity, level + (Math.max(0, now - at) / 1000) * perSecond)
    at = now
  }
  return {
    /** Removes tokens; false, and nothing is removed, when the bucket holds fewer. */
    acquire(tokens: number, now = clock()): boolean {
      refill(now)
      if (level < tokens) return false
      level -= tokens
      return true
    },
    /** Removes tokens, also more than the bucket holds: `blockedFor` includes the debt. A negative number gives back. */
    spend(tokens: number, now = clock()): void {
      refill(now)
      level -= tokens
    },
    /** Milliseconds until the bucket holds that many tokens; 0 when it does. */
    blockedFor(tokens: number, now = clock()): number {
      refill(now)
      return Math.max(0, ((tokens - level) / perSecond) * 1000)
    },
    /** Fills the bucket up to so many tokens that were taken from it, by default none. */
    fill(taken = 0): void {
      level = capacity - taken
      at = clock()
    },
  }
}
