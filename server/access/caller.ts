import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Device } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { CallerRow, User, Users } from '../models/user.js'
import type { Call, IncomingCall } from '../requests/call.js'
import { refuse } from '../requests/refusal.js'
import { usernameKey } from '../rules/names.js'
import type { Session, Tokens, Verified } from './tokens.js'

/** Who calls, and by which session. */
export interface Caller {
  readonly user: User
  readonly session: Session
  /** Whether it is an active ROLE_ADMIN. */
  readonly admin: boolean
  /** Whether it is a ROLE_ADMIN with one-time codes. */
  readonly enrolled: boolean
}

/** A caller, with what its token says. */
export interface Identified {
  readonly caller: Caller
  readonly claims: Verified
}

/** Finds out who calls: the first two checks of every RPC with a caller. */
export interface Callers {
  /**
   * What the token says, from memory: its user may be gone, and the token revoked. Refuses with ACCESS_DENIED without a
   * token, with INVALID_TOKEN for one that isn't genuine.
   */
  claimsOf(call: IncomingCall): Promise<Verified>
  /**
   * The device that a call comes from, by a token of an earlier session: expired or revoked, it tells who signed in there.
   * Undefined without one, whatever else stands in its place.
   */
  deviceOf(call: IncomingCall): Promise<Device | undefined>
  /** The user of a token. Refuses with INVALID_TOKEN when the token is revoked, or its user gone or suspended. */
  identify(call: Call, claims: Verified): Promise<Caller>
  /** The same, and the user with a username (undefined when there is none), read in one statement. */
  identifyWith(call: Call, claims: Verified, usernameKey: string): Promise<{ caller: Caller; target: User | undefined }>
  /** The caller that a token given by itself stands for; undefined when it is bad. */
  introspect(token: string): Promise<Identified | undefined>
}

/** Finds callers among users by their tokens. */
export function createCallers(
  tokens: Tokens,
  users: Pick<Users, 'findTokenHolder' | 'findTokenHolderAndUser'>,
): Callers {
  return {
    claimsOf(call) {
      // What is open to services never asks for a token.
      if (call.service) refuse(Reason.ACCESS_DENIED)
      const token = tokenIn(call)
      if (!token) {
        // `Bearer` with something that can't be a token is a bad token; anything else is none.
        refuse(/^Bearer +\S/i.test(call.authorization ?? '') ? Reason.INVALID_TOKEN : Reason.ACCESS_DENIED)
      }
      return tokens.verify(token)
    },
    async deviceOf(call) {
      const token = tokenIn(call)
      // Whatever is wrong with it, or with reading the keys, the sign-in goes on without.
      const claims = token && (await tokens.recognize(token).catch(() => undefined))
      if (!claims) return undefined
      const { sub, username, active, amr, auth_time } = claims
      return { userId: Number(sub), usernameKey: usernameKey(username), active, session: `${amr[0]} ${auth_time}` }
    },
    async identify(call, claims) {
      return named(call, admit(claims, await users.findTokenHolder(Number(claims.sub), claims.kid)))
    },
    async identifyWith(call, claims, usernameKey) {
      const { caller, target } = await users.findTokenHolderAndUser(Number(claims.sub), claims.kid, usernameKey)
      return { caller: named(call, admit(claims, caller)), target }
    },
    async introspect(token) {
      const claims = await tokens.verify(token).catch(error => {
        if (error?.reason === Reason.INVALID_TOKEN) return undefined
        throw error
      })
      const caller = claims && admit(claims, await users.findTokenHolder(Number(claims.sub), claims.kid))
      return caller && { caller, claims }
    },
  }
}

/** The token that a call presents. */
function tokenIn({ authorization = '' }: IncomingCall): string | undefined {
  return /^Bearer +([^\s]+)\s*$/i.exec(authorization)?.[1]
}

/** The caller, unless the token is revoked or the user gone or suspended. */
function admit(claims: Verified, user: CallerRow | undefined): Caller | undefined {
  if (!user || user.suspended || user.tokenGeneration !== claims.ver) return undefined
  const session = { method: claims.amr[0], startedAt: claims.auth_time }
  return { user, session, admin: user.role === 'ROLE_ADMIN' && user.active, enrolled: user.enrolled }
}

/** Has the call's access line name the caller. Refuses with INVALID_TOKEN when there is none. */
function named(call: Call, caller: Caller | undefined): Caller {
  if (!caller) refuse(Reason.INVALID_TOKEN)
  call.user = caller.user.id
  return caller
}

/** What events of a call have in common: which service or who, from where. */
export function auditContext(
  call: Call,
  caller?: Pick<User, 'id'>,
): Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'> {
  const from = { address: call.address, request_id: call.requestId }
  const actor = call.service ? `service:${call.service.name}` : caller ? 'user' : 'anonymous'
  return { actor, ...(caller && { actor_id: caller.id }), ...from }
}
