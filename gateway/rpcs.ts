/** Connect and gRPC-Web on the gateway's port: each call goes on through its Transport as it came. */
import type { DescMethodUnary } from '@bufbuild/protobuf'
import { createContextKey, createContextValues, type Interceptor, type Transport } from '@connectrpc/connect'
import { connectNodeAdapter } from '@connectrpc/connect-node'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { traceHeaders, tracing } from '../server/tracing.js'
import { bodyLimit, holdBody } from './body.js'
import type { Request, Response } from './listener.js'
import type { Pacing } from './pacing.js'
import { isAnswer, isRefusal, isUnreported, problemOf } from './problem.js'

/** Where the gateway reports requests, and faults as `{ requestId, err }`. A pino logger fits. */
export interface Log {
  error(fields: object, message: string): void
  info(fields: object, message: string): void
}

/** What the calls need. */
export interface RpcOptions {
  readonly transport: Transport
  readonly log: Log
  /** Milliseconds that a call may take; callers may ask for less. */
  readonly callTimeout: number
  /** Says when refusals leave. */
  readonly pacing: Pacing
  /** Told of a request that a service has answered. */
  readonly onAnswer: (request: Request) => void
  /** Gets every request whose path is no RPC's. */
  readonly fallback: (request: Request, response: Response) => void
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

/** The request that a call came with. */
const incoming = createContextKey<Request>(undefined as never)

/** Prepares the handler of requests to the RPCs. */
export function createRpcHandler({ transport, log, callTimeout, pacing, onAnswer, fallback }: RpcOptions) {
  const pace: Interceptor = next => async call => {
    const request = call.contextValues.get(incoming)
    try {
      const answer = await next(call)
      onAnswer(request)
      return answer
    } catch (error) {
      if (isAnswer(error)) onAnswer(request)
      const problem = problemOf(error)
      if (isRefusal(problem)) await pacing.refuse(request, problem.status)
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
      for (const rpc of [...Users.methods, ...ForgotPasswords.methods] as DescMethodUnary[]) {
        router.rpc(rpc, async (message, { signal, timeoutMs, requestHeader }) => {
          // A Transport takes 0 for no deadline at all.
          signal.throwIfAborted()
          const timeout = Math.min(Math.max(timeoutMs() ?? callTimeout, 1), callTimeout)
          return (await transport.unary(rpc, signal, timeout, requestHeader, message)).message
        })
      }
    },
    interceptors: [pace, logFaults, forwardHeaders],
    contextValues: request => createContextValues().set(incoming, request as Request),
    readMaxBytes: bodyLimit,
    // It needs HTTP/2, and has a port of its own.
    grpc: false,
    // A few bytes would stand for many.
    acceptCompression: [],
    fallback: (request, response) => fallback(request as Request, response as Response),
  })
  return (request: Request, response: Response) => {
    holdBody(request, bytes => pacing.arrive(request, bytes))
    handler(request, response)
  }
}
