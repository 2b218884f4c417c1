import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import type { Account, SignInAttempt, SignIns } from '../models/signin.js'
import type { Place } from '../passwords/pool.js'
import { Refusal, refuse } from '../refusal.js'
import { traces } from './caller.js'

/** The ways to sign in, as events name them. */
export type SignInAction = 'session.login' | 'session.login-by-answers' | 'session.login-by-key'

/** An account that a try is about, and how to end the try. */
export interface CountedAttempt extends SignInAttempt {
  /** Records the try as failed and refuses it. */
  fail(reason: Reason): Promise<never>
  /** The event of its success. */
  success(account: Account): AuditEvent
}

/**
 * Counts a try before anything is compared, and runs `work` on it. Refuses with TOO_MANY_ATTEMPTS once the account or
 * the client address has failed too often. A try that the service itself refused for lack of time isn't counted.
 */
export async function attemptSignIn<T>(
  deps: { signIns: SignIns; audit: Audit },
  action: SignInAction,
  usernameKey: string,
  call: Call,
  work: (attempt: CountedAttempt) => Promise<T>,
): Promise<T> {
  const attempt = await deps.signIns.begin(usernameKey, call.address)
  const event = (outcome: 'ok' | 'refused', reason?: Reason): AuditEvent => ({
    ...traces(call, outcome === 'ok' ? attempt.account : undefined),
    action,
    outcome,
    ...(reason === undefined ? {} : { reason: Reason[reason] }),
    ...(attempt.account && { subject_id: attempt.account.id }),
  })
  if (attempt.wait !== undefined) {
    if (attempt.reached) await deps.audit.append(event('refused', Reason.TOO_MANY_ATTEMPTS))
    refuse(Reason.TOO_MANY_ATTEMPTS, { retryAfter: attempt.wait })
  }
  try {
    return await work({
      ...attempt,
      async fail(reason) {
        await deps.audit.append(event('refused', reason))
        refuse(reason)
      },
      success: () => event('ok'),
    })
  } catch (error) {
    const reason = error instanceof Refusal ? error.reason : undefined
    if (reason === Reason.OVERLOADED || reason === Reason.DEADLINE_EXCEEDED) await deps.signIns.undo(attempt)
    throw error
  }
}

/** Runs `work` with a place in the hashing queue, taken before anything else is spent on the call. */
export async function withPlace<T>(place: Place, work: (place: Place) => Promise<T>): Promise<T> {
  try {
    return await work(place)
  } finally {
    place.release()
  }
}
