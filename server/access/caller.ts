import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Device } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { CallerRow, User, Users } from '../models/user.js'
import type { Call, IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { usernameKey } from '../rules/names.js'
import { isAdministrator, type Passed, pass } from './gate.js'
import { endedWithAddress, type Session, sessionOf, type Tokens, type Verified } from './tokens.js'

// Identifies the users that call, by the token in `Authorization: Bearer` (RFC 6750).

/** A user that calls, and the session of its token. */
export interface Caller {
  readonly user: Passed<User>
  readonly session: Session & { readonly id: string; readonly stay: boolean }
  /** Whether the user is an active ROLE_ADMIN. */
  readonly admin: boolean
  /** Whether the user is guarded, and has one-time codes. */
  readonly enrolled: boolean
}

/** Identifies callers: the first two checks of every RPC with a caller. */
export type Callers = ReturnType<typeof createCallers>

/** Identifies callers among `users` by `tokens`. */
export function createCallers(tokens: Tokens, users: Pick<Users, 'findTokenHolder' | 'findTokenHolderAndUser'>) {
  return {
    /**
     * Verifies the token of a call without the database: the token may be revoked and its user gone. Refuses with
     * ACCESS_DENIED without a token, and with INVALID_TOKEN for one that isn't genuine or has expired.
     */
    async claimsOf(call: IncomingCall): Promise<Verified> {
      return tokens.verify(presentedToken(call))
    },
    /**
     * The device that a call comes from, by the token of an earlier session, which may have expired (a device cookie, as OWASP
     * describes it). Undefined without such a token; never refuses. Whether the token is revoked is left to the statement that
     * reads the account (models/attempt.ts).
     */
    async deviceOf(call: IncomingCall): Promise<Device | undefined> {
      const token = tokenIn(call)
      // The device is optional: neither a bad token nor a failure to read the keys fails the sign-in.
      const claims = token && (await tokens.recognize(token).catch(() => undefined))
      if (!claims) return undefined
      const { kid, sub, username, active, amr, auth_time, ver } = claims
      const of = { userId: Number(sub), usernameKey: usernameKey(username), active, generation: ver }
      return { kid, ...of, session: `${amr[0]} ${auth_time}` }
    },
    /**
     * The user of a token, and the user with the username, read by the same statement; the caller itself without a username,
     * undefined if there is no such user. Refuses with INVALID_TOKEN when the token is revoked, or its user gone or suspended.
     */
    async identify(call: Call, claims: Verified, usernameKey?: string) {
      const [id, { kid }] = [Number(claims.sub), claims]
      const found =
        usernameKey === undefined
          ? { caller: await users.findTokenHolder(id, kid), target: undefined }
          : await users.findTokenHolderAndUser(id, kid, usernameKey)
      const caller = toCaller(claims, found.caller) ?? refuse(Reason.INVALID_TOKEN)
      // For the access log.
      call.user = caller.user.id
      return { caller, target: usernameKey === undefined ? caller.user : found.target }
    },
    /** The caller of a token from a request's body, and its claims; undefined when the token isn't valid now. */
    async introspect(token: string) {
      const claims = await tokens.verify(token).catch(error => {
        if (error?.reason === Reason.INVALID_TOKEN) return undefined
        throw error
      })
      const caller = claims && toCaller(claims, await users.findTokenHolder(Number(claims.sub), claims.kid))
      return caller && { caller, claims }
    },
  }
}

/** The token that a call presents. Refuses with ACCESS_DENIED without one, and with INVALID_TOKEN what can't be a token. */
export function presentedToken(call: IncomingCall): string {
  // RPCs for services don't get here: this one takes tokens of users only.
  if (call.service) refuse(Reason.ACCESS_DENIED)
  // A `Bearer` value that can't be a token counts as a bad token, any other header as none.
  const reason = /^Bearer +\S/i.test(call.authorization ?? '') ? Reason.INVALID_TOKEN : Reason.ACCESS_DENIED
  return tokenIn(call) ?? refuse(reason)
}

/** The token that a call presents. */
function tokenIn({ authorization = '' }: IncomingCall): string | undefined {
  return /^Bearer +([^\s]+)\s*$/i.exec(authorization)?.[1]
}

/** The caller; undefined when the token is revoked or its session ended, or its user gone or in a state that closes this way. */
function toCaller(claims: Verified, user: CallerRow | undefined): Caller | undefined {
  const passed = pass(user, 'use a token')
  if (!passed || passed.tokenGeneration !== claims.ver) return undefined
  const session = sessionOf(claims)
  if (endedWithAddress(session, passed)) return undefined
  return { user: passed, session, admin: isAdministrator(passed), enrolled: passed.enrolled }
}

/**
 * Returns the fields that all audit events of a call share: the service, user or `anonymous`, client address and
 * request.
 */
export function auditContext(
  call: Call,
  caller?: Pick<User, 'id'>,
): Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'> {
  const actor = call.service ? `service:${call.service.name}` : caller ? 'user' : 'anonymous'
  return { actor, actor_id: caller?.id, address: call.address, request_id: call.requestId }
}
