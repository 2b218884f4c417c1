// What an RPC of users gets besides its request: its caller and its target, as its row of the access policy says. It has
// no other way to them, and none to the database but by a transaction that checks both again.
import type { DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import type { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { Transaction } from '../database/connection.js'
import type { Device } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { User } from '../models/user.js'
import type { forgotPasswordsPolicies } from '../policy/forgotpasswords.js'
import type { Policy, UserPolicy } from '../policy/policy.js'
import type { usersPolicies } from '../policy/users.js'
import type { Call, CallingService } from '../requests/call.js'
import type { Caller } from './caller.js'
import type { Claims } from './tokens.js'

/** An open transaction. */
export interface Change {
  readonly t: Transaction
  /** Appends an event, done by the caller, in the transaction. Its action must be one of the RPC's row. */
  record(event: Pick<AuditEvent, 'action' | 'subject_id' | 'object' | 'reason'>): Promise<void>
}

/** What every RPC gets. */
export interface OpenContext {
  readonly call: Call
}

/** What an RPC gets that takes an earlier token for its device. */
export interface DeviceContext extends OpenContext {
  readonly device: Device | undefined
}

/** What an RPC for services gets. */
export interface ServiceContext extends OpenContext {
  readonly service: CallingService
}

/** What an RPC for users gets. */
export interface UserContext<P extends UserPolicy> extends OpenContext {
  /** Who calls; undefined for a service, where the row lets one in. */
  readonly caller: P extends { readonly scope: string } ? Caller | undefined : Caller
  /** The user that it concerns. */
  readonly target: User
  /**
   * Runs a change as one transaction, which begins with a check of caller and target as they are then: it refuses with
   * INVALID_TOKEN when the session was revoked meanwhile, with ACCESS_DENIED when the caller may do it no longer, with
   * USER_NOT_FOUND when the target is gone. Both stay as they are until its end.
   */
  transact<T>(work: (change: Change) => Promise<T>): Promise<T>
}

/** What an RPC gets, by its row. */
export type ContextOf<P extends Policy> = P extends UserPolicy
  ? UserContext<P>
  : P extends { readonly caller: 'service' }
    ? ServiceContext
    : P extends { readonly device: true }
      ? DeviceContext
      : OpenContext

/** The function of an RPC. It throws `Refusal` (refusal.ts) to refuse. */
export type Handler<M extends DescMethodUnary, P extends Policy> = (
  request: MessageShape<M['input']>,
  context: ContextOf<P>,
) => Promise<MessageInitShape<M['output']>>

/** An RPC whose function isn't all: what comes before it, in this order. */
export interface Steps<M extends DescMethodUnary, P extends Policy> {
  /**
   * Refuses from memory a caller that is beyond its limits, before anything is asked of the database. */
  admit?(request: MessageShape<M['input']>, caller: { claims: Claims; call: Call }): Promise<void>
  /** Checks the shape of the request, when the caller may make it, and before an absent target is refused. */
  check?(request: MessageShape<M['input']>, context: { call: Call; target: User | undefined }): void
  readonly handle: Handler<M, P>
}

/** An RPC of a service, with its row. */
export type Rpc<M extends DescMethodUnary, P extends Policy> = Handler<M, P> | Steps<M, P>

/** An RPC of `auth.v1.Users`, by its name. */
export type UsersRpc<K extends keyof typeof usersPolicies> = Rpc<(typeof Users.method)[K], (typeof usersPolicies)[K]>

/** An RPC of `auth.v1.ForgotPasswords`, by its name. */
export type ForgotPasswordsRpc<K extends keyof typeof forgotPasswordsPolicies> = Rpc<
  (typeof ForgotPasswords.method)[K],
  (typeof forgotPasswordsPolicies)[K]
>
