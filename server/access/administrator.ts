// Identifies administrators: callers with a session of Administration, services with a scope for it, or the command line on
// the database itself.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AuditEvent } from '../models/audit.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import type { AdministrationPolicy } from '../policy/policy.js'
import type { CallingService, IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { type AdministratorSession, type AdministratorSessions, refuseSession } from './administrator-session.js'
import { auditContext, presentedToken } from './caller.js'
import { isAdministrator, isAdmitted } from './gate.js'
import { permitAdministeringService, permitDesk } from './permissions.js'
import { permitSignIn } from './recent-sign-in.js'

/** The caller of an RPC of Administration. */
export interface Administrator {
  /** The administrator, or the holder of desk; absent for a service, and on the database itself, which needs no sign-in. */
  readonly user?: User
  /** The service that calls instead of an administrator. */
  readonly service?: CallingService
  /** Whether it is a holder of desk, to whom little is open. */
  readonly desk: boolean
  /** Whether answers contain activation and provider keys: never to a service or a holder of desk. */
  readonly seesKeys: boolean
  /** The session of the administrator. */
  readonly session?: AdministratorSession
  /** Fields that all audit events of the call share: actor, client address and request. */
  readonly auditContext: Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'>
  /** The reason given for the call. */
  readonly reason?: string
  /**
   * Refuses with SIGN_IN_AGAIN unless the sign-in meets the RPC's policy. `guarded`: whether the user that the RPC changes is,
   * before or after it.
   */
  permitSignIn(guarded?: boolean): void
  /** Refuses with JUSTIFICATION_NEEDED on the database itself, unless the call gives a reason. */
  justify(): void
}

/** Identifies administrators by the tokens of `sessions`; `now` is a clock in ms since 1970. */
export function createAdministrators({ users }: Models, sessions: AdministratorSessions, now: () => number) {
  return {
    /**
     * Returns the caller of an RPC. Refuses with ACCESS_DENIED without a token and a service without a scope of the policy,
     * and with INVALID_TOKEN unless the token is of a session of Administration and its user is an active ROLE_ADMIN or
     * holder of desk.
     */
    async identify(policy: AdministrationPolicy, call: IncomingCall): Promise<Administrator> {
      const { local } = call
      if (local) {
        return {
          desk: false,
          seesKeys: true,
          auditContext: { actor: local.actor, request_id: call.requestId },
          reason: local.reason,
          permitSignIn() {},
          justify() {
            if (!local.reason) refuse(Reason.JUSTIFICATION_NEEDED)
          },
        }
      }
      if (call.service) {
        permitAdministeringService(policy, call.service)
        return {
          service: call.service,
          desk: false,
          seesKeys: false,
          auditContext: auditContext(call),
          permitSignIn() {},
          justify() {},
        }
      }
      const session = await sessions.read(presentedToken(call))
      const user = await users.findSessionHolder(session.userId, session.keyId)
      if (user?.tokenGeneration !== session.generation || !isAdmitted(user)) refuseSession()
      // For the access log.
      call.user = user.id
      const desk = !isAdministrator(user)
      if (desk) permitDesk(policy)
      // The code always belongs to the present secret: enrolling ends all earlier sessions.
      const withCode = !user.enrolled || session.withCode
      return {
        user,
        desk,
        seesKeys: !desk,
        session,
        auditContext: auditContext(call, user),
        reason: call.reason,
        permitSignIn(guarded = false) {
          const secondsAgo = Math.floor(now() / 1000) - session.startedAt
          permitSignIn(policy, { secondsAgo, withCode }, guarded)
        },
        justify() {},
      }
    },
  }
}
