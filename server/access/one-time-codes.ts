// One-time codes (RFC 6238) as the second proof of a sign-in of Administration, after the password. A million codes bear few
// guesses: they are counted for the account whatever the address, and end in a lock that doesn't lapse.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Database } from '../database/connection.js'
import type { Account } from '../models/attempt.js'
import type { Emails } from '../models/email.js'
import { codeLimits, type TotpSecrets } from '../models/totp-secret.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { Refusal, refuse } from '../requests/refusal.js'
import type { Attempt } from './sign-in.js'
import { totpStep } from './totp.js'

/** Checks one-time codes. */
export interface OneTimeCodes {
  /**
   * Checks the code that goes with an attempt whose password was right, and returns whether the account has codes at all.
   * Refuses with TOO_MANY_ATTEMPTS, before it compares anything, when they are locked; with CODE_NEEDED without a code; with
   * INVALID_CREDENTIALS for a wrong or used one, which counts. Ten wrong in 15 minutes or 30 in a day lock; after five in 15
   * minutes the owner is notified by e-mail.
   */
  check(attempt: Attempt, account: Account, code: string | undefined, call: Call): Promise<boolean>
}

/** `now` is a clock in milliseconds. */
export function createOneTimeCodes(deps: {
  database: Pick<Database, 'transact'>
  totpSecrets: TotpSecrets
  emails: Pick<Emails, 'add'>
  settings: Pick<Settings, 'mailLocale'>
  now: () => number
}): OneTimeCodes {
  const { database, totpSecrets, emails, settings, now } = deps

  /** Compares a code, in a transaction that holds the secret: of parallel ones each is counted before the next is compared. */
  function compare(attempt: Attempt, { id, email }: Account, code: string, { address }: Call) {
    return database.transact(async t => {
      const held = await totpSecrets.lock(id, t)
      if (!held) return 'wrong'
      if (held.locked) return 'locked'
      const step = totpStep(held.secret, code, now())
      if (step !== undefined && (await totpSecrets.take(id, step, t))) return 'right'
      const { failures, locked } = await totpSecrets.fail(id, t)
      await attempt.record(Reason.INVALID_CREDENTIALS, t)
      if (locked) await attempt.record(Reason.TOO_MANY_ATTEMPTS, t)
      if (failures === codeLimits.window.noticeAfter && email) {
        const parameters = { userId: id, at: new Date(now()).toISOString(), address }
        await emails.add({ kind: 'wrong-codes', parameters }, settings.mailLocale, t)
      }
      return 'wrong'
    })
  }

  return {
    async check(attempt, account, code, call) {
      const standing = await totpSecrets.failures(account.id)
      if (!standing) return false
      if (standing.locked) throw codesLocked(account)
      if (!code) {
        await attempt.record(Reason.CODE_NEEDED)
        refuse(Reason.CODE_NEEDED)
      }
      const verdict = await compare(attempt, account, code, call)
      if (verdict === 'locked') throw codesLocked(account)
      if (verdict === 'wrong') await attempt.failSecond(Reason.INVALID_CREDENTIALS)
      return true
    },
  }
}

/** Without a time to retry after: waiting doesn't help. */
function codesLocked({ id }: Account): Refusal {
  const text = `Too many one-time codes were wrong. Ask another administrator to run \`auth-admin users unlock ${id}\`.`
  return new Refusal(Reason.TOO_MANY_ATTEMPTS, { text, limit: 'account' })
}
