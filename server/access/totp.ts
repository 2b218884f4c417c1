import { Secret, TOTP } from 'otpauth'

/** Seconds for which a code is shown. One more step on each side is taken, as clocks differ (RFC 6238, 5.2). */
const period = 30

/** Bytes of a secret: as many as SHA-1 gives (RFC 4226, 4). */
const secretBytes = 20

/** A new secret, in base 32. */
export function newTotpSecret(): string {
  return new Secret({ size: secretBytes }).base32
}

/** A secret as authenticators read it, `otpauth://totp/…`. */
export function totpUri(secret: string, username: string, issuer: string): string {
  return new TOTP({ secret, label: username, issuer, period }).toString()
}

/** The time step (RFC 6238) that a code is of at a time, in ms since 1970; undefined when it is wrong. */
export function totpStep(secret: string, code: string, now: number): number | undefined {
  const token = code.replace(/\s/g, '')
  if (!/^\d{6}$/.test(token)) return undefined
  const delta = new TOTP({ secret, period }).validate({ token, timestamp: now, window: 1 })
  return delta === null ? undefined : Math.floor(now / 1000 / period) + delta
}
