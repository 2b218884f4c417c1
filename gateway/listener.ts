/**
 * A port for HTTP/1.1, with or without TLS, with limits for each client. It passes each connection to node:http as a Duplex
 * (`connection.ts`), as the documentation of the event `connection` allows. It also enforces timeouts, which node:http
 * enforces only on its own ports.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, STATUS_CODES } from 'node:http'
import { type AddressInfo, createServer as createPort, type Socket } from 'node:net'
import { announcesTooMuch } from './body.js'
import { Connection, Request, type Response } from './connection.js'
import { connectionLimits, createConnectionLimits } from './connection-limits.js'
import { HttpError, type Problem, problemDocument, problemOf, securityHeaders } from './problem.js'

/** A host and a port. */
export interface Address {
  readonly host: string
  /** 0 selects any free port. */
  readonly port: number
}

/** A port that can be opened once and closed once. */
export interface Listener {
  /** Number of open connections. */
  connections(): number
  /** Opens the port; resolves to its actual address. */
  listen(): Promise<Address>
  /** Closes each connection after its response in progress, so that clients reconnect to other processes. */
  drain(): void
  /** Stops accepting connections, waits at most `graceMs` for requests in progress, then closes all connections. */
  close(graceMs: number): Promise<void>
}

/** Limits of the clients of a port. Times are in ms. */
export const listenerLimits = {
  ...connectionLimits,
  /** Time limit for the headers of a request to arrive; for the first request of a connection, including TLS. */
  headersTimeout: 10_000,
  /** Time limit for a whole request to arrive. */
  requestTimeout: 15_000,
  /** How long an idle connection stays open: longer than load balancers keep idle connections open. */
  keepAliveTimeout: 65_000,
  /** Time limit for the client to read a response. */
  unreadTimeout: 30_000,
  /** How long to discard the bytes of a refused client before its connection closes. */
  lingerTimeout: 500,
  /** Maximum connections of all clients. */
  maxConnections: 10_000,
}

/** Milliseconds between two checks of the timeouts. */
const sweepInterval = 500

/** Length of the accept queue. A starting proxy opens many connections at once. The system may set a lower limit. */
const backlog = 4_096

/** Maximum bytes of all headers of a request. */
const headerBytes = 16 * 1024

/** Adds TLS to a connection. */
export type Secure = (socket: Socket) => Socket

/** Called for each unreadable request that the listener refuses, with the address of the peer. */
type OnRefusal = (problem: Problem, requestId: string, peer: string | undefined) => void

interface ListenerOptions {
  readonly secure?: Secure
  readonly onRefusal?: OnRefusal
  /** Called when a response is sent, or its client has disconnected. */
  readonly onEnd?: (response: Response) => void
  /** Called for each connection that a limit refuses or closes. */
  readonly onCut?: (limit: 'connections' | 'unread') => void
  /** Whether a peer, by its canonical address, is a trusted proxy. */
  readonly isTrusted?: (address: string) => boolean
}

/** Whether a request waits for `100 Continue` before its body, and expects nothing else (RFC 9110, 10.1.1). */
export function expectsContinue({ headers }: Request): boolean {
  return headers.expect?.toLowerCase() === '100-continue'
}

/** Listens for the `error` event of aborted requests, which would otherwise end the process. */
function ignore(): void {}

/** Creates a listener that calls `onRequest` for each request. It uses TLS only with `secure`. */
export function createListener(
  { host, port }: Address,
  onRequest: (request: Request, response: Response) => void,
  given: Partial<typeof listenerLimits> = {},
  { secure, onRefusal = () => {}, onEnd = () => {}, onCut = () => {}, isTrusted = () => false }: ListenerOptions = {},
): Listener {
  const limits = { ...listenerLimits, ...given }
  const connectionsOf = createConnectionLimits(limits, isTrusted)
  const connections = new Set<Connection>()
  let draining = false

  const http = createServer<typeof Request>(
    {
      IncomingMessage: Request,
      maxHeaderSize: headerBytes,
      // Only sets the response header: `sweep` enforces the timeout.
      keepAliveTimeout: limits.keepAliveTimeout,
      // The gateway responds to a missing Host with a problem document.
      requireHostHeader: false,
    },
    arrive,
  )
  // Without these listeners, node:http answers by itself.
  http.on('checkContinue', arrive).on('checkExpectation', arrive)
  http.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    refuse(socket as unknown as Connection, error.code)
  })

  function arrive(request: Request, response: Response): void {
    const connection = request.socket as unknown as Connection
    request.from = connection
    request.on('error', ignore)
    response.on('error', ignore)
    connection.arrive(response)
  }

  function begin(request: Request, response: Response): void {
    if (draining) response.shouldKeepAlive = false
    if (expectsContinue(request) && !announcesTooMuch(request)) response.writeContinue()
    onRequest(request, response)
  }

  /** Responds to an unreadable or incomplete request, and closes the connection. */
  function refuse(connection: Connection, code: string | undefined): void {
    // A connection without a request, such as a preconnect of a browser, gets no response.
    if (connection.silent || !connection.writable || code === 'ECONNRESET') {
      connection.destroy()
      return
    }
    connection.refuse(() => {
      if (connection.writable) connection.end(faultResponse(code, connection, onRefusal))
      setTimeout(() => connection.destroy(), limits.lingerTimeout).unref()
    })
  }

  const listener = createPort({ noDelay: true, allowHalfOpen: true }, socket => {
    if (!connectionsOf.mayOpen(socket.remoteAddress)) {
      onCut('connections')
      socket.destroy()
      return
    }
    const connection = new Connection(secure ? secure(socket) : socket, begin, onEnd)
    const evicted = connectionsOf.add(connection)
    if (evicted) {
      onCut('connections')
      evicted.destroy()
    }
    connections.add(connection)
    connection.once('close', () => connections.delete(connection))
    http.emit('connection', connection)
  })
  listener.maxConnections = limits.maxConnections
  listener.on('drop', () => onCut('connections'))

  /** Closes connections that exceed a timeout. */
  function sweep(): void {
    const now = performance.now()
    const hasExceeded = (since: number | undefined, time: number) => since !== undefined && now - since > time
    for (const connection of connections) {
      const { response, newest, isWaiting, requestedAt, arrivingSince, unreadSince, activeAt } = connection
      if (hasExceeded(unreadSince, limits.unreadTimeout)) {
        onCut('unread')
        connection.destroy()
      } else if (isWaiting) {
        // Nothing is parsed meanwhile.
      } else if (newest?.complete === false) {
        if (hasExceeded(requestedAt, limits.requestTimeout)) refuse(connection, 'ERR_HTTP_REQUEST_TIMEOUT')
      } else if (!response) {
        if (hasExceeded(arrivingSince, limits.headersTimeout)) refuse(connection, 'ERR_HTTP_REQUEST_TIMEOUT')
        else if (arrivingSince === undefined && hasExceeded(activeAt, limits.keepAliveTimeout)) connection.destroy()
      }
    }
  }

  function drain(): void {
    draining = true
    for (const { response } of connections) if (response && !response.headersSent) response.shouldKeepAlive = false
  }

  async function close(graceMs: number): Promise<void> {
    drain()
    const closed = new Promise<void>(resolve => listener.close(() => resolve()))
    const closeIdle = () => {
      for (const connection of connections) {
        const { silent, response, arrivingSince } = connection
        if (silent || (!response && arrivingSince === undefined)) connection.destroy()
      }
    }
    closeIdle()
    // A busy connection becomes idle when its response is sent.
    const closing = setInterval(closeIdle, 50)
    const cut = setTimeout(() => {
      for (const connection of connections) connection.destroy()
    }, graceMs)
    await closed
    clearInterval(closing)
    clearInterval(sweeping)
    clearTimeout(cut)
  }

  let sweeping: NodeJS.Timeout | undefined
  return {
    connections: () => connections.size,
    async listen() {
      await once(listener.listen({ host, port, backlog }), 'listening')
      sweeping = setInterval(sweep, sweepInterval).unref()
      return { host, port: (listener.address() as AddressInfo).port }
    },
    drain,
    close,
  }
}

/** Returns the headers of the response to an unreadable request. */
const headersOf = (requestId: string) => ({
  'content-type': 'application/problem+json',
  'cache-control': 'no-store',
  ...securityHeaders,
  'x-request-id': requestId,
})

/** Returns the complete response to an unreadable request, as text. */
function faultResponse(code: string | undefined, { remoteAddress }: Connection, onRefusal: OnRefusal): string {
  const requestId = randomUUID()
  const problem = problemOf(
    code === 'HPE_HEADER_OVERFLOW'
      ? new HttpError('HEADERS_TOO_LARGE', `The headers have more than ${headerBytes} bytes.`)
      : code === 'ERR_HTTP_REQUEST_TIMEOUT'
        ? new HttpError('REQUEST_TIMEOUT', 'The request took too long to arrive.')
        : new HttpError('MALFORMED_REQUEST', 'This is not an HTTP request.'),
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
