/**
 * The gateway: JSON over HTTP for every row of `routes.ts`, and Connect, gRPC-Web and gRPC for the same services, all
 * on one port. It passes every call on to a Connect `Transport` and knows nothing else of what stands behind it.
 */
import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import { create, type DescMethodUnary, type Message, toJson } from '@bufbuild/protobuf'
import { Code, ConnectError, type ConnectRouter, cors, type Transport } from '@connectrpc/connect'
import { connectNodeAdapter } from '@connectrpc/connect-node'
import { ForgotPasswords } from '../proto/gen/auth/v1/forgotpasswords_pb.js'
import { GetKeysResponseSchema, Users } from '../proto/gen/auth/v1/users_pb.js'
import { createSenderOf } from '../server/clientaddress.js'
import { bodyLimit, readBody } from './body.js'
import { type Address, createListener, type Request, type Response } from './listener.js'
import { Fault, problemDocument, problemOf } from './problem.js'
import { createLookup } from './router.js'
import type { Revision, Route } from './routes.js'
import { type Answer, createTranslation } from './translate.js'

/** Where the gateway reports failures, as `{ requestId, error }`. A pino logger fits. */
export interface Log {
  error(fields: object, message: string): void
}

/** What a gateway is made of. */
export interface GatewayOptions {
  /** Leads to the services `auth.v1.Users` and `auth.v1.ForgotPasswords`. */
  readonly transport: Transport
  readonly address: Address
  /** Revision served at the base path `/`. */
  readonly defaultRevision: Revision
  /** Addresses or CIDR blocks of proxies whose `X-Forwarded-For` and `X-Request-Id` are believed. */
  readonly trustedProxies: readonly string[]
  /** Origins (RFC 6454) whose scripts may read answers, letter for letter. */
  readonly corsOrigins: readonly string[]
  readonly log: Log
}

/** A gateway that can be opened once and closed once. */
export interface Gateway {
  /** Opens the port; resolves to where it really is. */
  listen(): Promise<Address>
  /** Takes no more connections, lets requests finish for so many ms (10 000 by default), then cuts off the rest. */
  close(graceMs?: number): Promise<void>
}

/** How long a call may take, in ms; callers may ask for less. */
const callTimeout = 15_000
/** How long the readiness check waits for the services, in ms. */
const readinessTimeout = 2_000
/** Characters that the target of a request may have. */
const targetLimit = 8 * 1024
/** How long what remains of a body that is too large is thrown away before the connection closes, in ms. */
const lingering = 500

/** Headers that go on to the services. The last two are the gateway's findings, whatever the client sent. */
const forwarded = ['authorization', 'accept-language', 'x-request-id', 'x-forwarded-for'] as const

const services = [Users, ForgotPasswords]
const rpcPaths = new Set(services.flatMap(({ typeName, methods }) => methods.map(({ name }) => `/${typeName}/${name}`)))

const securityHeaders = { 'x-content-type-options': 'nosniff', 'content-security-policy': "default-src 'none'" }

/** What an action needs of its request. */
interface Exchange {
  readonly request: Request
  /** Last segment of the path as sent, where that is a variable. */
  readonly segment: string | undefined
  readonly query: string
  /** Calls an RPC on behalf of the client. */
  call(rpc: DescMethodUnary, message: Message, more?: { timeout?: number; malformed?: string }): Promise<Message>
}

type Action = (exchange: Exchange) => Promise<Answer>

/** Prepares a gateway. Nothing listens before `listen` is called. */
export function createGateway(options: GatewayOptions): Gateway {
  const { transport, log } = options
  const senderOf = createSenderOf(options.trustedProxies)
  const origins = new Set(options.corsOrigins)
  const lookup = createLookup<Action>(options.defaultRevision, createAction, {
    '/healthz': async () => plain('ok'),
    '/readyz': readyz,
    '/.well-known/jwks.json': jwks,
  })

  const rpcs = connectNodeAdapter({
    routes: router => mountServices(router, transport),
    readMaxBytes: bodyLimit,
  })

  function onRequest(request: Request, response: Response) {
    const { headers } = request
    const sender = senderOf(request.socket?.remoteAddress, one(headers['x-forwarded-for']))
    const givenId = one(headers['x-request-id'])
    const requestId = sender.proxied && givenId && /^[\w-]{1,64}$/.test(givenId) ? givenId : randomUUID()
    headers['x-request-id'] = requestId
    headers['x-forwarded-for'] = sender.address

    const target = request.url ?? ''
    if (!target.startsWith('/auth.v1.') || !rpcPaths.has(target.split('?', 1)[0] as string)) {
      return void answer(request, response)
    }
    if (request.method === 'OPTIONS') {
      return send(request, response, options204('POST, OPTIONS'))
    }
    try {
      for (const [name, value] of Object.entries(commonHeaders(request))) response.setHeader(name, value)
      rpcs(request, response as Parameters<typeof rpcs>[1])
    } catch (error) {
      // The adapter throws when Host makes no URL.
      refuse(request, response, error instanceof TypeError || error instanceof ConnectError ? badHost() : error)
    }
  }

  const listener = createListener(options.address, onRequest)

  async function answer(request: Request, response: Response): Promise<void> {
    try {
      send(request, response, await act(request, response))
    } catch (error) {
      refuse(request, response, error)
    }
  }

  async function act(request: Request, response: Response): Promise<Answer> {
    const { headers, method = '' } = request
    let target = request.url ?? ''
    if (target.length > targetLimit) {
      throw new Fault('URI_TOO_LONG', `The URL has more than ${targetLimit} characters.`)
    }
    if (request.httpVersion === '1.1' && !headers.host) throw badHost()
    if (!target.startsWith('/')) {
      if (target === '*' && method === 'OPTIONS') return options204('GET, HEAD, POST, OPTIONS')
      // Servers must understand the absolute form, too (RFC 9112, 3.2.2).
      target = target.replace(/^https?:\/\/[^/?]*/i, '').replace(/^(?!\/)/, '/')
    }
    const mark = target.indexOf('?')
    const path = mark < 0 ? target : target.slice(0, mark)
    const query = mark < 0 ? '' : target.slice(mark + 1)

    const resource = lookup(path)
    if (!resource) throw new Fault('NOT_FOUND', 'There is nothing at this path.')
    const { actions, allow, variable } = resource
    if (method === 'OPTIONS') return options204(allow)
    const action = actions.get(method)
    if (!action) throw new Fault('METHOD_NOT_ALLOWED', `The methods here are ${allow}.`, { allow })

    const gone = goneOf(request, response)
    return action({
      request,
      query,
      segment: variable ? path.slice(path.lastIndexOf('/') + 1) : undefined,
      async call(rpc, message, { timeout = callTimeout, malformed } = {}) {
        const passedOn = passOn(name => headers[name])
        if (malformed) passedOn['x-malformed-fields'] = malformed
        return (await transport.unary(rpc, gone, timeout, passedOn, message)).message
      },
    })
  }

  function refuse(request: Request, response: Response, error: unknown): void {
    const problem = problemOf(error)
    const requestId = one(request.headers['x-request-id']) ?? ''
    // A call that ended because its client has gone is no failure.
    const canceled = error instanceof ConnectError && error.code === Code.Canceled
    if (problem.reason === 'INTERNAL' && !canceled) {
      log.error({ requestId, error }, 'request failed')
    }
    send(request, response, {
      status: problem.status,
      headers: { 'content-type': 'application/problem+json', 'cache-control': 'no-store', ...problem.headers },
      body: problemDocument(problem, requestId),
    })
  }

  function send(request: Request, response: Response, { status, headers, body }: Answer): void {
    if (response.headersSent || response.destroyed) return
    const bytes = Buffer.byteLength(body)
    const all = { ...headers, ...commonHeaders(request) }
    if (status !== 204) all['content-length'] = String(bytes)
    if (status === 413) {
      sendAndHangUp(request, response, all, body)
      return
    }
    writeHead(response, status, all)
    if (bytes === 0 || request.method === 'HEAD') response.end()
    else response.end(body)
  }

  /** Headers of every answer. */
  function commonHeaders({ headers }: Request): Record<string, string> {
    const common: Record<string, string> = { ...securityHeaders, 'x-request-id': headers['x-request-id'] as string }
    if (origins.size === 0) return common
    common.vary = 'origin'
    const { origin } = headers
    if (origin === undefined || !origins.has(origin)) return common
    common['access-control-allow-origin'] = origin
    common['access-control-expose-headers'] = exposedHeaders
    if (headers['access-control-request-method']) {
      common['access-control-allow-methods'] = 'GET, HEAD, POST'
      common['access-control-allow-headers'] = allowedHeaders
      common['access-control-max-age'] = '7200'
    }
    return common
  }

  return {
    listen: listener.listen,
    close: (graceMs = 10_000) => listener.close(graceMs),
  }
}

const allowedHeaders = ['authorization', 'accept-language', ...cors.allowedHeaders].join(', ').toLowerCase()
const exposedHeaders = ['x-request-id', 'retry-after', ...cors.exposedHeaders].join(', ').toLowerCase()

/** Mounts the services for Connect, gRPC-Web and gRPC: each call goes on as it came. */
function mountServices(router: ConnectRouter, transport: Transport): void {
  for (const rpc of services.flatMap(service => service.methods as DescMethodUnary[])) {
    router.rpc(rpc, async (message, context) => {
      const timeout = Math.min(context.timeoutMs() ?? callTimeout, callTimeout)
      const passedOn = passOn(name => context.requestHeader.get(name))
      try {
        return (await transport.unary(rpc, context.signal, timeout, passedOn, message)).message
      } catch (error) {
        throw error instanceof ConnectError ? bare(error) : error
      }
    })
  }
}

/** The error without the headers it came with: they belong to the call behind the gateway, not to the one before it. */
function bare(error: ConnectError): ConnectError {
  const copy = new ConnectError(error.rawMessage, error.code, undefined, undefined, error)
  copy.details = error.details
  return copy
}

function passOn(header: (name: string) => string | string[] | null | undefined): Record<string, string> {
  const passedOn: Record<string, string> = {}
  for (const name of forwarded) {
    const value = header(name)
    if (typeof value === 'string') passedOn[name] = value
  }
  return passedOn
}

function createAction(route: Route, revision: Revision): Action {
  const { read, write } = createTranslation(route, revision)

  async function translate({ request, segment, query, call }: Exchange) {
    try {
      return read({ segment, query, body: route.method === 'POST' ? await readBody(request) : undefined })
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
    const result = await exchange.call(route.rpc, message, malformed === undefined ? {} : { malformed })
    return write(result, exchange.request.headers.accept)
  }
}

async function readyz({ call }: Exchange): Promise<Answer> {
  const rpc = ForgotPasswords.method.findAllForgotPasswordQuestions
  try {
    await call(rpc, create(rpc.input), { timeout: readinessTimeout })
  } catch {
    throw new ConnectError('', Code.Unavailable)
  }
  return plain('ok')
}

async function jwks({ call }: Exchange): Promise<Answer> {
  const keys = await call(Users.method.getKeys, create(Users.method.getKeys.input))
  return {
    status: 200,
    headers: { 'content-type': 'application/jwk-set+json', 'cache-control': 'public, max-age=300' },
    body: JSON.stringify(toJson(GetKeysResponseSchema, keys as never, { alwaysEmitImplicit: true })),
  }
}

function plain(body: string): Answer {
  return { status: 200, headers: { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' }, body }
}

function options204(allow: string): Answer {
  return { status: 204, headers: { allow }, body: '' }
}

function badHost(): Fault {
  return new Fault('MALFORMED_REQUEST', 'The header Host is missing or wrong.')
}

/**
 * Answers and closes the connection though a part of the body hasn't been read. What still arrives is thrown away for
 * a moment: closing at once would reset the connection, and the client might never see the answer.
 */
function sendAndHangUp(request: Request, response: Response, headers: Record<string, string>, body: string): void {
  request.on('error', () => {})
  request.resume()
  if ('stream' in response) {
    response.writeHead(413, headers)
    response.end(body, () => response.stream?.close())
    return
  }
  response.writeHead(413, { ...headers, connection: 'close' })
  response.write(body)
  const timer = setTimeout(() => response.end(), lingering)
  request.once('end', () => {
    clearTimeout(timer)
    response.end()
  })
}

function writeHead(response: Response, status: number, headers: Record<string, string>): void {
  if ('stream' in response) response.writeHead(status, headers)
  else response.writeHead(status, headers)
}

const goners = new WeakMap<object, AbortSignal>()

/** Aborted when the client has gone. Requests of an HTTP/1.1 connection share one: making it costs as much as the rest. */
function goneOf(request: Request, response: Response): AbortSignal {
  if ('stream' in response) {
    const gone = new AbortController()
    response.once('close', () => {
      if (!response.writableEnded) gone.abort()
    })
    return gone.signal
  }
  const known = goners.get(request.socket)
  if (known) return known
  const gone = new AbortController()
  // One for each request of a pipeline.
  setMaxListeners(0, gone.signal)
  request.socket.once('close', () => gone.abort())
  goners.set(request.socket, gone.signal)
  return gone.signal
}

/** A header that may come more than once, as one value. */
function one(value: string | string[] | undefined): string | undefined {
  return typeof value === 'object' ? value.join(',') : value
}
