// What an RPC of Administration gets in addition to its request, by its row of the access policy: the administrator, the record
// that the request refers to, and the only way to change something.
import type { DescMessage, DescMethodUnary, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Administrator } from '../access/administrator.js'
import type { Change } from '../access/context.js'
import type { administrationPolicies } from '../policy/administration.js'
import type { Call } from '../requests/call.js'
import type { References } from './references.js'

type Policies = typeof administrationPolicies

/** What requests refer to, by the kinds that rows name. */
type Targets = { readonly [K in keyof References]: Awaited<ReturnType<References[K]>> }

/** What an RPC gets. */
export interface AdministrationContext<Target = unknown> {
  readonly call: Call
  readonly administrator: Administrator
  /** What the request refers to, as it was found: a change locks it and looks again. */
  readonly target: Target
  /**
   * Runs a change as one transaction, short unless it is `unlimited`; with `validateOnly` everything is checked and nothing
   * is kept. It begins with a check of the caller as it is then, and refuses with INVALID_TOKEN when its session was revoked
   * meanwhile. The caller, and a user that is the target, stay as they are until its end. It ends with a check of the sign-in
   * by the roles of the users that its events name.
   */
  change<T>(
    request: { readonly validateOnly: boolean },
    work: (change: Change) => Promise<T>,
    options?: { unlimited?: boolean },
  ): Promise<T>
  /**
   * The same for a creation: one that is repeated with the same request id within a day gets the first answer, without
   * what is in its field `key`.
   */
  create<I extends DescMessage, O extends DescMessage>(
    rpc: DescMethodUnary<I, O>,
    request: MessageShape<I> & { readonly validateOnly: boolean; readonly requestId?: string },
    work: (change: Change) => Promise<MessageInitShape<O>>,
  ): Promise<MessageShape<O>>
}

/** What the RPC of a name gets. */
export type ContextOf<K extends keyof Policies> = Policies[K] extends { readonly target: infer T extends keyof Targets }
  ? AdministrationContext<Targets[T]>
  : Policies[K] extends { readonly caller: 'anyone' }
    ? { readonly call: Call }
    : AdministrationContext

type Methods = (typeof Administration)['method']

/** The function of an RPC. It throws `Refusal` (refusal.ts) to refuse. */
export type Handler<K extends keyof Policies> = (
  request: MessageShape<Methods[K]['input']>,
  context: ContextOf<K>,
) => Promise<MessageInitShape<Methods[K]['output']>>

/** An RPC whose request is checked before what it refers to is looked for: `handle` gets what `check` has read of it. */
export interface Checked<K extends keyof Policies, Read = void> {
  check(request: MessageShape<Methods[K]['input']>, context: { readonly administrator: Administrator }): Read
  handle(request: MessageShape<Methods[K]['input']>, context: ContextOf<K>, read: Read): ReturnType<Handler<K>>
}

/** An RPC of Administration. */
export type Rpc<K extends keyof Policies> = Handler<K> | Checked<K, unknown>

/** The RPCs of Administration. */
export type AdministrationRpcs = { readonly [K in keyof Policies]: Rpc<K> }
