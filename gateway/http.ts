/**
 * The gateway: JSON over HTTP for every row of `routes.ts`, and Connect and gRPC-Web for the same services, all on one
 * port that speaks HTTP/1.1. It passes every call on to a Connect `Transport` and knows nothing else of what stands
 * behind it; who may call, what is right and what is counted are the services' affair. Programs put it together
 * (`main.ts`, and the service for a gateway in its own process).
 */
import { randomUUID } from 'node:crypto'
import { once, setMaxListeners } from 'node:events'
import { create, type DescMethodUnary, type Message } from '@bufbuild/protobuf'
import { Code, ConnectError, type Transport } from '@connectrpc/connect'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { createSenderOf, network, type Sender } from '../server/clientaddress.js'
import { describeSpan, inSpan, readParent, SpanKind, traceHeaders, tracing } from '../server/tracing.js'
import { beginVisit, endVisit, methodOf, type Visit } from './access.js'
import { type Body, readBody } from './body.js'
import { type Address, createListener, listenerLimits, type Request, type Response, type Secure } from './listener.js'
import type { GatewayMetrics, Result } from './metrics.js'
import { createPacing, pacingLimits } from './pacing.js'
import { Fault, isAnswer, isRefusal, isUnreported, type Problem, problemDocument, problemOf } from './problem.js'
import { createLookup } from './router.js'
import type { Revision, Route } from './routes.js'
import { createRpcHandler, forwardedHeaders, type Log } from './rpcs.js'
import { createSender } from './send.js'
import { inSlices } from './slices.js'
import { type Answer, createRead, createWrite, textAnswer } from './translate.js'

/** What a gateway is made of. */
export interface GatewayOptions {
  /** Leads to the services `auth.v1.Users` and `auth.v1.ForgotPasswords`. */
  readonly transport: Transport
  readonly address: Address
  /** Speaks TLS with clients; absent: no TLS. */
  readonly secure?: Secure
  /** Revision served at the base path `/`. */
  readonly defaultRevision: Revision
  /** Addresses or CIDR blocks of proxies whose `X-Forwarded-For` and `X-Request-Id` are believed. */
  readonly trustedProxies: readonly string[]
  /** Told who sent each request, and of its `X-Forwarded-For`, believed or not. */
  readonly onSender?: (sender: Sender, forwardedFor: string | undefined) => void
  /** Origins (RFC 6454) whose scripts may read answers, exactly as browsers write them. */
  readonly corsOrigins: readonly string[]
  readonly log: Log
  /** Counts requests and connections; absent: nobody does. */
  readonly metrics?: GatewayMetrics
  /** Multiplies how many refusals leave. */
  readonly limitFactor?: number
  /** Other limits than `gatewayLimits`. */
  readonly limits?: Partial<typeof gatewayLimits>
}

/** A gateway that can be opened once and closed once. */
export interface Gateway {
  /** Opens the port; resolves to where it really is. */
  listen(): Promise<Address>
  /** Says at `/readyz` that it isn't ready; everything else works on. */
  drain(): void
  /** Takes no more connections, lets requests finish for so many ms (10 000 by default), then cuts off the rest. */
  close(graceMs?: number): Promise<void>
}

/** What a client may take of the gateway. */
export const gatewayLimits = {
  ...listenerLimits,
  ...pacingLimits,
  /** How long a call may take, in ms; callers may ask for less. */
  callTimeout: 15_000,
}

/** Characters that the target of a request may have. */
const targetLimit = 8 * 1024

/** What an action needs of its request. */
interface Exchange {
  readonly request: Request
  /** Last segment of the path as sent, where that is a variable. */
  readonly segment: string | undefined
  readonly query: string
  /** Reads the body. */
  body(): Promise<Body | undefined>
  /** Calls an RPC on behalf of the client. */
  call(rpc: DescMethodUnary, message: Message, more?: CallOptions): Promise<Message>
}

/** What a call may carry besides its message. */
interface CallOptions {
  /** Milliseconds it may take, where that is less than any call may. */
  readonly timeout?: number | undefined
  /** See `Translated`. */
  readonly malformed?: string | undefined
}

type Action = (exchange: Exchange) => Promise<Answer>

/** Prepares a gateway. Nothing listens before `listen` is called. */
export function createGateway(options: GatewayOptions): Gateway {
  const { transport, log, metrics } = options
  const limits = { ...gatewayLimits, ...options.limits }
  const { callTimeout } = limits
  const senderOf = createSenderOf(options.trustedProxies)
  const lookup = createLookup<Action>(options.defaultRevision, createAction)
  const { send, commonHeaders, isPreflight } = createSender(options.corsOrigins, limits.lingerTimeout)
  const pacing = createPacing(limits, options.limitFactor, () => metrics?.cut('refusals'))
  const visits = new WeakMap<Request, Visit>()
  const onAnswer = (request: Request) => {
    visits.get(request)!.written = true
  }
  const handleRpc = createRpcHandler({ transport, log, callTimeout, pacing, onAnswer, fallback: refuseUnknown })
  const listener = createListener(options.address, inSlices(onRequest), limits, {
    ...(options.secure && { secure: options.secure }),
    onRefusal({ status, reason }, requestId, peer) {
      const { address } = senderOf(peer, undefined)
      log.info({ status, reason, requestId, network: network(address), endpoint: 'http' }, 'request')
      metrics?.observe({ route: 'other', status })
    },
    onDrop: () => metrics?.cut('connections'),
  })
  metrics?.watch(() => ({
    connections: listener.connections(),
    mostConnections: limits.maxConnections,
    refusalsWaiting: pacing.held(),
  }))
  let draining = false

  function onRequest(request: Request, response: Response) {
    const { headers } = request
    const forwardedFor = headers['x-forwarded-for'] as string | undefined
    const sender = senderOf(request.socket?.remoteAddress, forwardedFor)
    options.onSender?.(sender, forwardedFor)
    const givenId = headers['x-request-id'] as string | undefined
    const requestId = sender.proxied && givenId && /^[\w-]{1,64}$/.test(givenId) ? givenId : randomUUID()
    headers['x-request-id'] = requestId
    headers['x-forwarded-for'] = sender.address
    const visit = beginVisit(request)
    if (metrics) response.once('close', () => metrics.observe(resultOf(visit, response)))
    if (tracing) void answerInSpan(request, response, visit)
    else void answer(request, response, visit)
  }

  function answerInSpan(request: Request, response: Response, visit: Visit): Promise<void> {
    const { headers } = request
    const method = methodOf(request)
    const attributes = { 'http.request.method': method, 'auth.request_id': headers['x-request-id'] as string }
    const parent = readParent(name => headers[name] as string | undefined)
    return inSpan({ name: method, kind: SpanKind.SERVER, attributes, parent }, async () => {
      await answer(request, response, visit)
      const { path } = visit
      describeSpan({ 'http.response.status_code': response.statusCode }, path && `${method} ${path}`)
      if (path) describeSpan({ 'http.route': path })
    })
  }

  async function answer(request: Request, response: Response, visit: Visit): Promise<void> {
    try {
      const given = await act(request, response, visit)
      if (!given) {
        // Its span lasts until the adapter has answered.
        if (tracing) await once(response, 'close')
        return
      }
      send(request, response, given)
      endVisit(log, visit, given.status)
    } catch (error) {
      await refuse(request, response, error, visit)
    }
  }

  /** The answer to a request; undefined when the request was handed on to the RPCs, which answer by themselves. */
  async function act(request: Request, response: Response, visit: Visit): Promise<Answer | undefined> {
    const { headers, method = '' } = request
    const target = targetOf(request)
    const mark = target.indexOf('?')
    const path = mark < 0 ? target : target.slice(0, mark)
    const query = mark < 0 ? '' : target.slice(mark + 1)
    if (isPreflight(request)) return options204()
    if (path === '*' && method === 'OPTIONS') return options204('GET, HEAD, POST, OPTIONS')

    const resource = lookup(path)
    if (!resource) return handOn(request, response, target, visit)
    const { actions, allow, variable } = resource
    visit.path = resource.path
    if (method === 'OPTIONS') return options204(allow)
    const action = actions.get(method)
    if (!action) throw new Fault('METHOD_NOT_ALLOWED', `The methods here are ${allow}.`, { allow })

    if (draining && path === '/readyz') return answerStopping(headers['x-request-id'] as string)

    const signal = abortSignalOf(request)
    return action({
      request,
      query,
      segment: variable ? path.slice(path.lastIndexOf('/') + 1) : undefined,
      body: () => readBody(request, bytes => pacing.arrive(request, bytes)),
      async call(rpc, message, { timeout = callTimeout, malformed } = {}) {
        const passedOn = forwardedHeaders(name => headers[name])
        if (malformed) passedOn['x-malformed-fields'] = malformed
        if (tracing) Object.assign(passedOn, traceHeaders())
        try {
          const { message: result } = await transport.unary(rpc, signal, timeout, passedOn, message)
          visit.written = true
          return result
        } catch (error) {
          visit.written = isAnswer(error)
          throw error
        }
      },
    })
  }

  /**
   * Leaves a request to Connect's adapter, whose fallback is `refuseUnknown`. The table comes first, since what the
   * adapter answers needs its headers set ahead: that takes 4 µs of a request of which reading a user takes 90.
   */
  function handOn(request: Request, response: Response, target: string, visit: Visit): undefined {
    // The adapter makes a URL of it.
    const { host } = request.headers
    if (!host || !URL.canParse(`http://${host}`)) throw badHost()
    request.url = target
    response.setHeader('cache-control', 'no-store')
    // The adapter's 405 doesn't say it (RFC 9110, 15.5.6).
    if (request.method !== 'POST') response.setHeader('allow', 'POST')
    for (const [name, value] of Object.entries(commonHeaders(request))) response.setHeader(name, value)
    visits.set(request, visit)
    visit.isRpc = true
    response.once('close', () => endVisit(log, visit, response.statusCode))
    handleRpc(request, response)
  }

  function refuseUnknown(request: Request, response: Response): void {
    visits.get(request)!.isRpc = false
    const grpcWebType = /^application\/grpc-web[\w+-]*/i.exec(request.headers['content-type'] ?? '')?.[0]
    if (request.method !== 'POST' || grpcWebType === undefined) {
      response.removeHeader('allow')
      void refuse(request, response, new Fault('NOT_FOUND', 'There is nothing at this path.'), visits.get(request)!)
      return
    }
    // Without a body these headers are its trailers.
    response.setHeader('content-type', grpcWebType)
    response.setHeader('grpc-status', '12')
    response.setHeader('grpc-message', 'There is no such method.')
    response.end()
    endVisit(log, visits.get(request)!, 200, 'UNIMPLEMENTED')
  }

  async function refuse(request: Request, response: Response, error: unknown, visit: Visit): Promise<void> {
    const problem = problemOf(error)
    // The call that asked who it is had a line of its own.
    if (error instanceof Fault) visit.written = false
    const requestId = request.headers['x-request-id'] as string
    if (isUnreported(error)) log.error({ requestId, err: error }, 'request failed')
    if (isRefusal(problem)) await pacing.refuse(request, problem.status)
    send(request, response, answerProblem(problem, requestId))
    endVisit(log, visit, problem.status, problem.reason)
  }

  return {
    listen: listener.listen,
    drain() {
      draining = true
      listener.drain()
    },
    close(graceMs = 10_000) {
      pacing.close()
      return listener.close(graceMs)
    },
  }
}

/** Why a gateway that is about to stop isn't ready. Made no sooner, as it would load the whole of `fetch`. */
function answerStopping(requestId: string): Answer {
  return answerProblem(problemOf(new ConnectError('stopping', Code.Unavailable)), requestId)
}

/** What a request came to, for the metrics. */
function resultOf({ path, isRpc, startedAt }: Visit, { headersSent, statusCode }: Response): Result {
  return {
    route: path ?? (isRpc ? 'RPC' : 'other'),
    status: headersSent ? statusCode : 'gone',
    seconds: (performance.now() - startedAt) / 1000,
  }
}

function answerProblem(problem: Problem, requestId: string): Answer {
  return {
    status: problem.status,
    headers: { 'content-type': 'application/problem+json', 'cache-control': 'no-store', ...problem.headers },
    body: problemDocument(problem, requestId),
  }
}

/** The path and the query of a request. Throws `Fault` when they are too long or the request says not of what host. */
function targetOf({ url = '', httpVersion, headers }: Request): string {
  if (url.length > targetLimit) throw new Fault('URI_TOO_LONG', `The URL has more than ${targetLimit} characters.`)
  if (httpVersion === '1.1' && !headers.host) throw badHost()
  if (url.startsWith('/') || url === '*') return url
  // Servers must understand the absolute form, too (RFC 9112, 3.2.2).
  return url.replace(/^https?:\/\/[^/?]*/i, '').replace(/^(?!\/)/, '/')
}

function createAction(route: Route, revision: Revision): Action {
  const { rpc, timeout } = route
  if (!rpc) return async () => textAnswer(route.text ?? '')
  const read = createRead(route, rpc)
  const write = createWrite(route, rpc, revision)

  async function translate({ segment, query, body, call }: Exchange) {
    try {
      return read({ segment, query, body: route.method === 'POST' ? await body() : undefined })
    } catch (error) {
      // Who may not call the operation learns that first, not what is wrong with the request.
      if (route.protected && error instanceof Fault && error.reason !== 'PAYLOAD_TOO_LARGE') {
        await call(Users.method.getMe, create(Users.method.getMe.input))
      }
      throw error
    }
  }

  return async exchange => {
    const { message, malformed } = await translate(exchange)
    const result = await exchange.call(rpc, message, { timeout, malformed })
    if (route.holds?.(result) === false)
      throw new Fault('UNAVAILABLE', 'The service can’t answer now. Try again later.', { 'retry-after': '1' })
    return write(result, exchange.request.headers.accept)
  }
}

function options204(allow?: string): Answer {
  return { status: 204, headers: allow === undefined ? {} : { allow }, body: '' }
}

function badHost(): Fault {
  return new Fault('MALFORMED_REQUEST', 'The header Host is missing or wrong.')
}

const abortSignals = new WeakMap<object, AbortSignal>()

/** Aborted when the client has gone. Requests of a connection share one: making it costs as much as the rest. */
function abortSignalOf(request: Request): AbortSignal {
  const known = abortSignals.get(request.socket)
  if (known) return known
  const gone = new AbortController()
  // One for each request of a pipeline.
  setMaxListeners(0, gone.signal)
  request.socket.once('close', () => gone.abort())
  abortSignals.set(request.socket, gone.signal)
  return gone.signal
}
