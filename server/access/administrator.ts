// Who administers: somebody with a session of Administration, or on the database itself.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AuditEvent } from '../models/audit.js'
import type { User } from '../models/user.js'
import type { AdministrationPolicy } from '../policy/policy.js'
import type { IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { auditContext, type Callers } from './caller.js'
import { permitSignIn } from './permissions.js'
import type { Claims } from './tokens.js'

/** Somebody who administers, by one call. */
export interface Administrator {
  /** Who it is; absent on the database itself, which needs no sign-in. */
  readonly user?: User
  /** What the token says; absent on the database itself. */
  readonly claims?: Claims
  /** What events of the call have in common: who, from where. */
  readonly auditContext: Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'>
  /** The reason given on the database itself. */
  readonly reason?: string
  /**
   * Refuses with SIGN_IN_AGAIN unless the sign-in is what the RPC's row asks for when it concerns users with these roles.
   */
  permitSignIn(concerned?: readonly string[]): void
  /** Refuses with CONFIRMATION_NEEDED unless `confirm` repeats the name of what something final is done to. */
  confirm(name: string, confirm: string | undefined): void
  /** Refuses with JUSTIFICATION_NEEDED on the database itself, unless a reason is given. */
  justify(): void
}

/** Finds out who administers. */
export interface Administrators {
  /**
   * The caller of an RPC. Refuses with ACCESS_DENIED without a token, with INVALID_TOKEN unless it is one of an active
   * ROLE_ADMIN for this audience.
   */
  identify(policy: AdministrationPolicy, call: IncomingCall): Promise<Administrator>
}

/** Finds administrators by tokens of their audience; `now` is a clock in milliseconds. */
export function createAdministrators({ callers, now }: { callers: Callers; now: () => number }): Administrators {
  const confirm: Administrator['confirm'] = (name, confirm) => {
    if (confirm?.trim() === name.trim()) return
    refuse(Reason.CONFIRMATION_NEEDED, {
      text: `This can’t be undone. To confirm, repeat the name: ${name}`,
      fields: [{ field: 'confirm', message: `Give ${name}.` }],
    })
  }
  return {
    async identify(policy, call) {
      const { local } = call
      if (local) {
        return {
          auditContext: { actor: local.actor, request_id: call.requestId },
          ...(local.reason && { reason: local.reason }),
          permitSignIn() {},
          confirm,
          justify() {
            if (!local.reason) refuse(Reason.JUSTIFICATION_NEEDED)
          },
        }
      }
      const claims = await callers.claimsOf(call)
      const { user, admin, enrolled } = await callers.identify(call, claims)
      if (!admin) refuse(Reason.INVALID_TOKEN)
      // Codes of an earlier secret don't count: enrolling ends the sessions from before.
      const withCode = !enrolled || claims.amr.includes('otp')
      return {
        user,
        claims,
        auditContext: auditContext(call, user),
        permitSignIn(concerned = []) {
          const secondsAgo = Math.floor(now() / 1000) - claims.auth_time
          permitSignIn(policy, { secondsAgo, withCode }, concerned)
        },
        confirm,
        justify() {},
      }
    },
  }
}
