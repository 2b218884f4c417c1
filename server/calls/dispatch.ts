// What every call has in common, whichever endpoint it came through: deadline, translation of faults, log and metrics.
//
// This room owns how a call gets in and out: over gRPC (grpc.ts), from a gateway in the same process (inprocess.ts), and
// what a refusal tells machines (errordetails.ts). What an RPC does is users/' and forgotpasswords/'; service.ts hands
// their functions over. Only the program's wiring uses it.
import { create, type DescMethodUnary, type DescService, type Message } from '@bufbuild/protobuf'
import { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import { Health, HealthCheckResponse_ServingStatus } from '../../proto/gen/health/v1/health_pb.js'
import type { Call, Implementation } from '../call.js'
import { isUnreachable } from '../database/connection.js'
import type { Log } from '../log.js'
import { Refusal } from '../refusal.js'

/** What the service reports of each call, for metrics. */
export type Observe = (method: DescMethodUnary, reason: Reason | undefined, seconds: number) => void

/** All RPCs, behind what every call has in common whichever endpoint it comes through. */
export interface Calls {
  /** Runs an RPC to its end or its deadline. Throws nothing but `Refusal`. */
  run(method: DescMethodUnary, request: Message, call: Call): Promise<Message>
}

type Handler = (request: Message, call: Call) => Promise<Record<string, unknown>>

/** The services that every endpoint offers. */
export const services = [Users, ForgotPasswords] as const

/** The functions of all RPCs. */
export interface Implementations {
  readonly users: Implementation<typeof Users>
  readonly forgotPasswords: Implementation<typeof ForgotPasswords>
}

/**
 * Puts the services behind the deadline, the translation of faults, the log and the metrics. With them goes the health
 * check (grpc.health.v1), which says whether this process is `ready`.
 */
export function createCalls(
  deps: Implementations & { ready: () => Promise<boolean>; log: Log; observe: Observe },
): Calls {
  const handlers = new Map<DescMethodUnary, Handler>()
  const implementations: [DescService, object][] = [
    [Users, deps.users],
    [ForgotPasswords, deps.forgotPasswords],
  ]
  for (const [service, implementation] of implementations) {
    for (const method of service.methods) {
      handlers.set(method as DescMethodUnary, (implementation as Record<string, Handler>)[method.localName]!)
    }
  }

  handlers.set(Health.method.check, async () => {
    const { SERVING, NOT_SERVING } = HealthCheckResponse_ServingStatus
    return { status: (await deps.ready()) ? SERVING : NOT_SERVING }
  })

  return {
    async run(method, request, call) {
      const startedAt = performance.now()
      let reason: Reason | undefined
      try {
        const response = await inTime(call, () => handlers.get(method)!(request, call))
        return create(method.output, response)
      } catch (error) {
        const refusal = toRefusal(error)
        reason = refusal.reason
        if (reason === Reason.INTERNAL || reason === Reason.UNAVAILABLE) {
          deps.log.error({ rpc: method.name, requestId: call.requestId, err: error }, 'call failed')
        }
        throw refusal
      } finally {
        const elapsed = performance.now() - startedAt
        deps.observe(method, reason, elapsed / 1000)
        if (deps.log.isLevelEnabled('debug')) {
          const outcome = reason === undefined ? 'OK' : Reason[reason]
          const fields = { rpc: method.name, outcome, ms: Math.round(elapsed), requestId: call.requestId }
          deps.log.debug({ ...fields, address: call.address }, 'call')
        }
      }
    },
  }
}

/** Stops waiting at the caller's deadline. Who has gone needs no answer: what waits for long watches the signal. */
function inTime<T>(call: Call, work: () => Promise<T>): Promise<T> {
  const left = call.deadline - Date.now()
  if (left <= 0) throw new Refusal(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
  if (left >= 2 ** 31) return work()
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
  if (isUnreachable(error)) return new Refusal(Reason.UNAVAILABLE, { retryAfter: 1 })
  return new Refusal(Reason.INTERNAL)
}
