// One-time codes (RFC 6238) as the second factor of a sign-in of Administration, after the password. They have the parameters
// that all authenticators support: 6 digits, SHA-1. So few digits can be guessed: wrong codes count for the account from any
// address, and lead to a lock without an end (RFC 4226, 7.3).

import { Secret, TOTP } from 'otpauth'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Account } from '../models/attempt.js'
import type { Models } from '../models/index.js'
import type { TotpSecrets } from '../models/totp-secret.js'
import { codeLimits } from '../policy/limits.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { typedKey } from '../rules/names.js'
import { advise } from '../rules/remedies.js'
import type { Administrator } from './administrator.js'
import type { Attempt } from './sign-in.js'

/** Checks one-time codes. */
export type OneTimeCodes = ReturnType<typeof createOneTimeCodes>

/** Creates the check; `now` is a clock in ms since 1970. */
export function createOneTimeCodes(
  { database, totpSecrets, emails }: Models,
  settings: Pick<Settings, 'mailLocale'>,
  now: () => number,
) {
  /** Compares a code in a transaction that locks the secret: parallel attempts compare and count one after another. */
  function compare(attempt: Attempt, { id, email }: Account, code: string, { address }: Call) {
    return database.transact(async t => {
      const held = await totpSecrets.lock(id, t)
      if (!held) return { refusal: wrongCode }
      if (held.locked) return 'locked'
      const step = totpStep(held.secret, code, now())
      if (step !== undefined && (await totpSecrets.take(id, step, t))) return 'right'
      const { failures, locked } = await totpSecrets.fail(id, t)
      await attempt.record(step === undefined ? 'WRONG_CODE' : 'CODE_USED', t)
      if (locked) await attempt.record(Reason.TOO_MANY_ATTEMPTS, t)
      if (failures === codeLimits.window.noticeAfter && email) {
        const parameters = { userId: id, at: new Date(now()).toISOString(), address }
        await emails.add({ kind: 'wrong-codes', stage: 'requested', parameters }, settings.mailLocale, t)
      }
      return { refusal: step === undefined ? wrongCode : usedCode(secondsToNextCode(held.lastStep, now())) }
    })
  }

  return {
    /**
     * Checks the code of an attempt whose password was right. Returns whether the account has one-time codes enrolled.
     * Refuses with TOO_MANY_ATTEMPTS, without a comparison, when they are locked; with CODE_NEEDED without a code; with
     * INVALID_CREDENTIALS for a wrong or used code, which counts as a failure; their audit events have the reasons
     * WRONG_CODE and CODE_USED. 10 failures in 15 minutes or 30 in a day lock; the 5th in 15 minutes sends an e-mail to the
     * owner.
     */
    async check(attempt: Attempt, account: Account, code: string | undefined, call: Call): Promise<boolean> {
      const state = await totpSecrets.failures(account.id)
      if (!state) return false
      if (state.locked) throw codesLocked(account)
      if (!code) {
        await attempt.record(Reason.CODE_NEEDED)
        refuse(Reason.CODE_NEEDED)
      }
      const verdict = await compare(attempt, account, code, call)
      if (verdict === 'locked') throw codesLocked(account)
      if (verdict !== 'right')
        await attempt.failSecond(new Refusal(Reason.INVALID_CREDENTIALS, { text: verdict.refusal }))
      return true
    },
  }
}

/**
 * Whether the codes are the administrator's own. If these are locked, refuses with ACCESS_DENIED: another administrator has
 * to unlock them.
 */
export async function checkOwnCodes(
  totpSecrets: Pick<TotpSecrets, 'failures'>,
  administrator: Administrator,
  userId: number,
): Promise<boolean> {
  if (administrator.user?.id !== userId) return false
  if ((await totpSecrets.failures(userId))?.locked) {
    const text = `Your one-time codes are locked. ${advise('unlock codes', { USER: userId })}`
    refuse(Reason.ACCESS_DENIED, { text })
  }
  return true
}

// These texts reveal nothing new: CODE_NEEDED reveals a right password to a sign-in without a code, and a used code is of
// no more use.
const wrongCode = 'The one-time code is wrong.'
const usedCode = (seconds: number) => `This one-time code was already used. The next one comes in ${seconds} s.`

/** Without `retryAfter`: this lock doesn't expire. */
function codesLocked({ id }: Account): Refusal {
  const text = `Too many wrong one-time codes. ${advise('unlock codes', { USER: id })}`
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { text, limit: 'account' })
}

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
 * Returns the time step (RFC 6238) that a code, as typed, belongs to; undefined for a wrong code. `now` is in ms since 1970.
 */
export function totpStep(secret: string, code: string, now: number): number | undefined {
  const token = typedKey(code)
  if (!/^\d{6}$/.test(token)) return undefined
  const delta = new TOTP({ secret, period }).validate({ token, timestamp: now, window: 1 })
  return delta === null ? undefined : stepAt(now) + delta
}
