/**
 * One port for HTTP/1.1 and HTTP/2, without TLS or with, with the limits that keep a client from holding on to it.
 *
 * It leans on what Node.js doesn't document, and listener.test.ts holds the versions that are supported to it:
 * - An `http.Server` comes with one listener of `connection`, which speaks HTTP/1.1. It may be called later, with a
 *   socket whose first bytes were read and put back (`unshift`).
 * - That listener adds one listener of `data`, the parser's; taken off and called by another with pieces of what
 *   arrives, it parses them alike (`pipelining.ts`). A parser is paused only along with its socket.
 * - An HTTP/2 server takes a socket, with bytes put back alike, by `emit('connection', socket)`.
 * - A `TLSSocket` does as a socket of either; over TLS a client that speaks HTTP/2 must have said so by ALPN.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Http2ServerRequest, Http2ServerResponse, ServerHttp2Session } from 'node:http2'
import type { AddressInfo, Socket } from 'node:net'
import { madeOnce, onFirstUse } from '../server/onfirstuse.js'
import { limitPipeline, type Pipeline } from './pipelining.js'
import { Fault, type Problem, problemDocument, problemOf, securityHeaders } from './problem.js'

/** Most clients speak HTTP/1.1: until one doesn’t, this would be a part of the start for nothing. */
const loadHttp2 = onFirstUse<typeof import('node:http2')>('node:http2')

/** A request of either version of HTTP. */
export type Request = IncomingMessage | Http2ServerRequest

/** Whether the client of a request has left. */
export function isGone(request: Request): boolean {
  return 'stream' in request ? request.stream.destroyed : request.socket.destroyed
}

/** Requests under way on connections: of HTTP/1.1 by socket, of HTTP/2 how many by session. */
const pipelines = new WeakMap<object, Pipeline>()
const streams = new WeakMap<object, number>()

/** Whether nothing else that came on the connection of a request waits for its answer. */
export function isAlone(request: Request): boolean {
  if (!('stream' in request)) return pipelines.get(request.socket)?.pending.size === 1
  const { session } = request.stream
  return session !== undefined && streams.get(session) === 1
}

/** The response to a request. */
export type Response = ServerResponse | Http2ServerResponse

/** A host and a port. */
export interface Address {
  readonly host: string
  /** 0 takes any free port. */
  readonly port: number
}

/** A port that can be opened once and closed once. */
export interface Listener {
  /** How many connections there are. */
  connections(): number
  /** Opens the port; resolves to where it really is. */
  listen(): Promise<Address>
  /** From now on each answer over HTTP/1.1 is the last of its connection: its client goes elsewhere for the next. */
  drain(): void
  /** Takes no more connections, lets requests finish for so many ms, then cuts off the rest. */
  close(graceMs: number): Promise<void>
}

/** What a client may take of a port. Times are in ms. */
export const listenerLimits = {
  /** How long a connection may take to send its first bytes, with TLS after its handshake, and a request its headers. */
  headersTimeout: 10_000,
  /** How long a request may take to arrive as a whole. */
  requestTimeout: 15_000,
  /** How long an unused HTTP/1.1 connection stays open: longer than load balancers keep theirs. */
  keepAliveTimeout: 65_000,
  /** How long an HTTP/2 connection may be silent. */
  sessionTimeout: 120_000,
  /** How long a request over HTTP/2 may take. */
  streamTimeout: 30_000,
  /** How long what a refused client still sends is thrown away before its connection is closed. */
  lingerTimeout: 500,
  /** Connections at one time, of both versions. */
  maxConnections: 10_000,
}

/** Bytes of all headers of a request together. */
const headerBytes = 16 * 1024

/** Speaks TLS on a connection, and chooses one of the protocols by ALPN. */
export type Secure = (socket: Socket, protocols: readonly string[]) => Socket

/** What an HTTP/2 client begins with (RFC 9113, 3.4). HTTP/1.1 has no method of this name. */
const preface = Buffer.from('PRI ')

/** Told of what was refused here, since it was no request that could be read, and of the peer that sent it. */
export type OnRefusal = (problem: Problem, requestId: string, peer: string | undefined) => void

interface ListenerOptions {
  readonly secure?: Secure
  readonly onRefusal?: OnRefusal
  /** Told of each connection that is one too many. */
  readonly onDrop?: () => void
}

/** A request that its client breaks off is no fault; without a listener the error would end the process. */
function outlive(request: Request, response: Response): void {
  request.on('error', () => {})
  response.on('error', () => {})
}

/** Prepares a listener. Requests of both versions go to `onRequest`. Without `secure` there is no TLS. */
export function createListener(
  { host, port }: Address,
  onRequest: (request: Request, response: Response) => void,
  given: Partial<typeof listenerLimits> = {},
  { secure, onRefusal = () => {}, onDrop = () => {} }: ListenerOptions = {},
): Listener {
  const limits = { ...listenerLimits, ...given }
  const sessions = new Set<ServerHttp2Session>()
  const pendingSockets = new Set<Socket>()
  const sockets = new Set<Socket>()
  let draining = false

  const http2 = madeOnce(createHttp2)

  const server = createServer(
    {
      maxHeaderSize: headerBytes,
      headersTimeout: limits.headersTimeout,
      requestTimeout: limits.requestTimeout,
      keepAliveTimeout: limits.keepAliveTimeout,
      connectionsCheckingInterval: 2_000,
      // A missing Host is answered like every other fault, not by Node.
      requireHostHeader: false,
      noDelay: true,
    },
    (request, response) => {
      outlive(request, response)
      const pipeline = pipelines.get(request.socket)
      if (draining) {
        // What was sent ahead is answered, too: only the last answer closes the connection.
        for (const earlier of pipeline?.pending ?? []) if (!earlier.headersSent) earlier.shouldKeepAlive = true
        response.shouldKeepAlive = false
      }
      pipeline?.begin(response)
      onRequest(request, response)
    },
  )
  server.maxConnections = limits.maxConnections
  server.on('drop', () => onDrop())
  server.on('clientError', (error: NodeJS.ErrnoException, socket: Socket) => {
    const pipeline = pipelines.get(socket)
    if (!pipeline || !socket.writable || error.code === 'ECONNRESET') {
      socket.destroy()
      return
    }
    pipeline.stop()
    const refuse = () => {
      if (socket.writable) socket.end(faultResponse(error.code, socket, onRefusal))
      setTimeout(() => socket.destroy(), limits.lingerTimeout).unref()
    }
    // What was asked before is answered first; a request that broke off in its body gets no other answer than this.
    const last = [...pipeline.pending].at(-1)
    if (!last) refuse()
    else if (last.req.complete) last.once('close', refuse)
    else if (pipeline.pending.size === 1 && !last.headersSent) refuse()
    else socket.destroy()
  })

  // The server's own listener speaks HTTP/1.1. It gets a connection only once its first bytes are known.
  const [speakHttp1] = server.listeners('connection') as [(socket: Socket) => void]
  server.removeAllListeners('connection')
  server.on('connection', (plain: Socket) => {
    const socket = secure ? secure(plain, ['h2', 'http/1.1']) : plain
    const drop = () => socket.destroy()
    const timer = setTimeout(drop, limits.headersTimeout)
    pendingSockets.add(socket)
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    const leave = () => {
      clearTimeout(timer)
      pendingSockets.delete(socket)
      socket.off('readable', peek)
      socket.off('error', drop)
      socket.off('close', leave)
    }
    let first: Buffer = Buffer.alloc(0)
    const peek = () => {
      const bytes: Buffer | null = socket.read()
      if (bytes === null) return
      first = Buffer.concat([first, bytes])
      const length = Math.min(first.length, preface.length)
      const isPrefix = first.subarray(0, length).equals(preface.subarray(0, length))
      if (isPrefix && length < preface.length) return
      leave()
      socket.unshift(first)
      if (isPrefix) {
        // As an HTTP/2 server’s own sockets: else one whose client has left would stay.
        socket.allowHalfOpen = false
        http2().emit('connection', socket)
        return
      }
      speakHttp1.call(server, socket)
      pipelines.set(socket, limitPipeline(socket))
    }
    socket.on('readable', peek)
    socket.on('error', drop)
    socket.on('close', leave)
  })

  function createHttp2() {
    const { constants, createServer } = loadHttp2()
    const http2 = createServer({
      settings: { maxConcurrentStreams: 128, maxHeaderListSize: headerBytes, enablePush: false },
      maxSessionMemory: 4,
    })
    const take = (request: Http2ServerRequest, response: Http2ServerResponse) => {
      outlive(request, response)
      const { stream } = request
      const { session } = stream
      // Broken off in the moment it came.
      if (!session) return
      const timer = setTimeout(() => stream.close(constants.NGHTTP2_CANCEL), limits.streamTimeout)
      const count = (more: number) => streams.set(session, (streams.get(session) ?? 0) + more)
      count(1)
      stream.once('close', () => {
        clearTimeout(timer)
        count(-1)
      })
      // Node takes up to 64 KiB whatever the settings tell the client.
      if (sizeOf(request.rawHeaders) <= headerBytes) onRequest(request, response)
      else refuseHeaders(request, response, onRefusal)
    }
    http2.on('request', take)
    // Node's own answer to `Expect: 100-continue` throws on a stream that is broken off already, which would end the process.
    http2.on('checkContinue', (request: Http2ServerRequest, response: Http2ServerResponse) => {
      if (!request.stream.destroyed && !request.stream.closed) response.writeContinue()
      take(request, response)
    })
    http2.setTimeout(limits.sessionTimeout, () => {})
    http2.on('timeout', (session: ServerHttp2Session) => session.close())
    http2.on('session', session => {
      sessions.add(session)
      session.once('close', () => sessions.delete(session))
    })
    // The same goes for a session as for a request.
    http2.on('sessionError', () => {})
    return http2
  }

  function drain() {
    draining = true
    for (const socket of sockets) {
      const last = [...(pipelines.get(socket)?.pending ?? [])].at(-1)
      if (last && !last.headersSent) last.shouldKeepAlive = false
    }
  }

  async function close(graceMs: number) {
    drain()
    const closed = new Promise<void>(resolve => server.close(() => resolve()))
    for (const socket of pendingSockets) socket.destroy()
    for (const session of sessions) session.close()
    // A connection that was busy when the server closed turns idle when its answer is out.
    const sweep = setInterval(() => server.closeIdleConnections(), 50)
    const cut = setTimeout(() => {
      for (const socket of sockets) socket.destroy()
    }, graceMs)
    await closed
    clearInterval(sweep)
    clearTimeout(cut)
  }

  return {
    connections: () => sockets.size,
    async listen() {
      await once(server.listen({ host, port }), 'listening')
      return { host, port: (server.address() as AddressInfo).port }
    },
    drain,
    close,
  }
}

function sizeOf(headers: readonly string[]): number {
  return headers.reduce((size, text) => size + text.length, 0)
}

function headersTooLarge(): Fault {
  return new Fault('HEADERS_TOO_LARGE', `The headers have more than ${headerBytes} bytes.`)
}

/** Headers of what is answered here, before anything knows the request. */
const headersOf = (requestId: string) => ({
  'content-type': 'application/problem+json',
  'cache-control': 'no-store',
  ...securityHeaders,
  'x-request-id': requestId,
})

function refuseHeaders({ socket }: Http2ServerRequest, response: Http2ServerResponse, onRefusal: OnRefusal): void {
  const requestId = randomUUID()
  const problem = problemOf(headersTooLarge())
  onRefusal(problem, requestId, socket?.remoteAddress)
  response.writeHead(problem.status, headersOf(requestId))
  response.end(problemDocument(problem, requestId))
}

/** The whole answer to bytes that are no request, ready to be written to the socket. */
function faultResponse(code: string | undefined, { remoteAddress }: Socket, onRefusal: OnRefusal): string {
  const requestId = randomUUID()
  const problem = problemOf(
    code === 'HPE_HEADER_OVERFLOW'
      ? headersTooLarge()
      : code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? new Fault('REQUEST_TIMEOUT', 'The request took too long to arrive.')
        : new Fault('MALFORMED_REQUEST', 'This is not an HTTP request.'),
  )
  onRefusal(problem, requestId, remoteAddress)
  const body = problemDocument(problem, requestId)
  return [
    `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}`,
    ...Object.entries(headersOf(requestId)).map(([name, value]) => `${name}: ${value}`),
    `content-length: ${Buffer.byteLength(body)}`,
    'connection: close',
    '',
    body,
  ].join('\r\n')
}
