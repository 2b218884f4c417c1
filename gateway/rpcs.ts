/** Connect and gRPC-Web on the gateway's port: each call goes on through its Transport as it came. */
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { createContextValues, type Interceptor, type Transport } from '@connectrpc/connect'
import { connectNodeAdapter } from '@connectrpc/connect-node'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { workKey } from '../server/limits/context.js'
import { traceHeaders, tracing } from '../server/observability/tracing.js'
import type { Log, Visit } from './access-log.js'
import { bodyLimit } from './body.js'
import type { Request } from './connection.js'
import { isAnswer, isUnreported } from './problem.js'
import { costOf } from './routes.js'

/** What the calls need. */
export interface RpcOptions {
  readonly transport: Transport
  readonly log: Log
  /** Milliseconds that a call may take; callers may ask for less. */
  readonly callTimeout: number
  /** Gets every request whose path is no RPC's. */
  readonly fallback: (visit: Visit) => void
}

/** Headers that go on to the services. The last two are the gateway's findings, whatever the client sent. */
const forwarded = [
  'authorization',
  'accept-language',
  'traceparent',
  'tracestate',
  'x-request-id',
  'x-forwarded-for',
] as const

/** The headers that go on to the services, of a request whose headers `header` reads. */
export function forwardedHeaders(header: (name: string) => string | string[] | null | undefined) {
  const headers: Record<string, string> = {}
  for (const name of forwarded) {
    const value = header(name)
    if (typeof value === 'string') headers[name] = value
  }
  return headers
}

const rpcs = [...Users.methods, ...ForgotPasswords.methods] as DescMethodUnary[]

const costs = new Map(rpcs.map(rpc => [`/${rpc.parent.typeName}/${rpc.name}`, costOf(rpc)]))

/** Milliseconds of main thread and database that the RPC of a path takes; undefined when there is none. */
export function costOfRpc(path: string): number | undefined {
  return costs.get(path)
}

/** Prepares the handler of requests to the RPCs. */
export function createRpcHandler({ transport, log, callTimeout, fallback }: RpcOptions) {
  const noteAnswer: Interceptor = next => async call => {
    const visit = call.contextValues.get(workKey) as Visit
    try {
      const answer = await next(call)
      visit.written = true
      return answer
    } catch (error) {
      if (isAnswer(error)) visit.written = true
      throw error
    }
  }

  const forwardHeaders: Interceptor = next => request =>
    next({
      ...request,
      header: new Headers({
        ...forwardedHeaders(name => request.header.get(name)),
        ...(tracing && traceHeaders()),
      }),
    })

  const logFaults: Interceptor = next => async request => {
    try {
      return await next(request)
    } catch (error) {
      const requestId = request.header.get('x-request-id')
      if (isUnreported(error)) log.error({ rpc: request.method.name, requestId, err: error }, 'call failed')
      throw error
    }
  }

  const handler = connectNodeAdapter({
    routes(router) {
      for (const rpc of rpcs) {
        router.rpc(rpc, async (message, { signal, timeoutMs, requestHeader, values }) => {
          signal.throwIfAborted()
          // The time runs from the arrival; a Transport takes 0 for no deadline at all.
          const left = values.get(workKey)!.deadline - Date.now()
          const timeout = Math.max(1, Math.min(timeoutMs() ?? callTimeout, left))
          return (await transport.unary(rpc, signal, timeout, requestHeader, message, values)).message
        })
      }
    },
    interceptors: [noteAnswer, logFaults, forwardHeaders],
    contextValues: request => createContextValues().set(workKey, visitOf(request)),
    readMaxBytes: bodyLimit,
    // It needs HTTP/2, and has a port of its own.
    grpc: false,
    // A few bytes would stand for many.
    acceptCompression: [],
    fallback: request => fallback(visitOf(request)),
  })
  return ({ request, response }: Visit) => handler(request, response)
}

function visitOf(request: unknown): Visit {
  return (request as Request).visit as Visit
}
