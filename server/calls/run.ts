// Runs every call, at every endpoint, with a deadline, translated errors, the access log and metrics.
//
// This folder owns calls: the transports, over gRPC (grpc.ts, peer.ts) and within the process for the gateway and the
// command line (in-process.ts), the error details of a refusal (error-details.ts), the steps that apply the policy of an RPC in
// the access policy (steps.ts), and what an RPC gets of them (context.ts). The folders users/, forgotpasswords/, changes/
// and administration/ implement the RPCs.

import { create, type DescMethodUnary, type DescService, type Message, type MessageInitShape } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/grpc/health/v1/health_pb.js'
import type { ServiceKeys } from '../access/service-keys.js'
import { isSchemaError, isUnreachable } from '../database/failures.js'
import type { Scheduler } from '../limits/scheduler.js'
import { flatLog, type Log } from '../observability/log.js'
import { describeSpan, inSpan, readParent, SpanKind, traceIdOf, tracing } from '../observability/tracing.js'
import { needsOf, type Policy, protocolCost, reasonsOf } from '../policy/policy.js'
import { checkShape, type IncomingCall } from '../requests/call.js'
import { checkPresence, deadlineOf, inTime } from '../requests/deadline.js'
import { type Limit, Refusal } from '../requests/refusal.js'
import { advise } from '../rules/remedies.js'
import { accessLine, outcomeOf } from './access-log.js'

/** Receives the outcome of each call, for metrics: OK, the reason of its refusal, or CANCELLED. */
export type Observe = (method: DescMethodUnary, outcome: string, seconds: number) => void

/** Runs calls. */
export interface Calls {
  /** The services whose RPCs it runs. */
  readonly services: readonly DescService[]
  /** Runs an RPC until it ends, or until the caller's deadline or the time limit of its policy. Throws only `Refusal`. */
  run(method: DescMethodUnary, request: Message, call: IncomingCall): Promise<Message>
}

/** An RPC behind its policy. */
export interface BoundRpc {
  readonly policy: Policy
  handle(request: Message, call: IncomingCall): Promise<MessageInitShape<DescMethodUnary['output']>>
}

/** Dependencies of `createCalls`. */
export interface CallsDeps {
  /** The RPCs of each service. */
  readonly services: readonly (readonly [DescService, readonly (readonly [DescMethodUnary, BoundRpc])[]])[]
  /** Authenticates the calling service; absent at an endpoint that accepts no service keys. */
  readonly serviceKeys?: ServiceKeys
  /** Decides when calls with networks begin; absent at an endpoint without such calls. */
  readonly scheduler?: Scheduler | undefined
  /** Name of separate shares and lines in the scheduler: other calls from the same networks don't delay these. */
  readonly group?: string
  /** Whether this process accepts calls. */
  readonly ready: () => Promise<boolean>
  readonly log: Log
  readonly observe: Observe
  /** Receives the limit that refused a call. */
  readonly refused: (limit: Limit) => void
}

/**
 * Creates the calls of the services, and adds the health check (grpc.health.v1), which reports `ready`.
 */
export function createCalls(deps: CallsDeps): Calls {
  const bound = new Map(deps.services.flatMap(([, rpcs]) => rpcs))
  bound.set(Health.method.check, {
    policy: { caller: 'anyone', repeated: true, reasons: [], audit: [], limits: [] },
    async handle(_request, call) {
      checkShape(call)
      const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus
      return { status: (await deps.ready()) ? SERVING : NOT_SERVING }
    },
  })

  const { scheduler, serviceKeys, group } = deps
  const accessLog = flatLog(deps.log)
  const take = (networks: readonly string[], policy: Policy, call: IncomingCall) => {
    const { cost, hashes } = needsOf(policy)
    const service = serviceKeys?.cachedName(call.authorization)
    const names = service === undefined ? networks : [`service ${service}`]
    const inGroup = group ? names.map(name => `${group} ${name}`) : names
    const claim = {
      networks: inGroup,
      cost: cost + protocolCost.grpc + (call.inputCost ?? 0),
      hashes,
      deadline: call.deadline,
    }
    return scheduler!.take(claim, call)
  }
  async function begin({ handle }: BoundRpc, request: Message, call: IncomingCall) {
    const key = serviceKeys?.read(call)
    if (key !== undefined) await serviceKeys!.authenticate(call, key)
    checkPresence(call)
    return await handle(request, call)
  }

  const run: Calls['run'] = async (method, request, call) => {
    const startedAt = performance.now()
    const rpc = bound.get(method)!
    let refusal: Refusal | undefined
    call.deadline = deadlineOf(call, rpc.policy.seconds)
    try {
      // A call over HTTP has its turn from the gateway, and has no networks here.
      using turn = call.networks && scheduler && (await take(call.networks, rpc.policy, call))
      if (turn) call.turn = turn
      const left = call.deadline - Date.now()
      if (left <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
      return create(method.output, await inTime(left, Reason.DEADLINE_EXCEEDED, begin(rpc, request, call)))
    } catch (error) {
      refusal = toRefusal(error, rpc.policy)
      const { reason, more } = refusal
      if (more.limit) deps.refused(more.limit)
      // The documentation and the gateway rely on the reasons and limits of the policies.
      if (refusal === error && !listsRefusal(rpc.policy, refusal))
        deps.log.error({ rpc: method.name, reason: Reason[reason] }, unlistedRefusal)
      if (refusal !== error || reason === Reason.INTERNAL) {
        const { requestId, traceparent } = call
        const traceId = traceIdOf(traceparent)
        deps.log.error({ rpc: method.name, requestId, traceId, err: error }, 'call failed')
      }
      throw refusal
    } finally {
      const elapsed = performance.now() - startedAt
      const outcome = outcomeOf(call, refusal)
      if (tracing && refusal) describeSpan({ 'auth.reason': outcome.reason })
      deps.observe(method, outcome.reason ?? outcome.status, elapsed / 1000)
      const level = rpc.policy.repeated && !refusal ? 'debug' : 'info'
      if (accessLog.isLevelEnabled(level)) accessLog[level](accessLine(method, call, outcome, elapsed), 'call')
    }
  }
  return { services: deps.services.map(([service]) => service), run: tracing ? inCallSpan(run) : run }
}

/** Log message for a refusal that the policy of its RPC doesn't list. */
const unlistedRefusal = 'the refusal has a reason or limit that the policy of the RPC does not list'

/** Whether the policy of an RPC lists the reason and the limit of a refusal. Keys of services come before every policy. */
function listsRefusal(policy: Policy, { reason, more }: Refusal): boolean {
  if (more.limit === 'serviceKeys') return true
  const reasons: readonly string[] = reasonsOf(policy)
  return reasons.includes(Reason[reason]!) && (!more.limit || policy.limits.includes(more.limit))
}

/** Runs each call in a span, which is a child of the caller's span. */
function inCallSpan(run: Calls['run']): Calls['run'] {
  return (method, request, call) => {
    const { typeName } = method.parent
    const attributes = {
      'rpc.system': 'grpc',
      'rpc.service': typeName,
      'rpc.method': method.name,
      'auth.request_id': call.requestId,
    }
    const parent = readParent(name => (name === 'traceparent' || name === 'tracestate' ? call[name] : undefined))
    const span = { name: `${typeName}/${method.name}`, kind: SpanKind.SERVER, attributes, parent }
    return inSpan(span, () => run(method, request, call))
  }
}

/** Text for administrators when the tables aren't those of this version. */
const unmigrated = `The tables of the database don’t match this version of the service. ${advise('compare migrations')}`

/** Returns the refusal that the caller sees for an error. */
function toRefusal(error: unknown, { caller }: Policy): Refusal {
  if (error instanceof Refusal) return error
  const refusal = isUnreachable(error)
    ? new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
    : caller === 'administrator' && isSchemaError(error)
      ? new Refusal(Reason.WRONG_STATE, { text: unmigrated })
      : new Refusal(Reason.INTERNAL)
  // The command line on the database itself prints the cause. No endpoint sends it.
  return Object.assign(refusal, { cause: error })
}
