/**
 * Connect and gRPC-Web on the gateway's port: each call is forwarded unchanged to the Transport. Connect's handlers read headers
 * and write answers; the message is read here (rpc-message.ts), because an undecodable one is refused by the service, after
 * its checks of the caller.
 */
import type { IncomingHttpHeaders } from 'node:http'
import type { DescMethodUnary } from '@bufbuild/protobuf'
import {
  Code,
  ConnectError,
  createConnectRouter,
  createContextKey,
  createContextValues,
  type Interceptor,
  type Transport,
} from '@connectrpc/connect'
import type { UniversalServerResponse } from '@connectrpc/connect/protocol'
import { compressionGzip, universalRequestFromNodeRequest } from '@connectrpc/connect-node'
import { turnKey } from '../server/limits/scheduler.js'
import { traceHeaders, tracing } from '../server/observability/tracing.js'
import { protocolCost } from '../server/policy/policy.js'
import { clientServices } from '../server/policy/services.js'
import { readTimeout } from '../server/requests/grpc-timeout.js'
import { chooseLocale } from '../server/requests/locale.js'
import { toPortuguese } from '../server/requests/portuguese.js'
import type { Answer, Exchange, Log, Outcome } from './exchange.js'
import { needsOfRpc, revealsNames } from './operations.js'
import { HttpError, isAnswer, isUnreported } from './problem.js'
import { emptyBody, isGzip, readMessage } from './rpc-message.js'

/** Options of the RPC handler. */
interface RpcOptions {
  readonly transport: Transport
  readonly log: Log
  /** Time limit of a call in ms; callers may request less. */
  readonly callTimeout: number
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

/** The headers for the services: those of a request that are forwarded, and of the present span. */
export function forwardedHeaders(given: IncomingHttpHeaders): Record<string, string> {
  const headers: Record<string, string> = {}
  for (const name of forwarded) {
    const value = given[name]
    if (typeof value === 'string') headers[name] = value
  }
  return tracing ? Object.assign(headers, traceHeaders()) : headers
}

const rpcs = clientServices.flatMap(([service]) => service.methods) as DescMethodUnary[]

const needs = new Map(
  rpcs.map(rpc => {
    const { cost, hashes } = needsOfRpc(rpc)
    return [
      `/${rpc.parent.typeName}/${rpc.name}`,
      { cost: cost + protocolCost.connect, hashes, reveals: revealsNames(rpc) },
    ]
  }),
)

/** What the RPC of a path needs of the scheduler, and whether it reveals names; undefined if there is no RPC. */
export function needsAt(path: string): ReturnType<typeof needs.get> {
  return needs.get(path)
}

/** How long its client waits for an answer to an RPC, in ms; infinite where it doesn't say so. */
export function timeoutOf({ 'connect-timeout-ms': connect, 'grpc-timeout': grpc }: IncomingHttpHeaders): number {
  if (typeof connect === 'string' && /^\d{1,10}$/.test(connect)) return Number(connect)
  return (typeof grpc === 'string' ? readTimeout(grpc) : undefined) ?? Number.POSITIVE_INFINITY
}

/** A request to an RPC that is being handled. */
interface Progress extends Exchange {
  /** Whether the service has answered, and so has logged the call. */
  isAnswered: boolean
}

const progressKey = createContextKey<Progress | undefined>(undefined)

/** Creates the handlers of requests to RPCs. The result returns that of a path; undefined if there is no RPC. */
export function createRpcs({ transport, log, callTimeout }: RpcOptions) {
  const markAnswered: Interceptor = next => async call => {
    const progress = call.contextValues.get(progressKey)!
    try {
      const answer = await next(call)
      progress.isAnswered = true
      return answer
    } catch (error) {
      progress.isAnswered = isAnswer(error)
      throw error
    }
  }

  // Before the handler adds its own.
  const forwardHeaders: Interceptor = next => request =>
    next({
      ...request,
      header: new Headers(forwardedHeaders(request.contextValues.get(progressKey)!.request.headers)),
    })

  const logErrors: Interceptor = next => async request => {
    try {
      return await next(request)
    } catch (error) {
      if (error instanceof HttpError) throw toConnectError(error, request.header.get('accept-language'))
      const requestId = request.header.get('x-request-id')
      if (isUnreported(error)) log.error({ rpc: request.method.name, requestId, err: error }, 'call failed')
      throw error
    }
  }

  const router = createConnectRouter({
    interceptors: [markAnswered, logErrors, forwardHeaders],
    // gRPC needs HTTP/2, and has a separate port.
    grpc: false,
    // For requests. Answers are short, and never compressed.
    acceptCompression: [compressionGzip],
    compressMinBytes: Number.POSITIVE_INFINITY,
  })
  for (const rpc of rpcs) {
    router.rpc(rpc, async (_, { signal, timeoutMs, requestHeader, values }) => {
      const progress = values.get(progressKey)!
      const { message, malformed, undecodable } = await readMessage(progress, rpc.input)
      signal.throwIfAborted()
      if (malformed) requestHeader.set('x-malformed-fields', malformed)
      if (undecodable) requestHeader.set('x-malformed-message', '1')
      // The deadline counts from the arrival. For a Transport, 0 means no deadline.
      const left = progress.deadline - Date.now()
      const timeout = Math.max(1, Math.min(timeoutMs() ?? callTimeout, left))
      return (await transport.unary(rpc, signal, timeout, requestHeader, message, values)).message
    })
  }
  const handlers = new Map(router.handlers.map(handler => [handler.requestPath, handler]))

  return (path: string) => {
    const handle = handlers.get(path)
    if (!handle) return undefined
    return async (exchange: Exchange): Promise<Outcome> => {
      const { request, response, turn } = exchange
      const progress: Progress = { ...exchange, isAnswered: false }
      const values = createContextValues().set(turnKey, turn).set(progressKey, progress)
      const received = universalRequestFromNodeRequest(request, response, undefined, values)
      adaptHeaders(received.header, timeoutOf(request.headers), callTimeout)
      const answer = await toAnswer(await handle({ ...received, body: emptyBody(request) }))
      return { answer, isLogged: progress.isAnswered }
    }
  }
}

async function toAnswer({ status, header, body }: UniversalServerResponse): Promise<Answer> {
  const headers: Record<string, string> = { 'cache-control': 'no-store', ...Object.fromEntries(header ?? []) }
  // The handler's 405 lacks it (RFC 9110, 15.5.6).
  if (status === 405) headers.allow = 'POST'
  const chunks: Uint8Array[] = []
  for await (const chunk of body ?? []) chunks.push(chunk)
  return { status, headers, body: Buffer.concat(chunks) }
}

/** Removes what describes the body, which Connect's handlers don't get, and timeouts beyond that of calls. */
function adaptHeaders(header: Headers, timeout: number, callTimeout: number): void {
  header.delete('content-length')
  for (const name of ['content-encoding', 'grpc-encoding']) if (isGzip(header.get(name))) header.delete(name)
  // Connect's timers fire at once after 2^31 ms.
  if (timeout < callTimeout || timeout === Number.POSITIVE_INFINITY) return
  for (const name of ['connect-timeout-ms', 'grpc-timeout']) header.delete(name)
}

function toConnectError({ reason, message }: HttpError, acceptLanguage: string | null): ConnectError {
  const text = chooseLocale(acceptLanguage ?? undefined, 'en') === 'en' ? message : toPortuguese(message)
  return new ConnectError(text, reason === 'PAYLOAD_TOO_LARGE' ? Code.ResourceExhausted : Code.InvalidArgument)
}
