// Permissions of callers, by the policy of the RPC: checked before the RPC runs, and again in the
// transaction of a change.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { User } from '../models/user.js'
import { guardedUser } from '../models/user-state.js'
import type { AuditAction } from '../policy/audit-actions.js'
import type { AdministrationPolicy, Policy, UserRights } from '../policy/policy.js'
import type { CallingService } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import type { Session } from './tokens.js'

/** The attributes of a user that permissions depend on. */
type UserAttributes = Pick<User, 'id' | 'role' | 'desk' | 'active' | 'organizationId'>

/** The same of a caller: the permissions of an institution also depend on the state of its organization. */
type CallerAttributes = UserAttributes & Pick<User, 'organizationActive'>

/** A caller with a session of the public API. */
interface Subject {
  readonly user: CallerAttributes
  readonly session: Session
  /** Whether the user has one-time codes enrolled. */
  readonly enrolled: boolean
}

/**
 * Refuses with ACCESS_DENIED unless the caller may use an RPC on `target`, or without a target when it is undefined.
 */
export function permit(
  policy: UserRights,
  { user, session, enrolled }: Subject,
  target: UserAttributes | undefined,
): void {
  const isOwn = target?.id === user.id && (policy.own === 'every role' || user.role === policy.own)
  for (const restriction of restrictionsOf({ user, session, enrolled })) {
    if (!isOwn || !policy.restricted.includes(restriction)) refuse(Reason.ACCESS_DENIED)
  }
  if (isOwn) return
  // A mailed key proves control of one account's address, and gives no permission on others.
  if (session.method === 'otp' || !user.active) refuse(Reason.ACCESS_DENIED)
  if (!isMember(policy, user, target) && !isAdministered(policy, user, target)) refuse(Reason.ACCESS_DENIED)
}

/** Why a session of a guarded user at the public endpoints opens little. */
export function restrictionsOf({ user, session, enrolled }: Subject): UserRights['restricted'] {
  if (!guardedUser.of(user)) return []
  return [...(session.method === 'kba' ? ['answers' as const] : []), ...(enrolled ? ['one-time codes' as const] : [])]
}

/**
 * Whether a user exists for a caller whom `permit` admits: an RPC on the clients of the caller's organization hides all
 * other users.
 */
export function isVisible({ institution }: UserRights, user: UserAttributes, target: UserAttributes): boolean {
  return (
    institution !== 'clients of its organization' || (target.role === 'ROLE_CLIENT' && inOrganizationOf(user, target))
  )
}

function inOrganizationOf({ organizationId }: UserAttributes, target: UserAttributes | undefined): boolean {
  return organizationId !== null && target?.organizationId === organizationId
}

function isMember({ institution }: UserRights, user: CallerAttributes, target: UserAttributes | undefined): boolean {
  if (institution === undefined || user.role !== 'ROLE_INSTITUTION' || user.organizationActive === false) return false
  return institution === 'clients of its organization' || inOrganizationOf(user, target)
}

function isAdministered(
  { administrator }: UserRights,
  user: UserAttributes,
  target: UserAttributes | undefined,
): boolean {
  if (administrator === undefined || user.role !== 'ROLE_ADMIN') return false
  return administrator === 'any user' || !target || !guardedUser.of(target) || target.id === user.id
}

/** Refuses with ACCESS_DENIED a holder of desk whatever isn't open to it, and whatever is on a user who is guarded, too. */
export function permitDesk({ desk }: AdministrationPolicy, target?: Pick<User, 'role' | 'desk'>): void {
  if (!desk) refuse(Reason.ACCESS_DENIED, { text: 'Only an administrator may do this.' })
  if (!target || !guardedUser.of(target)) return
  refuse(Reason.ACCESS_DENIED, { text: 'Only an administrator may do this to an administrator or a holder of desk.' })
}

/** Refuses with ACCESS_DENIED a service that has none of the scopes that open an RPC of Administration. */
export function permitAdministeringService(
  { scopes }: AdministrationPolicy,
  { name, scopes: held }: CallingService,
): void {
  if (!scopes) refuse(Reason.ACCESS_DENIED, { text: 'No service may do this: sign in as an administrator.' })
  if (scopes.some(scope => held.includes(scope))) return
  refuse(Reason.ACCESS_DENIED, {
    text: `The service ${name} may not do this: it needs the scope ${scopes.join(' or ')}.`,
  })
}

/** Throws an Error for an audit event that the RPC's policy doesn't list: policies list every event that an RPC records. */
export function checkAction({ audit }: Policy, action: AuditAction): void {
  if (!audit.includes(action)) throw new Error(`The policy of this RPC doesn’t list the event ${action}.`)
}
