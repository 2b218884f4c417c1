/**
 * The gateway owns the HTTP port of clients: JSON over HTTP for every row of `routes.ts`, and Connect and gRPC-Web for the
 * same services, all on one HTTP/1.1 port. It forwards every call to a Connect `Transport` and knows nothing else about the
 * services, which own permissions, validation and counts. Programs create it: `main.ts` as a separate process, and the
 * service for a gateway in its own process.
 */

import { randomUUID } from 'node:crypto'
import type { IncomingHttpHeaders } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { create, type DescMethodUnary, type Message } from '@bufbuild/protobuf'
import { Code, createContextValues, type Transport } from '@connectrpc/connect'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { type Scheduler, type Turn, turnKey } from '../server/limits/scheduler.js'
import { describeSpan, inSpan, readParent, SpanKind, traceHeaders, tracing } from '../server/observability/tracing.js'
import { createSenderOf, network, type Sender } from '../server/requests/client-address.js'
import { Refusal } from '../server/requests/refusal.js'
import { type Log, logRequest, methodOf } from './access-log.js'
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
} from './problem.js'
import { createLookup, type Resource } from './router.js'
import { costOf, type Revision, type Route, routes } from './routes.js'
import { costOfRpc, createRpcs, forwardedHeaders } from './rpcs.js'
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

/** A request that has its turn. */
interface Exchange {
  readonly request: Request
  readonly response: Response
  readonly path: string
  readonly query: string
  /** When its answer is due, in ms since 1970. */
  readonly deadline: number
  readonly turn: Turn
}

/** What the metrics have of a request. */
interface Served {
  readonly path: string
  /** Its path in the table of routes. */
  readonly route: string | undefined
  readonly startedAt: number
}

/** An answer, with what the access log has of it. */
interface Outcome {
  readonly answer: Answer
  readonly reason?: string
  /** Whether the service that answered has logged the request. */
  readonly isLogged?: boolean
}

/** What an action gets of a request. */
interface Input {
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
  /** Whether it calls an RPC, which logs what it answers. */
  readonly calls: boolean
  act(input: Input): Promise<Answer>
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
  const { send, isPreflight } = createSender(options.corsOrigins, limits.lingerTimeout)
  const rpcOf = createRpcs({ transport, log, callTimeout })
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
    if (tracing) void serveInSpan(request, response)
    else void serve(request, response)
  }

  async function serve(request: Request, response: Response): Promise<void> {
    const startedAt = performance.now()
    const deadline = Date.now() + callTimeout
    const { headers, from, method = '' } = request
    const { proxied, networks } = identify(request)
    const target = originForm(request.url ?? '')
    const mark = target.indexOf('?')
    const path = decodeUnreserved(mark < 0 ? target : target.slice(0, mark))
    const query = mark < 0 ? '' : target.slice(mark + 1)
    const resource = lookup(path)
    const action = resource?.actions.get(method)
    const route = resource?.path
    if (metrics) response.once('close', () => metrics.observe(resultOf(response, { path, route, startedAt })))

    const service = serviceOf(action?.challenges ? asBearer(headers.authorization) : headers.authorization)
    const cost = (action?.cost ?? (resource ? trivialCost : costOfRpc(path)) ?? trivialCost) + costOfBody(headers)
    const claim = { networks: service === undefined ? networks : [`service ${service}`], cost, deadline }
    async function answerInTurn(): Promise<Outcome> {
      using turn = await scheduler.take(claim, from)
      check(request)
      const exchange = { request, response, path, query, deadline, turn }
      return await respond(exchange, resource, action)
    }
    function finish({ answer, reason, isLogged }: Outcome): void {
      if (isGone(request)) return
      send(request, response, answer)
      if (!isLogged) logRequest(log, request, { path: route, status: answer.status, reason, startedAt })
      if (tracing) describeServed(request, answer, route)
    }
    try {
      finish(await answerInTurn())
    } catch (error) {
      finish(await refuse(request, error, action?.challenges, proxied))
    }
  }

  /** The answer to a request that is refused. */
  async function refuse(request: Request, error: unknown, challenges = false, proxied: boolean): Promise<Outcome> {
    const { headers, from } = request
    const requestId = headers['x-request-id'] as string
    const problem = challenges ? challenged(problemOf(error), headers.authorization) : problemOf(error)
    if (isUnreported(error)) log.error({ requestId, err: error }, 'request failed')
    if (error instanceof Refusal) {
      // The scheduler refused it: its body is discarded, and its client slowed down.
      request.resume()
      if (!proxied) from.hold()
      // A proxy's connection carries other clients afterwards, so the refusal itself waits.
      else if (error.reason === Reason.OVERLOADED) await sleep(2 * refusedPause(), undefined, { ref: false })
    }
    return { answer: answerProblem(problem, headers), reason: problem.reason, isLogged: isAnswer(error) }
  }

  /** Determines the sender of a request, and sets the headers that tell the services about it. */
  function identify({ headers, from }: Request): Sender {
    const forwardedFor = headers['x-forwarded-for'] as string | undefined
    const sender = senderOf(from.remoteAddress, forwardedFor)
    options.onSender?.(sender, forwardedFor)
    const givenId = headers['x-request-id'] as string | undefined
    headers['x-request-id'] = sender.proxied && givenId && /^[\w-]{1,64}$/.test(givenId) ? givenId : randomUUID()
    headers['x-forwarded-for'] = sender.address
    return sender
  }

  function serveInSpan(request: Request, response: Response): Promise<void> {
    const { headers } = request
    const name = methodOf(request)
    const parent = readParent(name => headers[name] as string | undefined)
    const span = { name, kind: SpanKind.SERVER, attributes: { 'http.request.method': name }, parent }
    return inSpan(span, () => serve(request, response))
  }

  /** The answer to a request that has its turn. */
  async function respond(
    exchange: Exchange,
    resource: Resource<Action> | undefined,
    action: Action | undefined,
  ): Promise<Outcome> {
    const { request, path } = exchange
    const { method, headers } = request
    if (isPreflight(request)) return { answer: options204() }
    if (path === '*' && method === 'OPTIONS') return { answer: options204('GET, HEAD, POST, OPTIONS') }
    if (!resource) return respondRpc(exchange)
    if (method === 'OPTIONS') return { answer: options204(resource.allow) }
    if (!action)
      throw new HttpError('METHOD_NOT_ALLOWED', `Allowed methods: ${resource.allow}.`, { allow: resource.allow })
    if (draining && path === '/readyz') return { answer: answerStopping(headers) }
    return { answer: await action.act(actionInput(exchange, resource, action)), isLogged: action.calls }
  }

  async function respondRpc(exchange: Exchange): Promise<Outcome> {
    const { request, path } = exchange
    const handle = rpcOf(path)
    if (!handle) return unknownPath(request)
    // It is parsed as a URL.
    const { host } = request.headers
    if (!host || !URL.canParse(`http://${host}`)) throw badHost()
    const { answer, isAnswered } = await handle(exchange)
    return { answer, isLogged: isAnswered }
  }

  function actionInput(
    { request, path, query, deadline, turn }: Exchange,
    { variable }: Resource<Action>,
    { challenges }: Action,
  ): Input {
    const { headers, from } = request
    return {
      request,
      query,
      segment: variable ? path.slice(path.lastIndexOf('/') + 1) : undefined,
      body: () => (isArriving(request) ? turn.pause(() => readBody(request)) : readBody(request)),
      async call(rpc, message, { timeout = callTimeout, malformed, undecodable } = {}) {
        const passedOn = forwardedHeaders(name =>
          challenges && name === 'authorization' ? asBearer(headers.authorization) : headers[name],
        )
        if (malformed) passedOn['x-malformed-fields'] = malformed
        if (undecodable) passedOn['x-malformed-message'] = '1'
        if (tracing) Object.assign(passedOn, traceHeaders())
        const values = createContextValues().set(turnKey, turn)
        // The deadline counts from the arrival. For a Transport, 0 means no deadline.
        const left = Math.max(1, Math.min(timeout, deadline - Date.now()))
        return (await transport.unary(rpc, from.signal, left, passedOn, message, values)).message
      },
    }
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

/** The answer to a path that is neither a route nor an RPC. */
function unknownPath({ method, headers }: Request): Outcome {
  const { 'content-type': type = '', 'connect-protocol-version': connectVersion } = headers
  const grpcWebType = method === 'POST' && /^application\/grpc-web[\w+-]*/i.exec(type)?.[0]
  const reason = 'UNIMPLEMENTED'
  // In a response without a body, these headers are the trailers.
  const trailers = { 'grpc-status': '12', 'grpc-message': 'The method does not exist.' }
  if (grpcWebType)
    return { answer: { status: 200, headers: { 'content-type': grpcWebType, ...trailers }, body: '' }, reason }
  if (method === 'POST' && connectVersion !== undefined) return { answer: unimplemented, reason }
  throw new HttpError('NOT_FOUND', 'The path does not exist.')
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

/** The result of a request, for the metrics. */
function resultOf({ headersSent, statusCode }: Response, { path, route, startedAt }: Served): Result {
  return {
    route: route ?? (costOfRpc(path) === undefined ? 'other' : 'RPC'),
    status: headersSent ? statusCode : 'gone',
    seconds: (performance.now() - startedAt) / 1000,
  }
}

function describeServed(request: Request, { status }: Answer, route: string | undefined): void {
  const attributes = {
    'http.response.status_code': status,
    'auth.request_id': request.headers['x-request-id'] as string,
  }
  describeSpan({ ...attributes, ...(route && { 'http.route': route }) }, route && `${methodOf(request)} ${route}`)
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
    return { cost: trivialCost, calls: false, act: async ({ request }) => answer(request.headers) }
  }
  if (!rpc) return { cost: trivialCost, calls: false, act: async () => textAnswer(route.text ?? '') }
  const read = createRead(route, rpc, compatibility)
  const write = createWrite(route, rpc, revision, compatibility)

  async function translate({ segment, query, body, call }: Input) {
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

  const act: Action['act'] = async input => {
    const { message, malformed } = await translate(input)
    const result = await input.call(rpc, message, { timeout, malformed })
    if (route.holds?.(result) === false) {
      const { detail, headers } = problemOfCode(Code.Unavailable)
      throw new HttpError('UNAVAILABLE', detail, headers)
    }
    return write(result, input.request.headers.accept)
  }
  return { cost: costOf(rpc), challenges: route.challenges, calls: true, act }
}

function options204(allow?: string): Answer {
  return { status: 204, headers: allow === undefined ? {} : { allow }, body: '' }
}

function badHost(): HttpError {
  return new HttpError('MALFORMED_REQUEST', 'The Host header is missing or invalid.')
}
