/** One port for HTTP/1.1 and for HTTP/2 without TLS, with the limits that keep a client from holding on to it. */
import { randomUUID } from 'node:crypto'
import { createServer, type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import {
  constants,
  createServer as createHttp2Server,
  type Http2ServerRequest,
  type Http2ServerResponse,
  type ServerHttp2Session,
} from 'node:http2'
import type { AddressInfo, Socket } from 'node:net'
import { Fault, problemDocument, problemOf } from './problem.js'

/** A request of either version of HTTP. */
export type Request = IncomingMessage | Http2ServerRequest

/** Its response. */
export type Response = ServerResponse | Http2ServerResponse

/** A host and a port. */
export interface Address {
  readonly host: string
  /** 0 takes any free port. */
  readonly port: number
}

/** A port that can be opened once and closed once. */
export interface Listener {
  /** Opens the port; resolves to where it really is. */
  listen(): Promise<Address>
  /** Takes no more connections, lets requests finish for so many ms, then cuts off the rest. */
  close(graceMs: number): Promise<void>
  /** Whether `close` was called. */
  readonly closing: boolean
}

/** Bytes of all headers of a request together. */
const headerBytes = 16 * 1024
/** How long a connection may take to send its first bytes, and a request its headers, in ms. */
const headersTimeout = 10_000
/** How long a request may take to arrive as a whole, in ms. */
const requestTimeout = 15_000
/** How long an unused HTTP/1.1 connection stays open, in ms: longer than load balancers keep theirs. */
const keepAliveTimeout = 65_000
/** How long an HTTP/2 connection may be silent, and how long one of its requests may take, in ms. */
const sessionTimeout = 120_000
const streamTimeout = 30_000
/** Connections at one time, of both versions. */
const maxConnections = 10_000

/** What an HTTP/2 client without TLS begins with (RFC 9113, 3.4). HTTP/1.1 has no method of this name. */
const preface = Buffer.from('PRI ')

/** Prepares a listener. Requests of both versions go to `onRequest`. */
export function createListener({ host, port }: Address, onRequest: (request: Request, response: Response) => void) {
  const sessions = new Set<ServerHttp2Session>()
  const strangers = new Set<Socket>()
  const sockets = new Set<Socket>()
  const current = new WeakMap<object, ServerResponse>()
  let closing = false

  const http2 = createHttp2Server(
    {
      settings: { maxConcurrentStreams: 100, maxHeaderListSize: headerBytes, enablePush: false },
      maxSessionMemory: 4,
    },
    (request, response) => {
      const timer = setTimeout(() => request.stream.close(constants.NGHTTP2_CANCEL), streamTimeout)
      request.stream.once('close', () => clearTimeout(timer))
      // A stream that its client breaks off is no fault; without a listener the error would end the process.
      request.on('error', () => {})
      response.on('error', () => {})
      // Node takes up to 64 KiB whatever the settings tell the client.
      if (sizeOf(request.rawHeaders) <= headerBytes) onRequest(request, response)
      else refuseHeaders(response)
    },
  )
  http2.setTimeout(sessionTimeout, () => {})
  http2.on('timeout', (session: ServerHttp2Session) => session.close())
  http2.on('session', session => {
    sessions.add(session)
    session.once('close', () => sessions.delete(session))
    if (closing) session.close()
  })
  // The same goes for a session.
  http2.on('sessionError', () => {})

  const server = createServer(
    {
      maxHeaderSize: headerBytes,
      headersTimeout,
      requestTimeout,
      keepAliveTimeout,
      connectionsCheckingInterval: 2_000,
      // A missing Host is answered like every other fault, not by Node.
      requireHostHeader: false,
      noDelay: true,
    },
    (request, response) => {
      current.set(request.socket, response)
      if (closing) response.shouldKeepAlive = false
      onRequest(request, response)
    },
  )
  server.maxConnections = maxConnections
  server.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    const response = current.get(socket)
    const halfSent = response?.headersSent && !response.writableFinished
    if (!socket.writable || halfSent || error.code === 'ECONNRESET') socket.destroy()
    else socket.end(faultResponse(error.code))
  })

  // The server's own listener speaks HTTP/1.1. It gets a connection only once its first bytes are known.
  const [http1] = server.listeners('connection') as ((socket: Socket) => void)[]
  server.removeAllListeners('connection')
  server.on('connection', (socket: Socket) => {
    const drop = () => socket.destroy()
    const timer = setTimeout(drop, headersTimeout)
    strangers.add(socket)
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    const leave = () => {
      clearTimeout(timer)
      strangers.delete(socket)
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
      if (isPrefix) http2.emit('connection', socket)
      else http1?.call(server, socket)
    }
    socket.on('readable', peek)
    socket.on('error', drop)
    socket.on('close', leave)
  })

  async function close(graceMs: number) {
    closing = true
    const closed = new Promise<void>(resolve => server.close(() => resolve()))
    for (const socket of strangers) socket.destroy()
    for (const session of sessions) session.close()
    // A connection that was busy when the server closed turns idle when its answer is out.
    const sweep = setInterval(() => server.closeIdleConnections(), 50)
    const cut = setTimeout(() => {
      // HTTP/2 streams that their client left half open would outlive their session.
      for (const session of sessions) session.destroy()
      for (const socket of sockets) socket.destroy()
    }, graceMs)
    await closed
    clearInterval(sweep)
    clearTimeout(cut)
  }

  return {
    listen: () =>
      new Promise<Address>((resolve, reject) => {
        server.once('error', reject)
        server.listen({ host, port }, () => {
          server.off('error', reject)
          resolve({ host, port: (server.address() as AddressInfo).port })
        })
      }),
    close,
    get closing() {
      return closing
    },
  } satisfies Listener
}

function sizeOf(headers: readonly string[]): number {
  return headers.reduce((size, text) => size + text.length, 0)
}

function headersTooLarge(): Fault {
  return new Fault('HEADERS_TOO_LARGE', `The headers have more than ${headerBytes} bytes.`)
}

function refuseHeaders(response: Http2ServerResponse): void {
  const requestId = randomUUID()
  const problem = problemOf(headersTooLarge())
  const headers = { 'content-type': 'application/problem+json', 'cache-control': 'no-store', 'x-request-id': requestId }
  response.writeHead(problem.status, headers)
  response.end(problemDocument(problem, requestId))
}

/** The whole answer to bytes that are no request, ready to be written to the socket. */
function faultResponse(code: string | undefined): string {
  const requestId = randomUUID()
  const problem = problemOf(
    code === 'HPE_HEADER_OVERFLOW'
      ? headersTooLarge()
      : code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? new Fault('REQUEST_TIMEOUT', 'The request took too long to arrive.')
        : new Fault('MALFORMED_REQUEST', 'This is not an HTTP request.'),
  )
  const body = problemDocument(problem, requestId)
  return [
    `HTTP/1.1 ${problem.status} ${STATUS_CODES[problem.status]}`,
    'content-type: application/problem+json',
    `content-length: ${Buffer.byteLength(body)}`,
    'cache-control: no-store',
    'x-content-type-options: nosniff',
    "content-security-policy: default-src 'none'",
    `x-request-id: ${requestId}`,
    'connection: close',
    '',
    body,
  ].join('\r\n')
}
