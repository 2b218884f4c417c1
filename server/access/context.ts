// What the handler of an RPC gets in addition to its request, by its row of the access policy: caller, target, and a
// transaction that checks both again. A handler has no other access to them.
import type { DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { Changes } from '../../proto/gen/auth/v1/changes_pb.js'
import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Transaction } from '../database/connection.js'
import type { Device } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { User } from '../models/user.js'
import type { changesPolicies } from '../policy/changes.js'
import type { forgotPasswordsPolicies } from '../policy/forgotpasswords.js'
import type { Policy, UserPolicy } from '../policy/policy.js'
import type { usersPolicies } from '../policy/users.js'
import type { Call, CallingService } from '../requests/call.js'
import type { Caller } from './caller.js'
import type { Claims } from './tokens.js'

/** An open transaction. */
export interface Change {
  readonly t: Transaction
  /** Appends an audit event of the caller in the transaction. The RPC's row must list its action. */
  record(event: Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>): Promise<void>
}

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
  /**
   * Runs a change as one transaction. The transaction locks caller and target and checks them again: it refuses with
   * INVALID_TOKEN when the session has been revoked, with ACCESS_DENIED when the caller has lost the permission, and
   * with USER_NOT_FOUND when the target is gone.
   */
  transact<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** The context of an RPC, by its row. */
export type ContextOf<P extends Policy> = P extends UserPolicy
  ? UserContext<P>
  : P extends { readonly caller: 'service' }
    ? ServiceContext
    : P extends { readonly device: true }
      ? DeviceContext
      : OpenContext

/** The handler of an RPC. It throws a `Refusal` to refuse. */
export type Handler<M extends DescMethodUnary, P extends Policy> = (
  request: MessageShape<M['input']>,
  context: ContextOf<P>,
) => Promise<MessageInitShape<M['output']>>

/** A handler with the checks that precede it, in this order. */
export interface Steps<M extends DescMethodUnary, P extends Policy> {
  /** Refuses a caller that reached its limits, from the cache: before any statement of the database. */
  admit?(request: MessageShape<M['input']>, caller: { claims: Claims; call: Call }): Promise<void>
  /** Checks the shape of the request: after the permissions of the caller, before the existence of the target. */
  check?(request: MessageShape<M['input']>, context: { call: Call; target: User | undefined }): void
  readonly handle: Handler<M, P>
}

/** The implementation of an RPC with the row `P`. */
export type Rpc<M extends DescMethodUnary, P extends Policy> = Handler<M, P> | Steps<M, P>

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
