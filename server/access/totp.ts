// Time-based one-time passwords (RFC 6238): 6 digits, SHA-1, the parameters that all authenticators support.
import { Secret, TOTP } from 'otpauth'

/** Seconds of a time step. `totpStep` accepts also the steps before and after, as clocks differ (RFC 6238, 5.2). */
const period = 30

/** Bytes of a secret: the output length of SHA-1 (RFC 4226, 4). */
const secretBytes = 20

/** Returns a new random secret, in base32 (RFC 4648). */
export function newTotpSecret(): string {
  return new Secret({ size: secretBytes }).base32
}

/**
 * Returns the URI of a secret for authenticators, `otpauth://totp/…`. `issuer` and `username` label the entry there.
 */
export function totpUri(secret: string, username: string, issuer: string): string {
  return new TOTP({ secret, label: username, issuer, period }).toString()
}

/** Returns the seconds, rounded up, until an authenticator shows a code after the one of time step `used`. */
export function secondsToNextCode(used: number, now: number): number {
  return Math.ceil((Math.max(used, stepAt(now)) + 1) * period - now / 1000)
}

const stepAt = (now: number) => Math.floor(now / 1000 / period)

/**
 * Returns the time step (RFC 6238) that a code belongs to; undefined for a wrong code. White space in the code doesn't
 * matter; `now` is in ms since 1970.
 */
export function totpStep(secret: string, code: string, now: number): number | undefined {
  const token = code.replace(/\s/g, '')
  if (!/^\d{6}$/.test(token)) return undefined
  const delta = new TOTP({ secret, period }).validate({ token, timestamp: now, window: 1 })
  return delta === null ? undefined : stepAt(now) + delta
}
