// The line of a call in the access log: how it ended, for whom, and how long it took.
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { traceIdOf } from '../observability/tracing.js'
import type { Call } from '../requests/call.js'
import { network } from '../requests/client-address.js'
import type { Refusal } from '../requests/refusal.js'

/** How a call ended: its gRPC status, and the reason of its refusal. */
interface Outcome {
  readonly status: string
  readonly reason: string | undefined
}

/** Tolerance in ms: a disconnection this close to the deadline counts as DEADLINE_EXCEEDED. */
const margin = 100

/** Returns the outcome of a call: CANCELLED if it ended because its caller disconnected before the deadline. */
export function outcomeOf({ gone, deadline }: Call, refusal: Refusal | undefined): Outcome {
  if (!refusal) return { status: 'OK', reason: undefined }
  const { codeName, reason } = refusal
  // No caller gets this refusal, so it needs no separate reason.
  if (reason === Reason.DEADLINE_EXCEEDED && gone && Date.now() < deadline - margin)
    return { status: 'CANCELLED', reason: undefined }
  return { status: codeName, reason: Reason[reason]! }
}

/**
 * Returns the line of a call: RPC, outcome, duration in ms, caller and network. It contains no free
 * text from the caller: the endpoints validate ids.
 */
export function accessLine(method: DescMethodUnary, call: Call, { status, reason }: Outcome, elapsed: number) {
  return {
    rpc: method.name,
    status,
    reason,
    ms: Math.round(elapsed * 10) / 10,
    requestId: call.requestId,
    traceId: traceIdOf(call.traceparent),
    user: call.user,
    service: call.service?.name ?? call.certificate ?? call.client,
    // The network rather than the address, because limits count by network.
    network: network(call.address),
    endpoint: call.endpoint,
  }
}
