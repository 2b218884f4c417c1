// What a password proves. The contract asks for no former password when a session sets a new one, so the holder of a stolen
// token may have set it, and knows it: for a day such a password opens no further way in.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { refuse } from '../requests/refusal.js'

/** Milliseconds after a password update by a session during which the password proves too little. */
const waitAfterPassword = 24 * 3_600_000

/** When a password proves enough, as ISO 8601; undefined if it does now, in ms since 1970. */
export function provesFrom({ passwordUpdatedAt }: Pick<User, 'passwordUpdatedAt'>, now: number): string | undefined {
  const from = (passwordUpdatedAt?.getTime() ?? Number.NEGATIVE_INFINITY) + waitAfterPassword
  return now < from ? new Date(from).toISOString() : undefined
}

/**
 * Refuses for a day after a session has set the password, except one by a fresh mailed key. A later update revokes the session
 * that asks.
 *
 * @param now ms since 1970
 * @param possible what is possible later, such as `The account can be deleted`; the time follows
 * @param reason why it refuses, for operations of the contract, which have no status for WRONG_STATE
 */
export function checkPasswordAge(
  user: Pick<User, 'passwordUpdatedAt'>,
  now: number,
  possible: string,
  reason: Reason = Reason.WRONG_STATE,
): void {
  const time = provesFrom(user, now)
  if (time === undefined) return
  refuse(reason, { text: `The password was changed less than a day ago. ${possible} from ${time} on.` })
}
