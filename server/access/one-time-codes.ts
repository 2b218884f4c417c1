// One-time codes (RFC 6238) as the second factor of a sign-in of Administration, after the password. A code has 6
// digits only, so wrong ones count for the account from any address, and lead to a lock without an end (RFC 4226, 7.3).
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Database } from '../database/connection.js'
import type { Account } from '../models/attempt.js'
import type { Emails } from '../models/email.js'
import { codeLimits, type TotpSecrets } from '../models/totp-secret.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { Refusal, refuse } from '../requests/refusal.js'
import type { Attempt } from './sign-in.js'
import { secondsToNextCode, totpStep } from './totp.js'

/** Checks one-time codes. */
export interface OneTimeCodes {
  /**
   * Checks the code of an attempt whose password was right. Returns whether the account has one-time codes enrolled.
   * Refuses with TOO_MANY_ATTEMPTS, without a comparison, when they are locked; with CODE_NEEDED without a code; with
   * INVALID_CREDENTIALS for a wrong or used code, which counts as a failure; their audit events have the reasons WRONG_CODE
   * and CODE_USED. 10 failures in 15 minutes or 30 in a day
   * lock; the 5th in 15 minutes sends an e-mail to the owner.
   */
  check(attempt: Attempt, account: Account, code: string | undefined, call: Call): Promise<boolean>
}

/** Creates the check; `now` is a clock in ms since 1970. */
export function createOneTimeCodes(deps: {
  database: Pick<Database, 'transact'>
  totpSecrets: TotpSecrets
  emails: Pick<Emails, 'add'>
  settings: Pick<Settings, 'mailLocale'>
  now: () => number
}): OneTimeCodes {
  const { database, totpSecrets, emails, settings, now } = deps

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
        await emails.add({ kind: 'wrong-codes', parameters }, settings.mailLocale, t)
      }
      return { refusal: step === undefined ? wrongCode : usedCode(secondsToNextCode(held.lastStep, now())) }
    })
  }

  return {
    async check(attempt, account, code, call) {
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

// These texts reveal nothing new: CODE_NEEDED reveals a right password to a sign-in without a code, and a used code is of
// no more use.
const wrongCode = 'The one-time code is wrong.'
const usedCode = (seconds: number) => `This one-time code was already used. The next one comes in ${seconds} s.`

/** Without `retryAfter`: this lock doesn't expire. */
function codesLocked({ id }: Account): Refusal {
  const text = `Too many wrong one-time codes. Ask another administrator to run \`auth-admin users unlock ${id}\`.`
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { text, limit: 'account' })
}
