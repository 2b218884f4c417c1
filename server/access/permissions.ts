// Whether a caller may use an RPC, by its row of the access policy: asked before an RPC runs, and again with the rows as
// they are in the transaction that changes something.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import type { AuditAction } from '../policy/audit-actions.js'
import type { AdministrationPolicy, Policy, UserPolicy } from '../policy/policy.js'
import { refuse } from '../requests/refusal.js'
import type { Session } from './tokens.js'

/** Seconds for which a sign-in counts as recent. */
const recentSignIn = 15 * 60

/** What of a user decides. */
export type Deciding = Pick<User, 'id' | 'role' | 'active' | 'organizationId'>

/** A caller with a session at the public endpoints. */
export interface Subject {
  readonly user: Deciding
  readonly session: Session
  /** Whether one-time codes are enrolled for it. */
  readonly enrolled: boolean
}

/** Refuses with ACCESS_DENIED unless the caller may use an RPC on a user; on none, when there is none. */
export function permit(policy: UserPolicy, { user, session, enrolled }: Subject, target: Deciding | undefined): void {
  const isOwn = target?.id === user.id && (policy.own === 'every role' || user.role === policy.own)
  if (user.role === 'ROLE_ADMIN') {
    const opens = (restricted: UserPolicy['restricted'][number]) => isOwn && policy.restricted.includes(restricted)
    if (session.method === 'kba' && !opens('answers')) refuse(Reason.ACCESS_DENIED)
    if (enrolled && !opens('one-time codes')) refuse(Reason.ACCESS_DENIED)
  }
  if (isOwn) return
  // A mailed key proves the address of one account.
  if (session.method === 'otp' || !user.active) refuse(Reason.ACCESS_DENIED)
  if (!isMember(policy, user, target) && !isAdministered(policy, user, target)) refuse(Reason.ACCESS_DENIED)
}

function isMember({ institution }: UserPolicy, user: Deciding, target: Deciding | undefined): boolean {
  return (
    institution !== undefined &&
    user.role === 'ROLE_INSTITUTION' &&
    user.organizationId !== null &&
    target?.organizationId === user.organizationId
  )
}

function isAdministered({ administrator }: UserPolicy, user: Deciding, target: Deciding | undefined): boolean {
  if (administrator === undefined || user.role !== 'ROLE_ADMIN') return false
  return administrator === 'any user' || target?.role !== 'ROLE_ADMIN' || target.id === user.id
}

/**
 * Refuses with SIGN_IN_AGAIN unless a sign-in is recent enough for an RPC of Administration.
 *
 * @param secondsAgo how long ago the sign-in was
 * @param withCode whether it had a one-time code where the caller has enrolled them
 * @param concerned roles, before and after, of the user that the RPC concerns, as far as they are known
 */
export function permitSignIn(
  { signIn }: AdministrationPolicy,
  { secondsAgo, withCode }: { secondsAgo: number; withCode: boolean },
  concerned: readonly string[],
): void {
  if (signIn === 'session') return
  if (signIn === 'recent for administrators' && !concerned.includes('ROLE_ADMIN')) return
  if (secondsAgo > recentSignIn || !withCode) refuse(Reason.SIGN_IN_AGAIN)
}

/** Throws an Error for an event that the row of its RPC doesn't name: rows say what is recorded. */
export function checkAction({ audit }: Policy, action: AuditAction): void {
  if (!audit.includes(action)) throw new Error(`The row of this RPC names no event ${action}.`)
}
