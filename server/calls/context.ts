// What the function of an RPC gets in addition to its request, by its row of the access policy: its caller, its target, and a
// transaction that checks both again. It has no other access to them.
import type { DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
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
import type { AdministrationPolicy, Policy, UserPolicy } from '../policy/row.js'
import type { usersPolicies } from '../policy/users.js'
import type { Call, CallingService } from '../requests/call.js'

/** An open transaction. */
export interface Change {
  readonly t: Transaction
  /** Appends an audit event of the caller in the transaction. The RPC's row must list its action. */
  record(event: Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>): Promise<void>
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
interface OpenContext {
  readonly call: Call
}

/** The context of an RPC that takes an earlier token as a device cookie. */
interface DeviceContext extends OpenContext {
  readonly device: Device | undefined
}

/** The context of an RPC for services. */
interface ServiceContext extends OpenContext {
  readonly service: CallingService
}

/** The context of an RPC for users. */
interface UserContext<P extends UserPolicy> extends OpenContext {
  /** The user that calls; undefined for a service, where the row admits one. */
  readonly caller: P extends { readonly scope: string } ? Caller | undefined : Caller
  /** The user that the RPC reads or changes. */
  readonly target: User
  readonly transact: Transact<AdministeredUserRow>
}

/** What requests of Administration refer to, by the kinds that rows name. */
export interface Records {
  readonly user: AdministeredUserRow
  readonly organization: OrganizationRow
  readonly question: QuestionRow
}

/** The context of an RPC of Administration. */
export interface AdministrationContext<Target = unknown> extends OpenContext {
  readonly administrator: Administrator
  /** What the request refers to, as it was found. */
  readonly target: Target
  readonly transact: Transact<Target>
}

/** The context of an RPC, by its row. */
type ContextOf<P extends Policy> = P extends AdministrationPolicy
  ? AdministrationContext<P extends { readonly target: infer K extends keyof Records } ? Records[K] : unknown>
  : P extends UserPolicy
    ? UserContext<P>
    : P extends { readonly caller: 'service' }
      ? ServiceContext
      : P extends { readonly device: true }
        ? DeviceContext
        : OpenContext

/** The function of an RPC. It throws a `Refusal` to refuse. */
export type Handler<M extends DescMethodUnary, P extends Policy> = (
  request: MessageShape<M['input']>,
  context: ContextOf<P>,
) => Promise<MessageInitShape<M['output']>>

/** What the check of a request gets: the caller, and the user that it names, if the caller is one and there is such a user. */
type CheckContext<P extends Policy> = P extends AdministrationPolicy
  ? Pick<AdministrationContext, 'call' | 'administrator'>
  : P extends UserPolicy
    ? Pick<UserContext<P>, 'call' | 'caller'> & { readonly target: User | undefined }
    : OpenContext & { readonly target: User | undefined }

/** An RPC with the steps that precede its function. */
export interface Steps<M extends DescMethodUnary, P extends Policy, Read = unknown> {
  /** Refuses a caller that reached its limits, from the cache: before any statement of the database. */
  admit?(request: MessageShape<M['input']>, caller: { claims: Claims; call: Call }): Promise<void>
  /** Checks the request after the permissions of the caller, and before the existence of the target. */
  check?(request: MessageShape<M['input']>, context: CheckContext<P>): Read
  /** Gets what `check` has read of the request. */
  handle(request: MessageShape<M['input']>, context: ContextOf<P>, read: Read): ReturnType<Handler<M, P>>
}

/** The implementation of an RPC with the row `P`. */
type Rpc<M extends DescMethodUnary, P extends Policy> = Handler<M, P> | Steps<M, P>

/** The RPCs of a service, by the rows of its policy. */
export type RpcsOf<S extends { readonly method: object }, Rows> = {
  readonly [K in keyof S['method'] & keyof Rows]: S['method'][K] extends DescMethodUnary
    ? Rows[K] extends Policy
      ? Rpc<S['method'][K], Rows[K]>
      : never
    : never
}

export type UsersRpcs = RpcsOf<typeof Users, typeof usersPolicies>
export type ForgotPasswordsRpcs = RpcsOf<typeof ForgotPasswords, typeof forgotPasswordsPolicies>
export type ChangesRpcs = RpcsOf<typeof Changes, typeof changesPolicies>
export type AdministrationRpcs = RpcsOf<typeof Administration, typeof administrationPolicies>

/** An RPC of Administration whose function gets what `check` has read of the request. */
export type Checked<K extends keyof typeof administrationPolicies, Read = void> = Steps<
  (typeof Administration)['method'][K],
  (typeof administrationPolicies)[K],
  Read
>
