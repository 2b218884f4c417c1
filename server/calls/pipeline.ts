// The steps of a call to any RPC, in the order in which they refuse: limits kept in memory, identity and permission of the
// caller (callers.ts), shape of the request, the check of the RPC, existence of the target, the RPC itself and, in its
// transaction, permission again (transaction.ts). A caller without permission learns nothing else about its request.
import type { DescMethodUnary, DescService, Message } from '@bufbuild/protobuf'
import type { Policy } from '../policy/policy.js'
import { checkPresence, checkShape } from '../requests/call.js'
import { type CallersDeps, enter } from './callers.js'
import type { RpcsOf, Steps } from './context.js'
import type { BoundRpc } from './dispatch.js'
import { type TransactionDeps, transactFor } from './transaction.js'

/** An RPC whose row isn't known to the compiler. */
type AnyRpc = Steps<DescMethodUnary, Policy> | Steps<DescMethodUnary, Policy>['handle']

/** Puts the RPCs of a service behind their rows, for `createCalls`. */
export function bindRpcs<S extends DescService, Rows extends { readonly [K in keyof S['method']]: Policy }>(
  deps: CallersDeps & TransactionDeps,
  service: S,
  rows: Rows,
  rpcs: RpcsOf<S, Rows>,
): readonly [DescService, ReadonlyMap<DescMethodUnary, BoundRpc>] {
  const bound = new Map(
    service.methods.map(each => {
      const method = each as DescMethodUnary
      const policy = rows[method.localName as keyof Rows]
      const rpc = rpcs[method.localName as keyof typeof rpcs] as unknown as AnyRpc
      const steps = typeof rpc === 'function' ? { handle: rpc } : rpc
      return [method, { policy, handle: bind(deps, method, policy, steps) }]
    }),
  )
  return [service, bound]
}

function bind(
  deps: CallersDeps & TransactionDeps,
  method: DescMethodUnary,
  policy: Policy,
  { admit, check, handle }: Steps<DescMethodUnary, Policy>,
): BoundRpc['handle'] {
  return async (request: Message, call) => {
    const caller = await enter(deps, policy, { request, call, admit })
    // A message that can't be decoded has no fields for the RPC to list.
    if (call.undecodable || policy.caller !== 'anyone' || !policy.listsMalformed) checkShape(call)
    const read = check?.(request, { call, ...caller.context, target: caller.named } as never)
    const target = await caller.find?.()
    checkPresence(call)
    const { changes } = caller
    const transact = changes && transactFor(deps, { method, policy, request, call, changes, target })
    return handle(request, { call, ...caller.context, target, transact } as never, read)
  }
}
