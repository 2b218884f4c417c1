// When failures lock an account. The limits of client addresses are in admission.ts, the counters in models/attempt.ts.
import { lockout } from '../policy/limits.js'

/** Returns the number of failures that lock, multiplied by `factor`: a whole number, at least 1. */
export function failuresThatLock(factor: number): number {
  return Math.max(1, Math.round(lockout.failures * factor))
}

/** Days after a sign-in for which the account knows the networks of its client address. */
export const knownAddressDays = 30

/** Seconds after which an attempt no longer counts as in flight. Longer than the longest deadline of a call. */
export const inFlightSeconds = 30
