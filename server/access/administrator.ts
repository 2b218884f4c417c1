// Who administers: the first checks of every RPC of Administration, and what can't be undone.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import type { AuditEvent } from '../models/audit.js'
import type { User } from '../models/user.js'
import { refuse } from '../refusal.js'
import { type Callers, traces } from './caller.js'
import { administrationPermissions } from './permissions.js'
import type { Claims } from './tokens.js'

/** The audience (RFC 7519) of tokens for Administration, which no token of a work package has. */
export const administrationAudience = 'auth-admin'

/** Seconds for which a sign-in is good for what can't be undone. */
export const recentSignIn = 15 * 60

/** Somebody who administers, by one call. */
export interface Administrator {
  /** Who it is; absent on the database itself, which needs no sign-in. */
  readonly user?: User
  /** What their token says; absent on the database itself. */
  readonly claims?: Claims
  /** What events of the call have in common: who, from where. */
  readonly traces: Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'>
  /** Why, as somebody on the database itself says. */
  readonly reason?: string
  /**
   * Refuses what can't be undone with SIGN_IN_AGAIN when the sign-in is too old, with CONFIRMATION_NEEDED unless `confirm`
   * repeats the name of what it is done to.
   */
  confirm(name: string, confirm: string | undefined): void
  /** Refuses with JUSTIFICATION_NEEDED on the database itself, unless a reason is given. */
  justify(): void
}

/** Finds out who administers. */
export interface Administrators {
  /** The caller of an RPC. Refuses with ACCESS_DENIED without a token, with INVALID_TOKEN unless it is one of an administrator. */
  identify(rpc: keyof typeof administrationPermissions, call: Call): Promise<Administrator>
}

/** Finds administrators by tokens of their audience; `now` is a clock in milliseconds. */
export function createAdministrators({ callers, now }: { callers: Callers; now: () => number }): Administrators {
  const confirmName = (name: string, confirm: string | undefined) => {
    if (confirm?.trim() === name.trim()) return
    const message = `Give ${name}.`
    refuse(Reason.CONFIRMATION_NEEDED, {
      text: `This can’t be undone. To confirm, repeat the name: ${name}`,
      fields: [{ field: 'confirm', message }],
    })
  }
  return {
    async identify(rpc, call) {
      const { local } = call
      if (local) {
        return {
          traces: { actor: local.actor, request_id: call.requestId },
          ...(local.reason && { reason: local.reason }),
          confirm: confirmName,
          justify: () => {
            if (!local.reason) refuse(Reason.JUSTIFICATION_NEEDED)
          },
        }
      }
      const { caller, claims } = await callers.identifyClaims(call)
      if (!caller.admin) refuse(Reason.INVALID_TOKEN)
      const checkAge = () => {
        if (Math.floor(now() / 1000) - claims.auth_time > recentSignIn) refuse(Reason.SIGN_IN_AGAIN)
      }
      if (administrationPermissions[rpc] === 'final') checkAge()
      return {
        user: caller.user,
        claims,
        traces: traces(call, caller.user),
        confirm(name, confirm) {
          checkAge()
          confirmName(name, confirm)
        },
        justify() {},
      }
    },
  }
}
