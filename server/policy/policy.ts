// The access policy: one for each RPC, with everything that the service decides about a call except its request. The tables are
// users.ts, forgotpasswords.ts, openid.ts, changes.ts (services.ts has these four) and administration.ts; an RPC without a
// policy does not compile. limits.ts has the numbers of the limits that policies name.
//
// This room owns the policies, and what follows from a policy alone. It imports no other code of ours but generated code and types,
// and may be used everywhere. calls/ applies the policies, access/permissions.ts decides by them, the gateway takes its paths from
// them, documentation and tests read them.
import type { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Limit } from '../requests/refusal.js'
import type { ScopeName } from '../rules/scopes.js'
import type { AuditAction } from './audit-actions.js'

/** Name of a reason for which a service refuses. */
export type ReasonName = Exclude<keyof typeof Reason, 'UNSPECIFIED'>

/** A published revision of the HTTP interface. */
export type Revision = '1.0.0' | '1.0.2'

/** Where the gateway serves an RPC. */
export interface HttpPath {
  readonly method: 'GET' | 'POST' | 'PATCH'
  /** Path below the base path. A last segment in braces is a variable and gives the parameter of that name. */
  readonly path: string
  /** Revisions that have the operation; absent means both, an empty list that it is served at `/` alone. */
  readonly revisions?: readonly Revision[]
}

/** What every policy says. */
interface CommonPolicy {
  /** Reasons for which the RPC refuses, without those that `reasonsOf` adds for all RPCs, callers, targets and sign-ins. */
  readonly reasons: readonly ReasonName[]
  /** Actions of the audit events that it records. */
  readonly audit: readonly AuditAction[]
  /** Limits that may refuse it. */
  readonly limits: readonly Limit[]
  /** Where the gateway serves it; absent where only gRPC and Connect do. */
  readonly http?: HttpPath
  /** Seconds that a call may take from its arrival, where that isn't 15. Callers may ask for less. */
  readonly seconds?: number
  /**
   * Milliseconds of main thread and database that a call takes over JSON, for any outcome and without hashes, where that isn't
   * `usualCost`. The scheduler goes by it; test/attacks/costs.long.test.ts names what takes more than twice its charge.
   */
  readonly cost?: number
  /** The reason for which it refuses every permitted caller with `AUTH_STRICT`; absent where it doesn't. */
  readonly strict?: ReasonName
  /** Set where clients repeat the call every few seconds: its successes are logged at `debug` instead of `info`. */
  readonly repeated?: true
}

/** Milliseconds of main thread and database that most calls take: they read little and change nothing. */
const usualCost = 0.2

/** Milliseconds that other protocols than JSON add to the cost of each call, as measured with the smallest ones. */
export const protocolCost = { grpc: 0.1, connect: 0.2 } as const

/** What an RPC needs of the scheduler: milliseconds of main thread and database, and whether it may need a hash. */
export function needsOf({ cost = usualCost, limits }: Pick<Policy, 'cost' | 'limits'>) {
  return { cost, hashes: (limits as readonly Limit[]).includes('hashing') }
}

/** An RPC that is the same for every caller. */
interface OpenPolicy extends CommonPolicy {
  readonly caller: 'anyone'
  /** Set where an earlier token, expired or not, shows the device that the call comes from; a revoked or any other is ignored. */
  readonly device?: true
  /** Set where the RPC itself refuses fields of a wrong type, together with all other invalid fields. */
  readonly listsMalformed?: true
}

/** Sessions of a ROLE_ADMIN at the public endpoints that open little: begun by answers, or with one-time codes enrolled. */
type RestrictedSession = 'answers' | 'one-time codes'

/** Which users may call by their tokens, and for whom. */
export interface UserRights extends CommonPolicy {
  /** Which user it concerns: the caller, or the one that this field of the request names (the caller when it is blank). */
  readonly target: 'caller' | 'username' | 'usersid'
  /** The reason to refuse with when there is no such user; USER_NOT_FOUND if absent. */
  readonly missing?: ReasonName
  /** Whose tokens open their own record, active or not; absent: only other rights here open it. */
  readonly own?: 'every role' | 'ROLE_INSTITUTION'
  /**
   * Which users an active ROLE_INSTITUTION may name. It is itself a member of its organization. An RPC on clients treats all
   * other users as missing.
   */
  readonly institution?: 'members of its organization' | 'clients of its organization'
  /** Which other users an active ROLE_ADMIN may name. */
  readonly administrator?: 'any user' | 'any user but administrators'
  /** Which restricted sessions open the caller's own record. */
  readonly restricted: readonly RestrictedSession[]
}

/** An RPC for services alone. */
export interface ServicePolicy extends CommonPolicy {
  readonly caller: 'service'
  /** The scope that a service needs. Of several, it needs one: the RPC requires the others for parts of what it returns. */
  readonly scope: ScopeName | readonly ScopeName[]
}

/** What RPCs of Administration concern. */
type AdministeredKind = 'registry' | 'user' | 'organization' | 'question'

/**
 * An RPC of Administration, for an active ROLE_ADMIN by a token of that audience, for services by their keys, or on the
 * database itself.
 */
export interface AdministrationPolicy<Target extends AdministeredKind = AdministeredKind> extends CommonPolicy {
  readonly caller: 'administrator'
  /**
   * Which sign-in it needs: any session (12 hours); one of the last 15 minutes, with a one-time code where codes are
   * enrolled; or the latter when the user it concerns is a ROLE_ADMIN before or after it.
   */
  readonly signIn: 'session' | 'recent' | 'recent for administrators'
  /** Set where it is open to holders of desk, on users who aren't guarded themselves. */
  readonly desk?: true
  /** What the request refers to in the field of this name, which is found before the RPC runs, or the whole registry. */
  readonly target: Target
  /**
   * The scopes of which each opens it to a service; absent: no service may. A service signs in to nothing, so `signIn` is
   * `session`.
   */
  readonly scopes?: readonly ScopeName[]
}

/** The policies of the public endpoints, by their callers. */
export interface PublicPolicies {
  readonly anyone: OpenPolicy
  readonly user: UserRights & { readonly caller: 'user' }
  /** An RPC that changes nothing. With the scope, a service may name any user. */
  readonly 'user or service': UserRights & { readonly caller: 'user or service'; readonly scope: ScopeName }
  readonly service: ServicePolicy
}

/** The policy of an RPC. */
export type Policy = PublicPolicies[keyof PublicPolicies] | AdministrationPolicy

/** Reasons of any RPC, independent of its policy. */
export const sharedReasons = [
  'MALFORMED_REQUEST',
  'OVERLOADED',
  'UNAVAILABLE',
  'DEADLINE_EXCEEDED',
  'INTERNAL',
] as const

/** Why an RPC with a caller may refuse. */
const withCaller = ['ACCESS_DENIED', 'INVALID_TOKEN'] as const

/** Why an RPC of Administration may refuse the record that its request refers to. */
const withTarget = {
  registry: [],
  user: ['INVALID_ARGUMENT', 'USER_NOT_FOUND'],
  organization: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
  question: ['INVALID_ARGUMENT', 'RECORD_NOT_FOUND'],
} as const satisfies Record<AdministeredKind, readonly ReasonName[]>

/** Every reason for which an RPC may refuse: those of its policy, and those that it shares with others. */
export function reasonsOf(policy: Policy): readonly ReasonName[] {
  const administration = policy.caller === 'administrator' ? policy : undefined
  return [
    ...policy.reasons,
    ...sharedReasons,
    ...(policy.caller === 'anyone' ? [] : withCaller),
    ...(administration ? withTarget[administration.target] : []),
    ...(administration && administration.signIn !== 'session' ? (['SIGN_IN_AGAIN'] as const) : []),
  ]
}
