// What a password proves. The contract asks for no former password when a session sets a new one, so the holder of a stolen
// token may have set it, and knows it: for a day such a password opens no further way in.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { recentSignIn } from './permissions.js'
import type { Session } from './tokens.js'

type Aged = Pick<User, 'passwordUpdatedAt'>

/** Milliseconds after a password update by a session during which the password proves too little. */
const waitAfterPassword = 24 * 3_600_000

/**
 * Whether a session proves more than a token now: a mailed key began it at most 15 minutes ago. A password that it sets proves
 * as much as one of sign-up.
 */
export function isFreshByKey({ method, startedAt }: Session, now: number): boolean {
  return method === 'otp' && Math.floor(now / 1000) - startedAt <= recentSignIn
}

/**
 * Refuses with WRONG_STATE for a day after a session has set the password, except one by a fresh mailed key. A later update
 * revokes the session that asks.
 *
 * @param now ms since 1970
 * @param possible what is possible later, such as `The account can be deleted`; the time follows
 */
export function checkPasswordAge(user: Aged, now: number, possible: string): void {
  const time = provesFrom(user, now)
  if (time === undefined) return
  refuse(Reason.WRONG_STATE, { text: `The password was changed less than a day ago. ${possible} from ${time} on.` })
}

/** The refusal of a sign-in of Administration by such a password alone, without a one-time code; undefined for any other. */
export function refusalOfAge(user: Aged, now: number): Refusal | undefined {
  const time = provesFrom(user, now)
  if (time === undefined) return undefined
  const text = [
    'A public session changed this password less than a day ago.',
    `It signs in here with a one-time code, or from ${time} on.`,
    'Another administrator, or `auth-admin users set-password --local` on the database itself, can set one that signs in now.',
  ].join(' ')
  return new Refusal(Reason.SIGN_IN_AGAIN, { text })
}

/** When the password proves enough, as ISO 8601; undefined if it does now. */
function provesFrom({ passwordUpdatedAt }: Aged, now: number): string | undefined {
  const from = (passwordUpdatedAt?.getTime() ?? Number.NEGATIVE_INFINITY) + waitAfterPassword
  return now < from ? new Date(from).toISOString() : undefined
}
