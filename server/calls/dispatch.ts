// What every call has in common, whichever endpoint it came through: deadline, translation of faults, log and metrics.
//
// This room owns how a call gets in and out: over gRPC (grpclistener.ts, grpc.ts), from a gateway in the same process
// (inprocess.ts), and what a refusal tells machines (errordetails.ts). What an RPC does is users/' and forgotpasswords/';
// service.ts hands their functions over. Only the program's wiring uses it.
import { create, type DescMethodUnary, type DescService, type Message } from '@bufbuild/protobuf'
import { Code } from '@connectrpc/connect'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/health/v1/health_pb.js'
import type { ServiceKeys } from '../access/services.js'
import type { Call } from '../call.js'
import { network } from '../clientaddress.js'
import { isUnreachable } from '../database/failures.js'
import { flatLog, type Log } from '../log.js'
import { type Limit, Refusal } from '../refusal.js'
import { describeSpan, inSpan, readParent, SpanKind, traceIdOf, tracing } from '../tracing.js'

/** What the service reports of each call, for metrics. */
export type Observe = (method: DescMethodUnary, reason: Reason | undefined, seconds: number) => void

/** All RPCs, behind what every call has in common whichever endpoint it comes through. */
export interface Calls {
  /** The services that they are of. */
  readonly services: readonly DescService[]
  /** Runs an RPC to its end, its caller's deadline or its time limit. Throws nothing but `Refusal`. */
  run(method: DescMethodUnary, request: Message, call: Call): Promise<Message>
}

/** Milliseconds that a call has from its arrival, whatever its caller allows. */
const timeLimit = 15_000

/** The same for RPCs that read or change more than a few rows, by their full names. */
const longTimeLimits = new Map(
  ['EraseUser', 'ExportUser', 'LinkQuestion', 'VerifyAuditLog', 'Diagnose'].map(name => [
    `auth.v1.Administration.${name}`,
    10 * 60_000,
  ]),
)

type Handler = (request: Message, call: Call) => Promise<Record<string, unknown>>

/**
 * Puts the services behind the deadline, the translation of faults, the log and the metrics. With them goes the health
 * check (grpc.health.v1), which says whether this process is `ready`.
 */
export function createCalls(deps: {
  /** Each service with its functions, one for each RPC. */
  services: readonly (readonly [DescService, object])[]
  /** Finds which service calls; absent where keys of services open nothing. */
  serviceKeys?: ServiceKeys
  ready: () => Promise<boolean>
  log: Log
  observe: Observe
  /** Told of the limit that a call was refused by. */
  refused: (limit: Limit) => void
}): Calls {
  const handlers = new Map<DescMethodUnary, Handler>()
  for (const [service, implementation] of deps.services) {
    for (const method of service.methods) {
      handlers.set(method as DescMethodUnary, (implementation as Record<string, Handler>)[method.localName]!)
    }
  }

  handlers.set(Health.method.check, async () => {
    const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus
    return { status: (await deps.ready()) ? SERVING : NOT_SERVING }
  })

  const access = flatLog(deps.log)
  const run: Calls['run'] = async (method, request, call) => {
    const startedAt = performance.now()
    call.deadline = Math.min(call.deadline, Date.now() + timeLimitOf(method))
    let refusal: Refusal | undefined
    // A service's key may tell more of who calls.
    let caller = call
    try {
      const response = await inTime(call, async () => {
        const key = deps.serviceKeys?.read(call)
        if (key !== undefined) caller = await deps.serviceKeys!.introduce(call, key)
        return handlers.get(method)!(request, caller)
      })
      return create(method.output, response)
    } catch (error) {
      refusal = toRefusal(error)
      const { reason, more } = refusal
      if (more.limit) deps.refused(more.limit)
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
      if (access.isLevelEnabled(level)) access[level](accessOf(method, caller, refusal, elapsed), 'call')
    }
  }
  return { services: deps.services.map(([service]) => service), run: tracing ? inCallSpan(run) : run }
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

function timeLimitOf({ parent, name }: DescMethodUnary): number {
  return longTimeLimits.get(`${parent.typeName}.${name}`) ?? timeLimit
}

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
