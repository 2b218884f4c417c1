// The steps of a call to an RPC of Administration: identify the administrator or the service, check the sign-in, check the
// shape of the request, find its target, and run the RPC.
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import type { Administrators } from '../access/administrator.js'
import type { Admission } from '../access/admission.js'
import type { AdministrationContext, Rpc } from '../administration/context.js'
import type { Changes } from '../administration/mutations.js'
import type { References } from '../administration/references.js'
import { administrationPolicies } from '../policy/administration.js'
import type { AdministrationPolicy, OpenPolicy } from '../policy/policy.js'
import { checkPresence, checkShape, type IncomingCall } from '../requests/call.js'
import type { BoundRpc } from './dispatch.js'

/** What the steps are made from. */
export interface AdministrationCallsDeps {
  readonly administrators: Administrators
  readonly references: References
  readonly changes: Changes
  readonly admission: Pick<Admission, 'takeServiceReads'>
}

/** The fields of a request that name its target. */
type TargetFields = { readonly [K in keyof References]?: string }

type Handle = (request: unknown, context: object, read?: unknown) => ReturnType<BoundRpc['handle']>

/** Puts the RPCs of Administration behind their rows. */
export function bindAdministration(
  deps: AdministrationCallsDeps,
  rpcs: { readonly [K in keyof typeof Administration.method]: Rpc<K> },
): Map<DescMethodUnary, BoundRpc> {
  const policies: Record<string, AdministrationPolicy | OpenPolicy> = administrationPolicies
  return new Map(
    Administration.methods.map(method => {
      const policy = policies[method.localName]!
      const rpc = rpcs[method.localName as keyof typeof rpcs] as
        | Handle
        | { check: (...given: unknown[]) => unknown; handle: Handle }
      const { check, handle: run } = typeof rpc === 'function' ? { check: undefined, handle: rpc } : rpc
      const handle: BoundRpc['handle'] =
        policy.caller === 'anyone'
          ? async (request, call) => {
              checkShape(call)
              return run(request, { call })
            }
          : async (request, call: IncomingCall) => {
              const administrator = await deps.administrators.identify(policy, call)
              administrator.permitSignIn()
              checkShape(call)
              const read = check?.(request, { administrator })
              const { target: kind } = policy
              if (call.service && kind === 'user') deps.admission.takeServiceReads(call.service.name, 1)
              const target = kind && (await deps.references[kind]((request as TargetFields)[kind]))
              // The role of a target user may require a more recent sign-in.
              if (kind === 'user' && target && 'role' in target) administrator.permitSignIn([target.role])
              checkPresence(call)
              const changes = deps.changes({
                administrator,
                policy,
                call,
                targetId: kind === 'user' ? target?.id : undefined,
              })
              return run(request, { call, administrator, target, ...changes } satisfies AdministrationContext, read)
            }
      return [method as DescMethodUnary, { policy, handle }]
    }),
  )
}
