import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { refuse } from '../requests/refusal.js'

/** Milliseconds after a password update by a session during which the password proves too little. */
const waitAfterPassword = 24 * 3_600_000

/**
 * Refuses with WRONG_STATE for a day after a password update by a session: the holder of a stolen token may have set the
 * password, and so know it. A later update revokes the session that asks.
 *
 * @param now ms since 1970
 * @param possible what is possible later, such as `The account can be deleted`; the time follows
 */
export function checkPasswordAge(
  { passwordUpdatedAt }: Pick<User, 'passwordUpdatedAt'>,
  now: number,
  possible: string,
): void {
  const possibleAt = (passwordUpdatedAt?.getTime() ?? Number.NEGATIVE_INFINITY) + waitAfterPassword
  if (now >= possibleAt) return
  const time = new Date(possibleAt).toISOString()
  refuse(Reason.WRONG_STATE, { text: `The password was changed less than a day ago. ${possible} from ${time} on.` })
}
