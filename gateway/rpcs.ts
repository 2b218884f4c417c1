/** Connect and gRPC-Web on the gateway's port: each call is forwarded unchanged to the Transport. */
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { createContextValues, type Interceptor, type Transport } from '@connectrpc/connect'
import { connectNodeAdapter } from '@connectrpc/connect-node'
import { Changes } from '../proto/gen/auth/v1/changes_pb.js'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { workKey } from '../server/limits/work-key.js'
import { traceHeaders, tracing } from '../server/observability/tracing.js'
import type { Log, Visit } from './access-log.js'
import { bodyLimit } from './body.js'
import type { Request } from './connection.js'
import { isAnswer, isUnreported } from './problem.js'
import { costOf } from './routes.js'

/** Options of the RPC handler. */
interface RpcOptions {
  readonly transport: Transport
  readonly log: Log
  /** Time limit of a call in ms; callers may request less. */
  readonly callTimeout: number
  /** Handles requests whose path isn't an RPC. */
  readonly fallback: (visit: Visit) => void
}

/** Headers that are forwarded to the services. The gateway sets the last two itself. */
const forwarded = [
  'authorization',
  'accept-language',
  'traceparent',
  'tracestate',
  'x-request-id',
  'x-forwarded-for',
] as const

/** The headers of a request that are forwarded to the services; `header` reads a header. */
export function forwardedHeaders(header: (name: string) => string | string[] | null | undefined) {
  const headers: Record<string, string> = {}
  for (const name of forwarded) {
    const value = header(name)
    if (typeof value === 'string') headers[name] = value
  }
  return headers
}

const rpcs = [...Users.methods, ...ForgotPasswords.methods, ...Changes.methods] as DescMethodUnary[]

const costs = new Map(rpcs.map(rpc => [`/${rpc.parent.typeName}/${rpc.name}`, costOf(rpc)]))

/** Cost of the RPC of a path in ms of main thread and database; undefined if there is no RPC. */
export function costOfRpc(path: string): number | undefined {
  return costs.get(path)
}

/** Creates the handler of requests to RPCs. */
export function createRpcHandler({ transport, log, callTimeout, fallback }: RpcOptions) {
  const markLogged: Interceptor = next => async call => {
    const visit = call.contextValues.get(workKey) as Visit
    try {
      const answer = await next(call)
      visit.logged = true
      return answer
    } catch (error) {
      if (isAnswer(error)) visit.logged = true
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

  const logErrors: Interceptor = next => async request => {
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
          // The deadline counts from the arrival. For a Transport, 0 means no deadline.
          const left = values.get(workKey)!.deadline - Date.now()
          const timeout = Math.max(1, Math.min(timeoutMs() ?? callTimeout, left))
          return (await transport.unary(rpc, signal, timeout, requestHeader, message, values)).message
        })
      }
    },
    interceptors: [markLogged, logErrors, forwardHeaders],
    contextValues: request => createContextValues().set(workKey, visitOf(request)),
    readMaxBytes: bodyLimit,
    // gRPC needs HTTP/2, and has a separate port.
    grpc: false,
    // A few compressed bytes can expand to many.
    acceptCompression: [],
    fallback: request => fallback(visitOf(request)),
  })
  return ({ request, response }: Visit) => handler(request, response)
}

function visitOf(request: unknown): Visit {
  return (request as Request).visit as Visit
}
