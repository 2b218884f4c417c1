// What a recent sign-in opens, and a session that began longer ago doesn't.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import type { AdministrationPolicy } from '../policy/policy.js'
import { refuse } from '../requests/refusal.js'
import type { Session } from './tokens.js'

/** Maximum age in seconds of a recent sign-in. */
const recent = 15 * 60

/**
 * Whether a session proves more than a token now: a mailed key began it at most 15 minutes ago, and so the address of its user is
 * proved. A password that it sets proves as much as one of sign-up. An issued key begins such sessions for other users, too: who
 * issued it could use it, and sets no other address by it.
 */
export function isFreshByKey(session: Session, { emailProved }: Pick<User, 'emailProved'>, now: number): boolean {
  return session.method === 'otp' && emailProved && isRecent(session, now)
}

/** Whether a session began at most 15 minutes ago. */
export function isRecent({ startedAt }: Session, now: number): boolean {
  return Math.floor(now / 1000) - startedAt <= recent
}

/**
 * Refuses with SIGN_IN_AGAIN unless a sign-in is recent enough for an RPC of Administration.
 *
 * @param secondsAgo age of the sign-in in seconds
 * @param withCode whether it had a one-time code; true for a caller without enrolled codes
 * @param guarded whether the user that the RPC changes is guarded, before or after it, as far as that is known
 */
export function permitSignIn(
  { signIn }: AdministrationPolicy,
  { secondsAgo, withCode }: { secondsAgo: number; withCode: boolean },
  guarded: boolean,
): void {
  if (signIn === 'session') return
  if (signIn === 'recent for administrators' && !guarded) return
  if (secondsAgo > recent || !withCode) refuse(Reason.SIGN_IN_AGAIN)
}
