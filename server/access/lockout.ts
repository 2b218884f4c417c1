// How many failures lock an account, and for how long. The limits of client addresses are admission.ts's, the counting
// itself is models/attempt.ts's.

/** Failed attempts that lock an account, or an account at a network or device that it knows, and seconds until they are forgotten. */
export const lockout = { failures: 10, seconds: 900 } as const

/** The failures that lock, where a factor multiplies all limits: a whole number, and never none. */
export function failuresThatLock(factor: number): number {
  return Math.max(1, Math.round(lockout.failures * factor))
}

/** Days for which the networks of an address that an account signed in from count as known to it. */
export const knownAddressDays = 30

/** Seconds after which an attempt under way counts no longer: longer than any call takes. */
export const inFlightSeconds = 30
