import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import type { AuditEvent } from '../models/audit.js'
import type { User, Users } from '../models/user.js'
import { refuse } from '../refusal.js'
import type { Claims, Session, Tokens } from './tokens.js'

/** Who calls, and by which session. */
export interface Caller {
  readonly user: User
  readonly session: Session
  /** Whether it may act for anybody: an active ROLE_ADMIN. */
  readonly admin: boolean
}

/** Finds out who calls: the first two checks of every protected operation. */
export interface Callers {
  /** The token's holder. Refuses with ACCESS_DENIED without a token, INVALID_TOKEN with a bad one. */
  identify(call: Call): Promise<Caller>
  /** What the token says of its holder, who may be gone and the token revoked; refuses likewise. Told from memory. */
  claimsOf(call: Call): Promise<Claims>
  /** The token's holder, with what the token says. */
  identifyClaims(call: Call): Promise<{ caller: Caller; claims: Claims }>
  /** The same, and the user with a username (undefined when nobody has it), read in one statement. */
  identifyWith(call: Call, usernameKey: string): Promise<{ caller: Caller; target: User | undefined }>
  /** The token's holder, for a token given by itself; undefined when it is bad. */
  introspect(token: string): Promise<{ caller: Caller; claims: Claims } | undefined>
}

/** Finds callers among users by their tokens. */
export function createCallers(tokens: Tokens, users: Pick<Users, 'asCaller' | 'asCallerWith'>): Callers {
  const claimsOf = (call: Call) => {
    // What is open to services never asks for a token.
    if (call.service) refuse(Reason.ACCESS_DENIED)
    const [, token] = /^Bearer +([^\s]+)\s*$/i.exec(call.authorization ?? '') ?? []
    if (!token) {
      // `Bearer` with something that can't be a token is a bad token; anything else is none.
      refuse(/^Bearer +\S/i.test(call.authorization ?? '') ? Reason.INVALID_TOKEN : Reason.ACCESS_DENIED)
    }
    return tokens.verify(token)
  }
  async function identifyClaims(call: Call) {
    const claims = await claimsOf(call)
    const user = await users.asCaller(Number(claims.sub), claims.kid)
    return { caller: heed(call, admit(claims, user) ?? refuse(Reason.INVALID_TOKEN)), claims }
  }
  return {
    claimsOf,
    identifyClaims,
    identify: async call => (await identifyClaims(call)).caller,
    async identifyWith(call, usernameKey) {
      const claims = await claimsOf(call)
      const { caller, target } = await users.asCallerWith(Number(claims.sub), claims.kid, usernameKey)
      return { caller: heed(call, admit(claims, caller) ?? refuse(Reason.INVALID_TOKEN)), target }
    },
    async introspect(token) {
      const claims = await tokens.verify(token).catch(error => {
        if (error?.reason === Reason.INVALID_TOKEN) return undefined
        throw error
      })
      const caller = claims && admit(claims, await users.asCaller(Number(claims.sub), claims.kid))
      return caller && { caller, claims }
    },
  }
}

/** The caller, unless the token is revoked or the user gone or suspended. */
function admit(claims: Claims, user: User | undefined): Caller | undefined {
  if (!user || user.suspended || user.tokenGeneration !== claims.ver) return undefined
  const session = { method: claims.amr[0], startedAt: claims.auth_time }
  return { user, session, admin: user.role === 'ROLE_ADMIN' && user.active }
}

/** Has the call's access line name the caller. */
function heed(call: Call, caller: Caller): Caller {
  call.user = caller.user.id
  return caller
}

/** What events of a call have in common: which service or who, from where. */
export function traces(
  call: Call,
  caller?: Pick<User, 'id'>,
): Pick<AuditEvent, 'actor' | 'actor_id' | 'address' | 'request_id'> {
  const from = { address: call.address, request_id: call.requestId }
  const actor = call.service ? `service:${call.service.name}` : caller ? 'user' : 'anonymous'
  return { actor, ...(caller && { actor_id: caller.id }), ...from }
}
