// What every call has in common, whichever endpoint it came through: deadline, translation of faults, log and metrics.
//
// This room owns the life of a call: how it gets in and out over gRPC (grpclistener.ts, grpc.ts) and from a gateway or the
// command line in the same process (inprocess.ts), what a refusal tells machines (errordetails.ts), and the steps by which
// its row of the access policy is applied (users.ts, administration.ts). What an RPC does is users/', forgotpasswords/' and
// administration/'. Only the program's wiring uses it.
import { create, type DescMethodUnary, type DescService, type Message, type MessageInitShape } from '@bufbuild/protobuf'
import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/health/v1/health_pb.js'
import type { ServiceKeys } from '../access/service-keys.js'
import { isUnreachable } from '../database/failures.js'
import type { Scheduler } from '../limits/scheduler.js'
import { Turn } from '../limits/turn.js'
import { flatLog, type Log } from '../observability/log.js'
import { describeSpan, inSpan, readParent, SpanKind, traceIdOf, tracing } from '../observability/tracing.js'
import { type Policy, usualCost } from '../policy/policy.js'
import { reasonsOf } from '../policy/reasons.js'
import { type Call, checkPresence, type IncomingCall } from '../requests/call.js'
import { network } from '../requests/client-address.js'
import { type Limit, Refusal } from '../requests/refusal.js'

/** What the service reports of each call, for metrics. */
export type Observe = (method: DescMethodUnary, reason: Reason | undefined, seconds: number) => void

/** All RPCs, behind what every call has in common whichever endpoint it comes through. */
export interface Calls {
  /** The services that they are of. */
  readonly services: readonly DescService[]
  /** Runs an RPC to its end, its caller's deadline, or the time that its row gives. Throws nothing but `Refusal`. */
  run(method: DescMethodUnary, request: Message, call: IncomingCall): Promise<Message>
}

/** An RPC behind its row. */
export interface Run {
  readonly policy: Policy
  run(request: Message, call: IncomingCall): Promise<MessageInitShape<DescMethodUnary['output']>>
}

/** Seconds that a call may take from its arrival unless its row says otherwise. */
const usualSeconds = 15

/**
 * Puts the services behind the deadline, the translation of faults, the log and the metrics. With them goes the health
 * check (grpc.health.v1), which says whether this process is `ready`.
 */
export function createCalls(deps: {
  /** The RPCs of each service. */
  services: readonly (readonly [DescService, ReadonlyMap<DescMethodUnary, Run>])[]
  /** Finds which service calls; absent where keys of services open nothing. */
  serviceKeys?: ServiceKeys
  /** Says when calls begin that come with networks; absent where none do. */
  scheduler?: Scheduler
  ready: () => Promise<boolean>
  log: Log
  observe: Observe
  /** Told of the limit that a call was refused by. */
  refused: (limit: Limit) => void
}): Calls {
  const runs = new Map(deps.services.flatMap(([, rpcs]) => [...rpcs]))
  runs.set(Health.method.check, {
    policy: { caller: 'anyone', reasons: [], audit: [], limits: [] },
    async run() {
      const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus
      return { status: (await deps.ready()) ? SERVING : NOT_SERVING }
    },
  })

  const { scheduler, serviceKeys } = deps
  const access = flatLog(deps.log)
  const turnOf = ({ policy }: Run, call: IncomingCall) => {
    const { networks, deadline } = call
    if (!networks || !scheduler) return undefined
    const service = serviceKeys?.cachedName(call.authorization)
    const { cost = usualCost } = policy
    return new Turn(scheduler, service === undefined ? networks : [`service ${service}`], cost, deadline)
  }
  const run: Calls['run'] = async (method, request, call) => {
    const startedAt = performance.now()
    const rpc = runs.get(method)!
    let refusal: Refusal | undefined
    call.deadline = Math.min(call.deadline, Date.now() + (rpc.policy.seconds ?? usualSeconds) * 1000)
    try {
      using turn = turnOf(rpc, call)
      // A call over HTTP had its turn at the listener.
      if (turn) {
        call.work = turn
        await turn.take(call)
      }
      const response = await inTime(call, async () => {
        const key = serviceKeys?.read(call)
        if (key !== undefined) await serviceKeys!.authenticate(call, key)
        checkPresence(call)
        return rpc.run(request, call)
      })
      return create(method.output, response)
    } catch (error) {
      refusal = toRefusal(error)
      const { reason, more } = refusal
      if (more.limit) deps.refused(more.limit)
      // Documentation and gateway go by the rows.
      if (!names(rpc.policy, refusal)) deps.log.error({ rpc: method.name, reason: Reason[reason] }, unnamed)
      if (reason === Reason.INTERNAL || reason === Reason.UNAVAILABLE) {
        const { requestId, traceparent } = call
        const traceId = traceIdOf(traceparent)
        deps.log.error({ rpc: method.name, requestId, traceId, err: error }, 'call failed')
      }
      throw refusal
    } finally {
      const elapsed = performance.now() - startedAt
      deps.observe(method, refusal?.reason, elapsed / 1000)
      // Probes come every few seconds and tell nothing of who uses the service.
      const level = method === Health.method.check ? 'debug' : 'info'
      if (access.isLevelEnabled(level)) access[level](accessOf(method, call, refusal, elapsed), 'call')
    }
  }
  return { services: deps.services.map(([service]) => service), run: tracing ? inCallSpan(run) : run }
}

/** What is logged of a refusal that the row of its RPC doesn't name: a fault of the row. */
const unnamed = 'refused for a reason or by a limit that the row of the RPC does not name'

/** Whether the row of an RPC names why it refused. */
function names(policy: Policy, { reason, more }: Refusal): boolean {
  const reasons: readonly string[] = reasonsOf(policy)
  return reasons.includes(Reason[reason]!) && (!more.limit || policy.limits.includes(more.limit))
}

/** Runs each call as a span, a part of its caller's. */
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
    return inSpan({ name: `${typeName}/${method.name}`, kind: SpanKind.SERVER, attributes, parent }, async () => {
      try {
        return await run(method, request, call)
      } catch (refusal) {
        describeSpan({ 'auth.reason': Reason[(refusal as Refusal).reason] })
        throw refusal
      }
    })
  }
}

/**
 * The access line of a call: what was called, how it ended, in how many ms, and who called from which network. Nothing in
 * it is what a caller typed: ids are checked where they come in.
 */
function accessOf(method: DescMethodUnary, call: Call, refusal: Refusal | undefined, elapsed: number) {
  return {
    rpc: method.name,
    status: refusal ? statusNames[refusal.code] : 'OK',
    reason: refusal && Reason[refusal.reason],
    ms: Math.round(elapsed * 10) / 10,
    requestId: call.requestId,
    traceId: traceIdOf(call.traceparent),
    user: call.user,
    service: call.service?.name ?? call.certificate,
    // What limits count by, so that whoever is refused is found.
    network: network(call.address),
    endpoint: call.endpoint,
  }
}

/** Names of gRPC status codes as everybody writes them, such as `NOT_FOUND`. */
const statusNames = Object.fromEntries(
  Object.values(Code)
    .filter(code => typeof code === 'number')
    .map(code => [code, Code[code]!.replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase()]),
)

/** Stops waiting at the call's deadline. Who has gone needs no answer: what waits for long watches the signal. */
function inTime<T>(call: Call, work: () => Promise<T>): Promise<T> {
  const left = call.deadline - Date.now()
  if (left <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })), left)
    work()
      .then(resolve, reject)
      .finally(() => clearTimeout(timer))
  })
}

/** What the caller may know of a fault. */
function toRefusal(error: unknown): Refusal {
  if (error instanceof Refusal) return error
  const refusal = isUnreachable(error)
    ? new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
    : new Refusal(Reason.INTERNAL)
  // For the command line on the database itself; no endpoint shows it.
  return Object.assign(refusal, { cause: error })
}
