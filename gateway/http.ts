/**
 * The gateway owns the HTTP port of clients: JSON over HTTP for every route of `operations.ts`, and Connect and gRPC-Web for the
 * same services, all on one HTTP/1.1 port. It forwards every call to a Connect `Transport` and knows nothing else about the
 * services, which own permissions, validation and counts. Programs create it: `main.ts` as a separate process, and the
 * service for a gateway in its own process.
 */

import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { create, type Message } from '@bufbuild/protobuf'
import { Code, createContextValues, type Transport } from '@connectrpc/connect'
import type { Registry } from 'prom-client'
import { OpenId } from '../proto/gen/auth/v1/openid_pb.js'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { Users } from '../proto/gen/auth/v1/users_pb.js'
import { type Scheduler, turnKey } from '../server/limits/scheduler.js'
import { describeSpan, inSpan, readParent, SpanKind, traceIdOf, tracing } from '../server/observability/tracing.js'
import { createSenderOf, network, type Sender } from '../server/requests/client-address.js'
import { costOfInput } from '../server/requests/input.js'
import { chooseLocale } from '../server/requests/locale.js'
import { createIsOwnHost } from '../server/requests/own-hosts.js'
import { Refusal } from '../server/requests/refusal.js'
import { announcesTooMuch, bodyTooLarge, costOfBody, readBody } from './body.js'
import { asBearer, challenged } from './client-authentication.js'
import { isGone, type Request, type Response, refusedPause } from './connection.js'
import { isForeign, isPreflight } from './cors.js'
import { type Answer, createSend, type Exchange, type Log, type Outcome, textAnswer } from './exchange.js'
import { type Address, createListener, expectsContinue, listenerLimits, type Secure } from './listener.js'
import { createGatewayMetrics } from './metrics.js'
import { moveCredentials, oauthError } from './oauth.js'
import { needsOfRpc, type Revision, type Route, revealsNames, routes, undocumented } from './operations.js'
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
import { createRpcs, forwardedHeaders, needsAt, timeoutOf } from './rpcs.js'
import { createSignIn, refusedPage } from './sign-in/sign-in.js'
import { createFileAnswer } from './static-file.js'
import { type Compatibility, createRead, createWrite, type Translated } from './translate.js'

/** Settings of a gateway, which server/process/settings.ts describes. */
interface GatewaySettings {
  readonly defaultRevision: Revision
  readonly compatibility?: Compatibility
  readonly trustedProxies: readonly string[]
  readonly corsOrigins: readonly string[]
  readonly docs: 'on' | 'off'
}

/** Options of a gateway. */
export interface GatewayOptions {
  /** Transport to the services `auth.v1.Users`, `auth.v1.ForgotPasswords` and `auth.v1.Changes`. */
  readonly transport: Transport
  /** Decides when requests begin. */
  readonly scheduler: Scheduler
  /** The name of the service whose valid key is in `authorization`, if it is cached. */
  readonly serviceOf?: (authorization: string | undefined) => string | undefined
  readonly address: Address
  /** URLs by whose hosts clients know it, beside IP addresses and `localhost`; absent: any `Host` passes. */
  readonly knownAs?: readonly string[]
  /** Adds TLS for clients; absent: no TLS. */
  readonly secure?: Secure
  readonly settings: GatewaySettings
  /** Called with the sender of each request and its `X-Forwarded-For`, trusted or not. */
  readonly onSender?: (sender: Sender, forwardedFor: string | undefined) => void
  readonly log: Log
  /** Counts requests and connections; absent: no metrics. */
  readonly registry?: Registry
  /** Overrides of `gatewayLimits`. */
  readonly limits?: Partial<typeof gatewayLimits>
}

/** Limits of a client. */
export const gatewayLimits = {
  ...listenerLimits,
  /** Time limit of a call, in ms; callers may request less. */
  callTimeout: 15_000,
}

/** Maximum number of characters of a request target. */
const targetLimit = 8 * 1024

/** What answers a method of a path. */
interface Action {
  /** What it needs of the scheduler, without the body. */
  readonly cost: number
  readonly hashes: boolean
  /** See `revealsNames`. */
  readonly reveals?: boolean
  /** See `Route`. */
  readonly challenges?: boolean | undefined
  act(exchange: Exchange): Outcome | Promise<Outcome>
  /** Words a refusal; absent: as a problem document. */
  refuse?(problem: Problem, request: Request, query: string): Answer
}

/** What an answer of the gateway itself needs, including refusals. */
const trivial = { cost: 0.1, hashes: false }

/** Creates a gateway, which listens after `listen`. It can be opened once and closed once. */
export function createGateway(options: GatewayOptions) {
  const { transport, scheduler, serviceOf = () => undefined, log, settings } = options
  const metrics = options.registry && createGatewayMetrics(options.registry)
  const limits = { ...gatewayLimits, ...options.limits }
  const { callTimeout } = limits
  const senderOf = createSenderOf(settings.trustedProxies)
  const { knownAs } = options
  const isOwnHost = knownAs ? createIsOwnHost([...knownAs, ...settings.corsOrigins]) : () => true
  const served = [
    ...(settings.docs === 'on' ? routes : routes.filter(({ file }) => file === undefined)),
    ...undocumented,
  ]
  const lookup = createLookup(served, settings.defaultRevision, (route, revision) =>
    createAction(route, revision, { ...options, callTimeout }),
  )
  const send = createSend(settings.corsOrigins, limits.lingerTimeout)
  const rpcOf = createRpcs({ transport, log, callTimeout })
  const listener = createListener(options.address, tracing ? serveInSpan : serve, limits, {
    secure: options.secure,
    onEnd: ({ req: { route = 'other', begunAt }, headersSent, statusCode }) =>
      metrics?.observe({
        route,
        status: headersSent ? statusCode : 'gone',
        seconds: (performance.now() - begunAt) / 1000,
      }),
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

  async function serve(request: Request, response: Response): Promise<void> {
    const { headers, from, method = '' } = request
    const { authorization } = headers
    const { proxied, networks } = identify(request)
    const { path, query } = targetOf(request)
    const resource = lookup(path)
    const action = resource?.actions.get(method)
    const ofCall = needsAt(path)
    request.route = resource?.path ?? (ofCall && 'RPC')
    if (action?.challenges) headers.authorization = asBearer(authorization)
    const service = serviceOf(headers.authorization)
    const { cost, hashes } = action ?? (resource ? trivial : ofCall) ?? trivial
    const claim = {
      networks: service === undefined ? networks : [`service ${service}`],
      cost: cost + costOfInput(request.url?.length ?? 0) + costOfBody(headers),
      hashes,
      deadline: Date.now() + Math.min(callTimeout, ofCall ? timeoutOf(headers) : callTimeout),
    }
    function finish({ answer, reason, isLogged }: Outcome): void {
      if (isGone(request)) return
      send(request, response, answer)
      if (!isLogged) logRequest(log, request, resource?.path, answer, reason)
      if (tracing) describeServed(request, resource?.path, answer)
    }
    try {
      using turn = await scheduler.take(claim, from)
      check(request)
      if ((action ?? ofCall)?.reveals && !proxied && !isOwnHost(headers.host))
        throw new HttpError('MISDIRECTED_REQUEST', 'The Host header names another host.')
      const exchange = { request, response, path, query, deadline: claim.deadline, turn }
      if (resource?.isShared) request.isOfClient = await isOfClient(exchange)
      finish(await (action && !draining ? action.act(exchange) : respond(exchange, resource, action)))
    } catch (error) {
      const problem = action?.challenges ? challenged(problemOf(error), authorization) : problemOf(error)
      const requestId = headers['x-request-id']
      if (isUnreported(error)) log.error({ requestId, err: error }, 'request failed')
      // The scheduler refused it.
      if (error instanceof Refusal) await slowDown(request, error, proxied)
      const answer = (action?.refuse ?? answerProblem)(problem, request, query)
      finish({ answer, reason: problem.reason, isLogged: isAnswer(error) })
    }
  }

  function serveInSpan(request: Request, response: Response): Promise<void> {
    const { headers } = request
    const name = methodOf(request)
    const parent = readParent(name => headers[name] as string | undefined)
    const span = { name, kind: SpanKind.SERVER, attributes: { 'http.request.method': name }, parent }
    return inSpan(span, () => serve(request, response))
  }

  /** Determines the sender of a request, and sets the headers by which services know it. */
  function identify({ headers, from }: Request): Sender {
    const forwardedFor = headers['x-forwarded-for'] as string | undefined
    const sender = senderOf(from.remoteAddress, forwardedFor)
    options.onSender?.(sender, forwardedFor)
    const givenId = headers['x-request-id'] as string | undefined
    headers['x-request-id'] = sender.proxied && givenId && /^[\w-]{1,64}$/.test(givenId) ? givenId : randomUUID()
    headers['x-forwarded-for'] = sender.address
    return sender
  }

  /** Whether a page of a client sent a request. Without an answer, none did. */
  async function isOfClient({ request: { headers, from }, deadline, turn }: Exchange): Promise<boolean> {
    const { origin } = headers
    if (origin === undefined) return false
    const left = Math.max(1, Math.min(callTimeout, deadline - Date.now()))
    const values = createContextValues().set(turnKey, turn)
    const { authorization: _, ...passedOn } = forwardedHeaders(headers)
    const { checkOrigin } = OpenId.method
    const asked = transport.unary(checkOrigin, from.signal, left, passedOn, { origin }, values)
    return asked.then(({ message }) => message.known).catch(() => false)
  }

  /** The answer to a request without an action, or while the gateway stops. */
  function respond(
    exchange: Exchange,
    resource: Resource<Action> | undefined,
    action: Action | undefined,
  ): Outcome | Promise<Outcome> {
    const { request, path } = exchange
    const { method } = request
    if (isPreflight(request)) return { answer: options204() }
    if (path === '*' && method === 'OPTIONS') return { answer: options204('GET, HEAD, POST, OPTIONS') }
    if (!resource) return respondRpc(exchange)
    if (method === 'OPTIONS') return { answer: options204(resource.allow) }
    if (!action)
      throw new HttpError('METHOD_NOT_ALLOWED', `Allowed methods: ${resource.allow}.`, { allow: resource.allow })
    if (path === '/readyz') return { answer: answerProblem(problemOfCode(Code.Unavailable), request) }
    return action.act(exchange)
  }

  function respondRpc(exchange: Exchange): Outcome | Promise<Outcome> {
    const { request, path } = exchange
    const handle = rpcOf(path)
    if (!handle) return unknownPath(request)
    // Connect parses the host as that of a URL.
    const { host } = request.headers
    if (!host || !URL.canParse(`http://${host}`)) throw badHost()
    return handle(exchange)
  }

  return {
    /** Opens the port; resolves to its actual address. */
    listen: listener.listen,
    /** Reports not ready at `/readyz`; all other requests are still served. */
    drain() {
      draining = true
      listener.drain()
    },
    /** Accepts no more connections, gives requests `graceMs` to finish, then closes the rest. */
    close: (graceMs = 10_000) => listener.close(graceMs),
  }
}

/** Creates what answers a route. */
function createAction(route: Route, revision: Revision, options: GatewayOptions & { callTimeout: number }): Action {
  const { transport, settings, callTimeout } = options
  const { compatibility } = settings
  const { rpc, timeout = callTimeout, file } = route
  if (file !== undefined) {
    const answer = createFileAnswer(file.replace('{revision}', revision), route.mediaType!, route.cache!)
    return { ...trivial, act: ({ request }) => ({ answer: answer(request.headers) }) }
  }
  if (route.browser) {
    const { cost } = needsOfRpc(Users.method.login)
    const act = createSignIn(transport, timeout)[route.browser]
    const hashes = route.method === 'POST' && ['login', 'recover'].includes(route.browser)
    return { cost: (hashes ? cost : 0) + 2, hashes, act, refuse: refusedPage(route.browser) }
  }
  if (!rpc) return { ...trivial, act: () => ({ answer: textAnswer(route.text ?? '') }) }
  const read = createRead(route, rpc.input, compatibility)
  const write = createWrite(route, rpc, revision, compatibility)
  const isVariable = route.path.endsWith('}')

  /** Calls the RPC on behalf of the client. `more` are headers about a message that can't be read as sent. */
  function call({ request: { headers, from }, deadline, turn }: Exchange, message: Message, more: object) {
    // The deadline counts from the arrival. For a Transport, 0 means no deadline.
    const left = Math.max(1, Math.min(timeout, deadline - Date.now()))
    const passedOn = Object.assign(forwardedHeaders(headers), more)
    if (route.credentials) delete passedOn.authorization
    return transport.unary(rpc!, from.signal, left, passedOn, message, createContextValues().set(turnKey, turn))
  }

  /** Refuses a caller without permission: it gets that refusal first, not the errors of its request. */
  async function checkCaller(exchange: Exchange): Promise<void> {
    await call(exchange, create(rpc!.input), { 'x-malformed-message': '1' }).catch(refusal => {
      if (problemOf(refusal).reason !== 'MALFORMED_REQUEST') throw refusal
    })
  }

  async function act(exchange: Exchange): Promise<Outcome> {
    const { request, path, query } = exchange
    if (route.ownPagesOnly && isForeign(request, settings.corsOrigins))
      throw new HttpError('ACCESS_DENIED', 'Pages of other sites may not send this.')
    const segment = isVariable ? path.slice(path.lastIndexOf('/') + 1) : undefined
    let input: Translated
    try {
      const body = route.method === 'GET' ? undefined : await readBody(exchange)
      input = read({ segment, query, body, turn: exchange.turn })
    } catch (error) {
      const isUnread = error instanceof HttpError && error.reason !== 'PAYLOAD_TOO_LARGE'
      if (route.protected && isUnread) await checkCaller(exchange)
      throw error
    }
    if (route.credentials) moveCredentials(route.credentials, request.headers, input.message)
    const { message } = await call(exchange, input.message, input.headers)
    if (route.holds?.(message) === false) {
      const { detail, headers } = problemOfCode(Code.Unavailable)
      throw new HttpError('UNAVAILABLE', detail, headers)
    }
    return { answer: write(message, request.headers.accept), isLogged: true }
  }
  const { credentials, challenges } = route
  const refuse = credentials && ((problem: Problem) => oauthError(credentials, problem))
  return { ...needsOfRpc(rpc), reveals: revealsNames(rpc), challenges, act, ...(refuse && { refuse }) }
}

/** Logs a request that no service has logged: with no input of the client, and its path only if it is a known one. */
function logRequest(
  log: Log,
  request: Request,
  path: string | undefined,
  { status }: Answer,
  reason: string | undefined,
): void {
  // Probes arrive every few seconds.
  if (path === '/healthz' || path === '/readyz') return
  const { headers, begunAt } = request
  const fields = {
    method: methodOf(request),
    path,
    status,
    reason,
    ms: Math.round((performance.now() - begunAt) * 10) / 10,
    requestId: headers['x-request-id'],
    traceId: traceIdOf(headers.traceparent as string | undefined),
    network: network(headers['x-forwarded-for'] as string),
    endpoint: 'http',
  }
  log.info(fields, 'request')
}

/** Discards the body of a request that the scheduler refuses, and slows its client down. */
async function slowDown(request: Request, { reason }: Refusal, proxied: boolean): Promise<void> {
  request.resume()
  if (!proxied) request.from.hold()
  // A proxy's connection carries other clients afterwards, so the refusal itself waits.
  else if (reason === Reason.OVERLOADED) await sleep(3 * refusedPause(), undefined, { ref: false })
}

/** Methods that are logged; all others are `other`. */
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

/** The method of a request, for the log or a span. */
function methodOf({ method = '' }: Request): string {
  return methods.includes(method) ? method : 'other'
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

function describeServed(request: Request, route: string | undefined, { status }: Answer): void {
  const attributes = {
    'http.response.status_code': status,
    'http.route': route,
    'auth.request_id': request.headers['x-request-id'] as string,
  }
  describeSpan(attributes, route && `${methodOf(request)} ${route}`)
}

/** A problem document in the language that the client prefers. */
function answerProblem(given: Problem, { headers }: Pick<Request, 'headers'>): Answer {
  const locale = chooseLocale(headers['accept-language'], 'en')
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
function targetOf({ url = '' }: Request): { readonly path: string; readonly query: string } {
  const isOrigin = url.startsWith('/') || url === '*'
  const target = isOrigin ? url : url.replace(/^https?:\/\/[^/?]*/i, '').replace(/^(?!\/)/, '/')
  const mark = target.indexOf('?')
  if (mark < 0) return { path: decodeUnreserved(target), query: '' }
  return { path: decodeUnreserved(target.slice(0, mark)), query: target.slice(mark + 1) }
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
  const { httpVersion, headers, url = '' } = request
  if (url.length > targetLimit) throw new HttpError('URI_TOO_LONG', `The URL has more than ${targetLimit} characters.`)
  // Others on the way may have chosen the other one, or read its body differently: nothing further on the connection counts.
  if (hasTwoHosts(request)) throw new HttpError('MALFORMED_REQUEST', 'Send one Host header.', closing)
  if (httpVersion === '1.1' && !headers.host) throw badHost()
  if (httpVersion === '1.0' && headers['transfer-encoding'] !== undefined)
    throw new HttpError('MALFORMED_REQUEST', 'HTTP/1.0 has no Transfer-Encoding.', closing)
  if (headers.expect === undefined) return
  if (!expectsContinue(request))
    throw new HttpError('EXPECTATION_FAILED', 'The only expectation that is met is 100-continue.', closing)
  // The listener left out `100 Continue`.
  if (announcesTooMuch(request)) throw bodyTooLarge()
}

function hasTwoHosts({ rawHeaders }: Request): boolean {
  let hosts = 0
  for (let index = 0; index < rawHeaders.length; index += 2)
    if (rawHeaders[index]!.length === 4 && rawHeaders[index]!.toLowerCase() === 'host') hosts++
  return hosts > 1
}

/** For refusals after which the connection closes, because its further bytes may be a body. */
const closing = { connection: 'close' }

function options204(allow?: string): Answer {
  return { status: 204, headers: allow === undefined ? {} : { allow }, body: '' }
}

function badHost(): HttpError {
  return new HttpError('MALFORMED_REQUEST', 'The Host header is missing or invalid.')
}
