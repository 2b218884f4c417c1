/** A token bucket (RFC 2697). Tokens have any unit, and fractions count. `now` is `performance.now()`. */
export interface TokenBucket {
  /** Removes tokens; false, and nothing is removed, when the bucket holds fewer. */
  acquire(tokens: number, now?: number): boolean
  /** Removes tokens, also more than the bucket holds: `blockedFor` includes the debt. */
  spend(tokens: number, now?: number): void
  /** Milliseconds until the bucket holds that many tokens; 0 when it does. */
  blockedFor(tokens: number, now?: number): number
}

/** Creates a full bucket of `burst` tokens, which refills by `rate` tokens per second. */
export function createTokenBucket(burst: number, rate: number): TokenBucket {
  let level = burst
  let at = performance.now()
  function refill(now: number) {
    level = Math.min(burst, level + (Math.max(0, now - at) / 1000) * rate)
    at = now
  }
  return {
    acquire(tokens, now = performance.now()) {
      refill(now)
      if (level < tokens) return false
      level -= tokens
      return true
    },
    spend(tokens, now = performance.now()) {
      refill(now)
      level -= tokens
    },
    blockedFor(tokens, now = performance.now()) {
      refill(now)
      return Math.max(0, ((tokens - level) / rate) * 1000)
    },
  }
}
