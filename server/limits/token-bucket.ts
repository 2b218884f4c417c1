/** Tokens for so much at once, which come back evenly: the token bucket of RFC 2697, with any unit. */
export interface TokenBucket {
  /** Takes so many tokens, if there are as many. */
  acquire(tokens: number, now?: number): boolean
  /** Milliseconds until there are so many. */
  blockedFor(tokens: number, now?: number): number
}

/** A full bucket of `burst` tokens, of which `rate` come back in a second. `now` is `performance.now()`. */
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
    blockedFor(tokens, now = performance.now()) {
      refill(now)
      return Math.max(0, ((tokens - level) / rate) * 1000)
    },
  }
}
