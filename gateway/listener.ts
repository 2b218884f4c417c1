/**
 * One port for HTTP/1.1, without TLS or with, with the limits that keep a client from holding on to it.
 *
 * It leans on what Node.js doesn't document, and listener.test.ts holds the versions that are supported to it:
 * - An `http.Server` comes with one listener of `connection`, which speaks HTTP/1.1. It also takes a `TLSSocket` whose
 *   handshake hasn't begun.
 * - That listener adds one listener of `data`, the parser's; taken off and called by another with pieces of what
 *   arrives, it parses them alike (`pipelining.ts`). A parser is paused only along with its socket.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { limitPipeline, type Pipeline } from './pipelining.js'
import { Fault, type Problem, problemDocument, problemOf, securityHeaders } from './problem.js'

/** A request. */
export type Request = IncomingMessage

/** The response to a request. */
export type Response = ServerResponse

/** Whether the client of a request has left. */
export function isGone(request: Request): boolean {
  return request.socket.destroyed
}

/** Requests in progress on each connection. */
const pipelines = new WeakMap<Socket, Pipeline>()

/** Whether nothing else that came on the connection of a request waits for its answer. */
export function isAlone(request: Request): boolean {
  return pipelines.get(request.socket)?.pending.size === 1
}

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
  /** From now on each answer is the last of its connection: its client goes elsewhere for the next. */
  drain(): void
  /** Takes no more connections, lets requests finish for so many ms, then cuts off the rest. */
  close(graceMs: number): Promise<void>
}

/** What a client may take of a port. Times are in ms. */
export const listenerLimits = {
  /** How long a request may take to send its headers: the first of a connection from when that began, TLS included. */
  headersTimeout: 10_000,
  /** How long a request may take to arrive as a whole. */
  requestTimeout: 15_000,
  /** How long an unused connection stays open: longer than load balancers keep theirs. */
  keepAliveTimeout: 65_000,
  /** How long what a refused client still sends is thrown away before its connection is closed. */
  lingerTimeout: 500,
  /** Connections at one time. */
  maxConnections: 10_000,
}

/** Bytes of all headers of a request together. */
const headerBytes = 16 * 1024

/** Speaks TLS on a connection. */
export type Secure = (socket: Socket) => Socket

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

/** Prepares a listener. Requests go to `onRequest`. Without `secure` there is no TLS. */
export function createListener(
  { host, port }: Address,
  onRequest: (request: Request, response: Response) => void,
  given: Partial<typeof listenerLimits> = {},
  { secure, onRefusal = () => {}, onDrop = () => {} }: ListenerOptions = {},
): Listener {
  const limits = { ...listenerLimits, ...given }
  const sockets = new Set<Socket>()
  /** Those that haven't sent a byte yet, with TLS within it. */
  const silent = new Set<Socket>()
  let draining = false

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
    // A connection without a request, such as one that a browser opens ahead, gets no answer.
    if (!pipeline || silent.has(socket) || !socket.writable || error.code === 'ECONNRESET') {
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

  const [speakHttp] = server.listeners('connection') as [(socket: Socket) => void]
  server.removeAllListeners('connection')
  server.on('connection', (plain: Socket) => {
    const socket = secure ? secure(plain) : plain
    sockets.add(socket)
    silent.add(socket)
    speakHttp.call(server, socket)
    pipelines.set(socket, limitPipeline(socket))
    socket.prependOnceListener('data', () => silent.delete(socket))
    socket.once('close', () => {
      sockets.delete(socket)
      silent.delete(socket)
    })
  })

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
    for (const socket of silent) socket.destroy()
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

/** Headers of what is answered here, before anything knows the request. */
const headersOf = (requestId: string) => ({
  'content-type': 'application/problem+json',
  'cache-control': 'no-store',
  ...securityHeaders,
  'x-request-id': requestId,
})

/** The whole answer to bytes that are no request, ready to be written to the socket. */
function faultResponse(code: string | undefined, { remoteAddress }: Socket, onRefusal: OnRefusal): string {
  const requestId = randomUUID()
  const problem = problemOf(
    code === 'HPE_HEADER_OVERFLOW'
      ? new Fault('HEADERS_TOO_LARGE', `The headers have more than ${headerBytes} bytes.`)
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
