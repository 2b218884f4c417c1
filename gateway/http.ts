/**
 * The gateway owns the HTTP port of clients: JSON over HTTP for every row of `routes.ts`, and Connect and gRPC-Web for the same services, all on one
 * port that speaks HTTP/1.1. It passes every call on to a Connect `Transport` and knows nothing else of what stands
 * behind it; who may call, what is right and what is counted are the services' affair. Programs put it together
 * (`main.ts`, and the service for a gateway in its own process).
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingHttpHeaders } from 'node:http'
import { create, type DescMethodUnary, type Message } from '@bufbuild/protobuf'
import { Code, createContextValues, type Transport } from '@connectrpc/connect'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { workKey } from '../server/limits/context.js'
import type { Scheduler, Shed } from '../server/limits/scheduler.js'
import { describeSpan, inSpan, readParent, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { createSenderOf, network, type Sender } from '../server/requests/client-address.js'
import { endVisit, type Log, methodOf, Visit } from './access-log.js'
import { type Body, bodyLimit, isArriving, readBody } from './body.js'
import { isGone, type Request, type Response } from './connection.js'
import { type Address, createListener, listenerLimits, type Secure } from './listener.js'
import type { GatewayMetrics, Result } from './metrics.js'
import { HttpError, isAnswer, isUnreported, type Problem, problemDocument, problemOf, undelivered } from './problem.js'
import { createLookup, type Resource } from './router.js'
import { costOf, type Revision, type Route } from './routes.js'
import { costOfRpc, createRpcHandler, forwardedHeaders } from './rpcs.js'
import { createSender } from './send.js'
import { type Answer, createRead, createWrite, textAnswer } from './translate.js'

/** What a gateway is made of. */
export interface GatewayOptions {
  /** Leads to the services `auth.v1.Users` and `auth.v1.ForgotPasswords`. */
  readonly transport: Transport
  /** Says when requests begin. */
  readonly scheduler: Scheduler
  /** The name of the service whose good key a request shows in `authorization`, as far as that is known by now. */
  readonly serviceOf?: (authorization: string | undefined) => string | undefined
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

interface Action {
  /** Milliseconds of main thread and database, without its body. */
  readonly cost: number
  act(exchange: Exchange): Promise<Answer>
}

/** Milliseconds that an answer takes which the gateway gives by itself, a refusal too. */
const trivialCost = 0.05

/** Milliseconds that 8 KiB of a body take to be read and checked. */
const costOf8KiB = 0.3

/** Prepares a gateway. Nothing listens before `listen` is called. */
export function createGateway(options: GatewayOptions): Gateway {
  const { transport, scheduler, serviceOf = () => undefined, log, metrics } = options
  const limits = { ...gatewayLimits, ...options.limits }
  const { callTimeout } = limits
  const senderOf = createSenderOf(options.trustedProxies)
  const lookup = createLookup<Action>(options.defaultRevision, createAction)
  const { send, commonHeaders, isPreflight } = createSender(options.corsOrigins, limits.lingerTimeout)
  const handleRpc = createRpcHandler({ transport, log, callTimeout, fallback: refuseUnknown })
  const listener = createListener(options.address, onRequest, limits, {
    ...(options.secure && { secure: options.secure }),
    onRefusal({ status, reason }, requestId, peer) {
      const { address } = senderOf(peer, undefined)
      log.info({ status, reason, requestId, network: network(address), endpoint: 'http' }, 'request')
      metrics?.observe({ route: 'other', status })
    },
    onCut: limit => metrics?.cut(limit),
    isTrusted: address => senderOf(address, undefined).proxied,
  })
  metrics?.watch(() => ({ connections: listener.connections(), mostConnections: limits.maxConnections }))
  let draining = false

  function onRequest(request: Request, response: Response): void {
    const { headers, from } = request
    const forwardedFor = headers['x-forwarded-for'] as string | undefined
    const sender = senderOf(from.remoteAddress, forwardedFor)
    options.onSender?.(sender, forwardedFor)
    const givenId = headers['x-request-id'] as string | undefined
    headers['x-request-id'] = sender.proxied && givenId && /^[\w-]{1,64}$/.test(givenId) ? givenId : randomUUID()
    headers['x-forwarded-for'] = sender.address
    const target = originForm(request.url ?? '')
    const mark = target.indexOf('?')
    const path = mark < 0 ? target : target.slice(0, mark)
    const resource = lookup(path)
    const own =
      resource?.actions.get(request.method ?? '')?.cost ?? (resource ? trivialCost : costOfRpc(path)) ?? trivialCost
    const cost = own + costOfBody(headers)
    const deadline = Date.now() + callTimeout
    const service = serviceOf(headers.authorization)
    const networks = service === undefined ? sender.networks : [`service ${service}`]
    const visit = new Visit(host, request, response, target, path, resource, sender.proxied, networks, cost, deadline)
    request.visit = visit
    scheduler.submit(visit)
    if (visit.state === 'waiting') {
      visit.waits = true
      from.waiting++
    }
  }

  const host = {
    answer(visit: Visit<Action>) {
      const { request, waits } = visit
      if (waits) leaveLine(visit)
      if (isGone(request)) return
      if (tracing) void answerInSpan(visit)
      else void answer(visit)
      // Its body may lie in what hasn't been read.
      if (waits) request.from.feed()
    },
    shed(visit: Visit<Action>, why: Shed) {
      const { request, response, waits, proxied } = visit
      if (waits) leaveLine(visit)
      // Others share the connection of a proxy.
      if (!proxied) request.from.hold()
      const problem = sheddings[why]
      // What comes in its body is thrown away.
      request.resume()
      send(request, response, answerProblem(problem, request.headers['x-request-id'] as string))
      endVisit(log, visit, problem.status, problem.reason)
    },
    answered: (visit: Visit<Action>) => scheduler.end(visit),
    close(visit: Visit<Action>) {
      if (visit.waits) leaveLine(visit)
      scheduler.end(visit)
      if (visit.isRpc) endVisit(log, visit, visit.response.statusCode)
      metrics?.observe(resultOf(visit))
    },
  }

  function leaveLine(visit: Visit<Action>): void {
    visit.waits = false
    visit.request.from.waiting--
  }

  function answerInSpan(visit: Visit<Action>): Promise<void> {
    const { request, response } = visit
    const { headers } = request
    const method = methodOf(request)
    const attributes = { 'http.request.method': method, 'auth.request_id': headers['x-request-id'] as string }
    const parent = readParent(name => headers[name] as string | undefined)
    return inSpan({ name: method, kind: SpanKind.SERVER, attributes, parent }, async () => {
      await answer(visit)
      const { route } = visit
      describeSpan({ 'http.response.status_code': response.statusCode }, route && `${method} ${route}`)
      if (route) describeSpan({ 'http.route': route })
    })
  }

  async function answer(visit: Visit<Action>): Promise<void> {
    const { request, response } = visit
    try {
      const given = await act(visit)
      if (!given) {
        // Its span lasts until the adapter has answered.
        if (tracing) await once(response, 'close')
        return
      }
      send(request, response, given)
      endVisit(log, visit, given.status)
    } catch (error) {
      refuse(visit, error)
    }
  }

  /** The answer to a request; undefined when the request was handed on to the RPCs, which answer by themselves. */
  async function act(visit: Visit<Action>): Promise<Answer | undefined> {
    const { request, path, resource } = visit
    const { headers, method = '' } = request
    check(request)
    if (isPreflight(request)) return options204()
    if (path === '*' && method === 'OPTIONS') return options204('GET, HEAD, POST, OPTIONS')

    if (!resource) return handOn(visit)
    if (method === 'OPTIONS') return options204(resource.allow)
    const action = resource.actions.get(method)
    if (!action)
      throw new HttpError('METHOD_NOT_ALLOWED', `The methods here are ${resource.allow}.`, { allow: resource.allow })
    if (draining && path === '/readyz') return answerStopping(headers['x-request-id'] as string)
    return action.act(exchangeOf(visit, resource))
  }

  function exchangeOf(visit: Visit<Action>, { variable }: Resource<Action>): Exchange {
    const { request, target, path } = visit
    const { headers } = request
    return {
      request,
      query: target.slice(path.length + 1),
      segment: variable ? path.slice(path.lastIndexOf('/') + 1) : undefined,
      body: () => (isArriving(request) ? visit.away(() => readBody(request)) : readBody(request)),
      async call(rpc, message, { timeout = callTimeout, malformed } = {}) {
        const passedOn = forwardedHeaders(name => headers[name])
        if (malformed) passedOn['x-malformed-fields'] = malformed
        if (tracing) Object.assign(passedOn, traceHeaders())
        const values = createContextValues().set(workKey, visit)
        // The time runs from the arrival; a Transport takes 0 for no deadline at all.
        const left = Math.max(1, Math.min(timeout, visit.deadline - Date.now()))
        try {
          const { signal } = request.from
          const { message: result } = await transport.unary(rpc, signal, left, passedOn, message, values)
          visit.written = true
          return result
        } catch (error) {
          visit.written = isAnswer(error)
          throw error
        }
      },
    }
  }

  /**
   * Leaves a request to Connect's adapter, whose fallback is `refuseUnknown`. The table comes first, since what the
   * adapter answers needs its headers set ahead: that takes 4 µs of a request of which reading a user takes 90.
   */
  function handOn(visit: Visit<Action>): undefined {
    const { request, response, target } = visit
    // The adapter makes a URL of it.
    const { host } = request.headers
    if (!host || !URL.canParse(`http://${host}`)) throw badHost()
    request.url = target
    response.setHeader('cache-control', 'no-store')
    // The adapter's 405 doesn't say it (RFC 9110, 15.5.6).
    if (request.method !== 'POST') response.setHeader('allow', 'POST')
    for (const [name, value] of Object.entries(commonHeaders(request))) response.setHeader(name, value)
    visit.isRpc = true
    if (isArriving(request)) void visit.away(() => new Promise(arrived => request.once('close', arrived)))
    handleRpc(visit)
  }

  function refuseUnknown(visit: Visit): void {
    const { request, response } = visit
    visit.isRpc = false
    const grpcWebType = /^application\/grpc-web[\w+-]*/i.exec(request.headers['content-type'] ?? '')?.[0]
    if (request.method !== 'POST' || grpcWebType === undefined) {
      response.removeHeader('allow')
      refuse(visit, new HttpError('NOT_FOUND', 'There is nothing at this path.'))
      return
    }
    // Without a body these headers are its trailers.
    response.setHeader('content-type', grpcWebType)
    response.setHeader('grpc-status', '12')
    response.setHeader('grpc-message', 'There is no such method.')
    response.end()
    endVisit(log, visit, 200, 'UNIMPLEMENTED')
  }

  function refuse(visit: Visit, error: unknown): void {
    const { request, response } = visit
    const problem = problemOf(error)
    // The call that asked who it is had a line of its own.
    if (error instanceof HttpError) visit.written = false
    const requestId = request.headers['x-request-id'] as string
    if (isUnreported(error)) log.error({ requestId, err: error }, 'request failed')
    send(request, response, answerProblem(problem, requestId))
    endVisit(log, visit, problem.status, problem.reason)
  }

  return {
    listen: listener.listen,
    drain() {
      draining = true
      listener.drain()
    },
    close: (graceMs = 10_000) => listener.close(graceMs),
  }
}

/** The answer of a gateway that is about to stop to a readiness probe. */
function answerStopping(requestId: string): Answer {
  return answerProblem(undelivered(Code.Unavailable), requestId)
}

/** Why a request is refused that couldn't begin. */
const sheddings: Readonly<Record<Shed, Problem>> = {
  overloaded: {
    status: 503,
    reason: 'OVERLOADED',
    detail: 'The service is busy. Try again later.',
    headers: { 'retry-after': '1' },
  },
  late: undelivered(Code.DeadlineExceeded),
}

/** What a request came to, for the metrics. */
function resultOf({ route, isRpc, startedAt, response }: Visit<Action>): Result {
  return {
    route: route ?? (isRpc ? 'RPC' : 'other'),
    status: response.headersSent ? response.statusCode : 'gone',
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

/** The path and the query of a request. Servers must understand the absolute form, too (RFC 9112, 3.2.2). */
function originForm(url: string): string {
  if (url.startsWith('/') || url === '*') return url
  return url.replace(/^https?:\/\/[^/?]*/i, '').replace(/^(?!\/)/, '/')
}

/** Milliseconds that a body takes; one that doesn't tell its length is charged as the longest. */
function costOfBody({ 'content-length': length, 'transfer-encoding': coding }: IncomingHttpHeaders): number {
  if (length === undefined && coding === undefined) return 0
  return costOf8KiB * Math.floor(Math.min(Number(length ?? bodyLimit), bodyLimit) / 8192)
}

/** Throws `HttpError` when the target of a request is too long, or it doesn't say of what host. */
function check({ httpVersion, headers, url = '' }: Request): void {
  if (url.length > targetLimit) throw new HttpError('URI_TOO_LONG', `The URL has more than ${targetLimit} characters.`)
  if (httpVersion === '1.1' && !headers.host) throw badHost()
}

function createAction(route: Route, revision: Revision): Action {
  const { rpc, timeout } = route
  if (!rpc) return { cost: trivialCost, act: async () => textAnswer(route.text ?? '') }
  const read = createRead(route, rpc)
  const write = createWrite(route, rpc, revision)

  async function translate({ segment, query, body, call }: Exchange) {
    try {
      return read({ segment, query, body: route.method === 'POST' ? await body() : undefined })
    } catch (error) {
      // Who may not call the operation learns that first, not what is wrong with the request.
      if (route.protected && error instanceof HttpError && error.reason !== 'PAYLOAD_TOO_LARGE') {
        await call(Users.method.getMe, create(Users.method.getMe.input))
      }
      throw error
    }
  }

  const act: Action['act'] = async exchange => {
    const { message, malformed } = await translate(exchange)
    const result = await exchange.call(rpc, message, { timeout, malformed })
    if (route.holds?.(result) === false)
      throw new HttpError('UNAVAILABLE', 'The service can’t answer now. Try again later.', { 'retry-after': '1' })
    return write(result, exchange.request.headers.accept)
  }
  return { cost: costOf(rpc), act }
}

function options204(allow?: string): Answer {
  return { status: 204, headers: allow === undefined ? {} : { allow }, body: '' }
}

function badHost(): HttpError {
  return new HttpError('MALFORMED_REQUEST', 'The header Host is missing or wrong.')
}
