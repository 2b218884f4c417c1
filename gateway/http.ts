/**
 * The gateway owns the HTTP port of clients: JSON over HTTP for every row of `routes.ts`, and Connect and gRPC-Web for the
 * same services, all on one HTTP/1.1 port. It forwards every call to a Connect `Transport` and knows nothing else about the
 * services, which own permissions, validation and counts. Programs create it: `main.ts` as a separate process, and the
 * service for a gateway in its own process.
 */

import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import type { IncomingHttpHeaders } from 'node:http'
import { create, type DescMethodUnary, type Message } from '@bufbuild/protobuf'
import { Code, createContextValues, type Transport } from '@connectrpc/connect'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import type { Scheduler, Shed } from '../server/limits/scheduler.js'
import { workKey } from '../server/limits/work-key.js'
import { describeSpan, inSpan, readParent, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { createSenderOf, network, type Sender } from '../server/requests/client-address.js'
import { endVisit, type Log, methodOf, Visit } from './access-log.js'
import { announcesTooMuch, type Body, bodyLimit, bodyTooLarge, isArriving, readBody } from './body.js'
import { asBearer, challenged } from './client-authentication.js'
import { isGone, type Request, type Response, refusedPause } from './connection.js'
import { type Address, createListener, expectsContinue, listenerLimits, type Secure } from './listener.js'
import type { GatewayMetrics, Result } from './metrics.js'
import { preferredLocale } from './negotiation.js'
import { inPortuguese } from './portuguese.js'
import {
  HttpError,
  isAnswer,
  isUnreported,
  type Problem,
  problemDocument,
  problemOf,
  problemOfCode,
  problemOfReason,
} from './problem.js'
import { createLookup, type Resource } from './router.js'
import { costOf, type Revision, type Route, routes } from './routes.js'
import { costOfRpc, createRpcHandler, forwardedHeaders } from './rpcs.js'
import { createSender } from './send.js'
import { createFileAnswer } from './static-file.js'
import { type Answer, type Compatibility, createRead, createWrite, textAnswer } from './translate.js'

/** Options of a gateway. */
export interface GatewayOptions {
  /** Transport to the services `auth.v1.Users`, `auth.v1.ForgotPasswords` and `auth.v1.Changes`. */
  readonly transport: Transport
  /** Decides when requests begin. */
  readonly scheduler: Scheduler
  /** The name of the service whose valid key is in `authorization`, if it is cached. */
  readonly serviceOf?: (authorization: string | undefined) => string | undefined
  readonly address: Address
  /** Adds TLS for clients; absent: no TLS. */
  readonly secure?: Secure
  /** Revision served at the base path `/`. */
  readonly defaultRevision: Revision
  /** Other clients than those of the contract to adapt to. */
  readonly compatibility?: Compatibility
  /** Addresses or CIDR blocks of proxies whose `X-Forwarded-For` and `X-Request-Id` are trusted. */
  readonly trustedProxies: readonly string[]
  /** Called with the sender of each request and its `X-Forwarded-For`, trusted or not. */
  readonly onSender?: (sender: Sender, forwardedFor: string | undefined) => void
  /** Origins (RFC 6454) whose scripts may read answers, exactly as browsers send them. */
  readonly corsOrigins: readonly string[]
  /** Whether to serve the files of the build: pages, OpenAPI documents and definitions. */
  readonly docs: boolean
  readonly log: Log
  /** Counts requests and connections; absent: no metrics. */
  readonly metrics?: GatewayMetrics
  /** Overrides of `gatewayLimits`. */
  readonly limits?: Partial<typeof gatewayLimits>
}

/** A gateway that can be opened once and closed once. */
export interface Gateway {
  /** Opens the port; resolves to its actual address. */
  listen(): Promise<Address>
  /** Reports not ready at `/readyz`; all other requests are still served. */
  drain(): void
  /** Accepts no more connections, gives requests `graceMs` to finish (10,000 by default), then closes the rest. */
  close(graceMs?: number): Promise<void>
}

/** Limits of a client. */
export const gatewayLimits = {
  ...listenerLimits,
  /** Time limit of a call, in ms; callers may request less. */
  callTimeout: 15_000,
}

/** Maximum number of characters of a request target. */
const targetLimit = 8 * 1024

/** The request of an action. */
interface Exchange {
  readonly request: Request
  /** Last segment of the path as sent, if it is a variable. */
  readonly segment: string | undefined
  readonly query: string
  /** Reads the body. */
  body(): Promise<Body | undefined>
  /** Calls an RPC on behalf of the client. */
  call(rpc: DescMethodUnary, message: Message, more?: CallOptions): Promise<Message>
}

/** Options of a call. */
interface CallOptions {
  /** Time limit in ms, if shorter than `callTimeout`. */
  readonly timeout?: number | undefined
  /** See `Translated`. */
  readonly malformed?: string | undefined
  /** Whether the request can't be read: the RPC gets an empty message, and refuses it if nothing else is wrong. */
  readonly undecodable?: boolean
}

interface Action {
  /** Milliseconds of main thread and database, without the body. */
  readonly cost: number
  /** See `Route`. */
  readonly challenges?: boolean | undefined
  act(exchange: Exchange): Promise<Answer>
}

/** Cost in ms of an answer of the gateway itself, including refusals. */
const trivialCost = 0.1

/** Cost in ms of reading and checking 8 KiB of a body. */
const costOf8KiB = 0.3

/** Creates a gateway, which listens after `listen`. */
export function createGateway(options: GatewayOptions): Gateway {
  const { transport, scheduler, serviceOf = () => undefined, log, metrics } = options
  const limits = { ...gatewayLimits, ...options.limits }
  const { callTimeout } = limits
  const senderOf = createSenderOf(options.trustedProxies)
  const served = options.docs ? routes : routes.filter(({ file }) => file === undefined)
  const lookup = createLookup<Action>(served, options.defaultRevision, (route, revision) =>
    createAction(route, revision, options.compatibility),
  )
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
  metrics?.watch(() => ({ connections: listener.connections(), maxConnections: limits.maxConnections }))
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
    const path = decodeUnreserved(mark < 0 ? target : target.slice(0, mark))
    const query = mark < 0 ? '' : target.slice(mark + 1)
    const resource = lookup(path)
    const action = resource?.actions.get(request.method ?? '')
    const operationCost = action?.cost ?? (resource ? trivialCost : costOfRpc(path)) ?? trivialCost
    const cost = operationCost + costOfBody(headers)
    const deadline = Date.now() + callTimeout
    const service = serviceOf(action?.challenges ? asBearer(headers.authorization) : headers.authorization)
    const networks = service === undefined ? sender.networks : [`service ${service}`]
    const visit = new Visit(hooks, request, response, path, query, resource, sender.proxied, networks, cost, deadline)
    request.visit = visit
    scheduler.submit(visit)
  }

  const hooks = {
    answer(visit: Visit<Action>) {
      if (isGone(visit.request)) return
      if (tracing) void answerInSpan(visit)
      else void answer(visit)
    },
    shed(visit: Visit<Action>, why: Shed) {
      const { request, response, proxied } = visit
      // Discards its body.
      request.resume()
      const answer = () => {
        const problem = shedProblems[why]
        send(request, response, answerProblem(problem, request.headers))
        endVisit(log, visit, problem.status, problem.reason)
      }
      // A proxy's connection carries other clients afterwards, so the refusal itself waits.
      if (proxied && why === 'overloaded') setTimeout(() => isGone(request) || answer(), 2 * refusedPause()).unref()
      else answer()
      if (!proxied) request.from.hold()
    },
    answered: (visit: Visit<Action>) => scheduler.end(visit),
    close(visit: Visit<Action>) {
      scheduler.end(visit)
      if (visit.isRpc) endVisit(log, visit, visit.response.statusCode)
      metrics?.observe(resultOf(visit))
    },
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
    const { request, response, resource } = visit
    try {
      const given = await act(visit)
      if (!given) {
        // The span ends with the adapter's answer.
        if (tracing) await once(response, 'close')
        return
      }
      send(request, response, given)
      endVisit(log, visit, given.status)
    } catch (error) {
      refuse(visit, error, resource?.actions.get(request.method ?? '')?.challenges)
    }
  }

  /** The answer to a request; undefined if Connect's adapter answers it. */
  async function act(visit: Visit<Action>): Promise<Answer | undefined> {
    const { request, path, resource } = visit
    const { headers, method = '' } = request
    check(request)
    if (isPreflight(request)) return options204()
    if (path === '*' && method === 'OPTIONS') return options204('GET, HEAD, POST, OPTIONS')

    if (!resource) return delegate(visit)
    if (method === 'OPTIONS') return options204(resource.allow)
    const action = resource.actions.get(method)
    if (!action)
      throw new HttpError('METHOD_NOT_ALLOWED', `Allowed methods: ${resource.allow}.`, { allow: resource.allow })
    if (draining && path === '/readyz') return answerStopping(headers)
    return action.act(exchangeOf(visit, resource, action))
  }

  function exchangeOf(visit: Visit<Action>, { variable }: Resource<Action>, { challenges }: Action): Exchange {
    const { request, path, query } = visit
    const { headers } = request
    return {
      request,
      query,
      segment: variable ? path.slice(path.lastIndexOf('/') + 1) : undefined,
      body: () => (isArriving(request) ? visit.releaseDuring(() => readBody(request)) : readBody(request)),
      async call(rpc, message, { timeout = callTimeout, malformed, undecodable } = {}) {
        const passedOn = forwardedHeaders(name =>
          challenges && name === 'authorization' ? asBearer(headers.authorization) : headers[name],
        )
        if (malformed) passedOn['x-malformed-fields'] = malformed
        if (undecodable) passedOn['x-malformed-message'] = '1'
        if (tracing) Object.assign(passedOn, traceHeaders())
        const values = createContextValues().set(workKey, visit)
        // The deadline counts from the arrival. For a Transport, 0 means no deadline.
        const left = Math.max(1, Math.min(timeout, visit.deadline - Date.now()))
        try {
          const { signal } = request.from
          const { message: result } = await transport.unary(rpc, signal, left, passedOn, message, values)
          visit.logged = true
          return result
        } catch (error) {
          visit.logged = isAnswer(error)
          throw error
        }
      },
    }
  }

  /**
   * Passes a request to the handler of Connect and gRPC-Web, whose fallback is `refuseUnknown`. It needs the headers of its
   * answer in advance, which is expensive: so the table of routes comes first (docs/measurements-log.md).
   */
  function delegate(visit: Visit<Action>): undefined {
    const { request, response, path } = visit
    // Connect parses it as a URL.
    const { host } = request.headers
    if (!host || !URL.canParse(`http://${host}`)) throw badHost()
    request.url = path
    response.setHeader('cache-control', 'no-store')
    // The adapter's 405 lacks it (RFC 9110, 15.5.6).
    if (request.method !== 'POST') response.setHeader('allow', 'POST')
    for (const [name, value] of Object.entries(commonHeaders(request))) response.setHeader(name, value)
    visit.isRpc = true
    handleRpc(visit)
  }

  function refuseUnknown(visit: Visit): void {
    const { request, response } = visit
    visit.isRpc = false
    const { 'content-type': type = '', 'connect-protocol-version': connectVersion } = request.headers
    const grpcWebType = /^application\/grpc-web[\w+-]*/i.exec(type)?.[0]
    if (request.method !== 'POST' || grpcWebType === undefined) {
      response.removeHeader('allow')
      if (request.method === 'POST' && connectVersion !== undefined) {
        send(request, response, unimplemented)
        endVisit(log, visit, unimplemented.status, 'UNIMPLEMENTED')
        return
      }
      refuse(visit, new HttpError('NOT_FOUND', 'The path does not exist.'))
      return
    }
    // In a response without a body, these headers are the trailers.
    response.setHeader('content-type', grpcWebType)
    response.setHeader('grpc-status', '12')
    response.setHeader('grpc-message', 'The method does not exist.')
    response.end()
    endVisit(log, visit, 200, 'UNIMPLEMENTED')
  }

  function refuse(visit: Visit, error: unknown, challenges = false): void {
    const { request, response } = visit
    const problem = challenges ? challenged(problemOf(error), request.headers.authorization) : problemOf(error)
    // The call that checked the token has a separate line.
    if (error instanceof HttpError) visit.logged = false
    const requestId = request.headers['x-request-id'] as string
    if (isUnreported(error)) log.error({ requestId, err: error }, 'request failed')
    send(request, response, answerProblem(problem, request.headers))
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

/** Connect's answer to a client that calls an RPC that doesn't exist. */
const unimplemented: Answer = {
  status: 501,
  headers: { 'content-type': 'application/json', 'cache-control': 'no-store' },
  body: JSON.stringify({ code: 'unimplemented', message: 'The method does not exist.' }),
}

/** The answer of `/readyz` while draining. */
function answerStopping(headers: IncomingHttpHeaders): Answer {
  return answerProblem(problemOfCode(Code.Unavailable), headers)
}

/** Problems of requests that the scheduler refuses. */
const shedProblems: Readonly<Record<Shed, Problem>> = {
  overloaded: problemOfReason(Reason.OVERLOADED),
  late: problemOfReason(Reason.DEADLINE_EXCEEDED),
}

/** The result of a request, for the metrics. */
function resultOf({ route, isRpc, startedAt, response }: Visit<Action>): Result {
  return {
    route: route ?? (isRpc ? 'RPC' : 'other'),
    status: response.headersSent ? response.statusCode : 'gone',
    seconds: (performance.now() - startedAt) / 1000,
  }
}

/** A problem document in the language that the client prefers. */
function answerProblem(given: Problem, headers: IncomingHttpHeaders): Answer {
  const locale = preferredLocale(headers['accept-language'])
  const problem = locale === 'pt-BR' ? inPortuguese(given) : given
  return {
    status: problem.status,
    headers: {
      'content-type': 'application/problem+json',
      'content-language': locale,
      'cache-control': 'no-store',
      ...problem.headers,
    },
    body: problemDocument(problem, headers['x-request-id'] as string),
  }
}

/** Path and query of a request. Servers must also accept the absolute form (RFC 9112, 3.2.2). */
function originForm(url: string): string {
  if (url.startsWith('/') || url === '*') return url
  return url.replace(/^https?:\/\/[^/?]*/i, '').replace(/^(?!\/)/, '/')
}

/** Cost of a body in ms; a body without a length costs as much as the longest. */
function costOfBody({ 'content-length': length, 'transfer-encoding': coding }: IncomingHttpHeaders): number {
  if (length === undefined && coding === undefined) return 0
  return costOf8KiB * Math.floor(Math.min(Number(length ?? bodyLimit), bodyLimit) / 8192)
}

/** Decodes the percent-encoded unreserved characters of a path, which mean the same without it (RFC 3986, 6.2.2.2). */
function decodeUnreserved(path: string): string {
  if (!path.includes('%')) return path
  return path.replace(/%([2-7][\da-f])/gi, (encoded, hex) => {
    const character = String.fromCharCode(Number.parseInt(hex, 16))
    return /[\w.~-]/.test(character) ? character : encoded
  })
}

/** Throws `HttpError` if a request can't be served for its target or for headers that don't concern its operation. */
function check(request: Request): void {
  const { httpVersion, headers, rawHeaders, url = '' } = request
  if (url.length > targetLimit) throw new HttpError('URI_TOO_LONG', `The URL has more than ${targetLimit} characters.`)
  // Others on the way may have chosen the other one, or read its body differently: nothing further on the connection counts.
  if (rawHeaders.filter((name, index) => index % 2 === 0 && name.length === 4 && /^host$/i.test(name)).length > 1)
    throw new HttpError('MALFORMED_REQUEST', 'Send one Host header.', closing)
  if (httpVersion === '1.1' && !headers.host) throw badHost()
  if (httpVersion === '1.0' && headers['transfer-encoding'] !== undefined)
    throw new HttpError('MALFORMED_REQUEST', 'HTTP/1.0 has no Transfer-Encoding.', closing)
  if (headers.expect === undefined) return
  if (!expectsContinue(request))
    throw new HttpError('EXPECTATION_FAILED', 'The only expectation that is met is 100-continue.', closing)
  // The listener left out `100 Continue`.
  if (announcesTooMuch(request)) throw bodyTooLarge()
}

/** For refusals after which the connection closes, because its further bytes may be a body. */
const closing = { connection: 'close' }

function createAction(route: Route, revision: Revision, compatibility: Compatibility): Action {
  const { rpc, timeout, file } = route
  if (file !== undefined) {
    const answer = createFileAnswer(file.replace('{revision}', revision), route.mediaType!, route.cache!)
    return { cost: trivialCost, act: async ({ request }) => answer(request.headers) }
  }
  if (!rpc) return { cost: trivialCost, act: async () => textAnswer(route.text ?? '') }
  const read = createRead(route, rpc, compatibility)
  const write = createWrite(route, rpc, revision, compatibility)

  async function translate({ segment, query, body, call }: Exchange) {
    try {
      return read({ segment, query, body: route.method === 'GET' ? undefined : await body() })
    } catch (error) {
      // A caller without permission gets that refusal first, not the errors of the request.
      if (route.protected && error instanceof HttpError && error.reason !== 'PAYLOAD_TOO_LARGE') {
        await call(rpc!, create(rpc!.input), { undecodable: true }).catch(refusal => {
          if (problemOf(refusal).reason !== 'MALFORMED_REQUEST') throw refusal
        })
      }
      throw error
    }
  }

  const act: Action['act'] = async exchange => {
    const { message, malformed } = await translate(exchange)
    const result = await exchange.call(rpc, message, { timeout, malformed })
    if (route.holds?.(result) === false) {
      const { detail, headers } = problemOfCode(Code.Unavailable)
      throw new HttpError('UNAVAILABLE', detail, headers)
    }
    return write(result, exchange.request.headers.accept)
  }
  return { cost: costOf(rpc), challenges: route.challenges, act }
}

function options204(allow?: string): Answer {
  return { status: 204, headers: allow === undefined ? {} : { allow }, body: '' }
}

function badHost(): HttpError {
  return new HttpError('MALFORMED_REQUEST', 'The Host header is missing or invalid.')
}
