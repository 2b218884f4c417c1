// What the function of an RPC gets in addition to its request, by its policy: its caller, its target, and a
// transaction that checks both again. It has no other access to them.
import type { DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { OpenId } from '../../proto/gen/auth/v1/openid_pb.js'
import type { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Caller } from '../access/caller.js'
import type { Claims } from '../access/tokens.js'
import type { Transaction } from '../database/database.js'
import type { AdministeredUserRow } from '../models/administered-user.js'
import type { Device } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { OrganizationRow } from '../models/organization.js'
import type { QuestionRow } from '../models/question.js'
import type { User } from '../models/user.js'
import type { administrationPolicies } from '../policy/administration.js'
import type { changesPolicies } from '../policy/changes.js'
import type { forgotPasswordsPolicies } from '../policy/forgotpasswords.js'
import type { openIdPolicies } from '../policy/openid.js'
import type { AdministrationPolicy, Policy } from '../policy/policy.js'
import type { usersPolicies } from '../policy/users.js'
import type { Call, CallingService } from '../requests/call.js'

/** An open transaction. */
export interface Change {
  readonly t: Transaction
  /**
   * Appends an audit event of the caller in the transaction. The RPC's policy must list its action. `after` is its subject as the
   * change leaves it, where the RPC has read it.
   */
  record(
    event: Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>,
    after?: AdministeredUserRow,
  ): Promise<void>
}

/**
 * Runs a change as one transaction, short unless it is `unlimited`. The transaction locks caller and target, and permits both
 * again as they are then: it refuses with INVALID_TOKEN when the session was revoked meanwhile, with ACCESS_DENIED or
 * SIGN_IN_AGAIN when the caller has lost the permission, and with the reason of a missing target when it is gone. `work` gets
 * the target as it is then; it stays so until the end. With `validate_only` everything is checked, and nothing is kept.
 */
export type Transact<Target> = <T>(
  work: (change: Change & { readonly target: Target }) => Promise<T>,
  options?: { readonly unlimited?: boolean },
) => Promise<T>

/** The context of every RPC. */
interface CallContext {
  readonly call: Call
}

/** The context of an RPC that is the same for every caller. */
interface OpenContext extends CallContext {
  /** Where the call comes from, for a policy with `device`. */
  readonly device: Device | undefined
}

/** The context of an RPC for services. */
export interface ServiceContext extends CallContext {
  readonly service: CallingService
}

/** The context of an RPC that reads a user, for users and services. */
interface LookUpContext extends CallContext {
  /** The user that calls; undefined for a service. */
  readonly caller: Caller | undefined
  /** The user that the RPC reads. */
  readonly target: User
}

/** The context of an RPC for users. */
interface UserContext extends CallContext {
  /** The user that calls. */
  readonly caller: Caller
  /** The user that the RPC reads or changes. */
  readonly target: User
  readonly transact: Transact<AdministeredUserRow>
}

/** What requests of Administration refer to, by the kinds that policies name. */
export interface Records {
  readonly registry: undefined
  readonly user: AdministeredUserRow
  readonly organization: OrganizationRow
  readonly question: QuestionRow
}

/** The context of an RPC of Administration. */
export interface AdministrationContext<Target = unknown> extends CallContext {
  readonly administrator: Administrator
  /** What the request refers to, as it was found. */
  readonly target: Target
  readonly transact: Transact<Target>
}

/** What the check of a request gets: the caller, and the user that it names, if there is such a user. */
interface UserCheck extends Pick<UserContext, 'call' | 'caller'> {
  readonly target: User | undefined
}
type AdministrationCheck = Pick<AdministrationContext, 'call' | 'administrator'>

/** What RPCs of the public endpoints get, by the callers in their policies: first their function, then the check of their request. */
export interface PublicContexts {
  readonly anyone: [OpenContext, CallContext]
  readonly user: [UserContext, UserCheck]
  readonly 'user or service': [LookUpContext, CallContext]
  readonly service: [ServiceContext, CallContext]
}

/** What RPCs of Administration get, by their targets. */
export type AdministrationContexts = {
  readonly [K in keyof Records]: [AdministrationContext<Records[K]>, AdministrationCheck]
}

type ContextsOf<P extends Policy> = P extends AdministrationPolicy
  ? AdministrationContexts[P['target']]
  : P extends { readonly caller: infer C extends keyof PublicContexts }
    ? PublicContexts[C]
    : never

/** The function of an RPC. It throws a `Refusal` to refuse. */
export type Handler<M extends DescMethodUnary, Context> = (
  request: MessageShape<M['input']>,
  context: Context,
) => Promise<MessageInitShape<M['output']>>

/** An RPC with the steps that precede its function. */
export interface Steps<M extends DescMethodUnary, Contexts extends [unknown, unknown], Read = unknown> {
  /** Refuses a caller that reached its limits, from the cache: before any statement of the database. */
  admit?(request: MessageShape<M['input']>, caller: { claims: Claims; call: Call }): Promise<void>
  /** Checks the request after the permissions of the caller, and before the existence of the target. */
  check?(request: MessageShape<M['input']>, context: Contexts[1]): Read
  /** Gets what `check` has read of the request. */
  handle(request: MessageShape<M['input']>, context: Contexts[0], read: Read): ReturnType<Handler<M, Contexts[0]>>
}

/** The implementation of an RPC that gets these contexts. */
export type Rpc<M extends DescMethodUnary, Contexts extends [unknown, unknown]> =
  | Handler<M, Contexts[0]>
  | Steps<M, Contexts>

/** The RPCs of a service, by their policies. */
type RpcsOf<S extends { readonly method: object }, Policies> = {
  readonly [K in keyof S['method'] & keyof Policies]: S['method'][K] extends DescMethodUnary
    ? Policies[K] extends Policy
      ? Rpc<S['method'][K], ContextsOf<Policies[K]>>
      : never
    : never
}

export type UsersRpcs = RpcsOf<typeof Users, typeof usersPolicies>
export type ForgotPasswordsRpcs = RpcsOf<typeof ForgotPasswords, typeof forgotPasswordsPolicies>
export type OpenIdRpcs = RpcsOf<typeof OpenId, typeof openIdPolicies>
export type ChangesRpcs = RpcsOf<typeof Changes, typeof changesPolicies>
export type AdministrationRpcs = RpcsOf<typeof Administration, typeof administrationPolicies>

/** An RPC of Administration whose function gets what `check` has read of the request. */
export type Checked<K extends keyof typeof administrationPolicies, Read = void> = Steps<
  (typeof Administration)['method'][K],
  ContextsOf<(typeof administrationPolicies)[K]>,
  Read
>
