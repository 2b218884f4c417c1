/**
 * One port for HTTP/1.1, without TLS or with, with the limits that keep a client from holding on to it. node:http gets each
 * connection as a Duplex (`connection.ts`), as the documentation of its event `connection` provides for; the times that
 * node:http measures on a port of its own are measured here.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, STATUS_CODES } from 'node:http'
import { type AddressInfo, createServer as createPort, type Socket } from 'node:net'
import { Connection, Request, Response } from './connection.js'
import { connectionLimits, createConnectionLimits } from './connection-limits.js'
import { HttpError, type Problem, problemDocument, problemOf, securityHeaders } from './problem.js'

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
  ...connectionLimits,
  /** How long a request may take to send its headers: the first of a connection from when that began, TLS included. */
  headersTimeout: 10_000,
  /** How long a request may take to arrive as a whole. */
  requestTimeout: 15_000,
  /** How long an unused connection stays open: longer than load balancers keep theirs. */
  keepAliveTimeout: 65_000,
  /** How long an answer may take to be read. */
  unreadTimeout: 30_000,
  /** How long what a refused client still sends is thrown away before its connection is closed. */
  lingerTimeout: 500,
  /** Connections of all clients at one time. */
  maxConnections: 10_000,
}

/** Milliseconds between two looks at the times of connections. */
const sweepInterval = 500

/** Connections that wait to be taken: a proxy that starts opens many at once. The system may allow fewer. */
const backlog = 4_096

/** Bytes of all headers of a request together. */
const headerBytes = 16 * 1024

/** Speaks TLS on a connection. */
export type Secure = (socket: Socket) => Socket

/** Called with what was refused here, since it was no request that could be read, and the peer that sent it. */
export type OnRefusal = (problem: Problem, requestId: string, peer: string | undefined) => void

interface ListenerOptions {
  readonly secure?: Secure
  readonly onRefusal?: OnRefusal
  /** Called for each connection that a limit kept out or ended. */
  readonly onCut?: (limit: 'connections' | 'unread') => void
  /** Peers that stand for many clients, by their canonical addresses. */
  readonly isTrusted?: (address: string) => boolean
}

/** A request that its client breaks off is no fault; without a listener the error would end the process. */
function ignore(): void {}

function release(this: Response): void {
  this.req.from.release(this.req)
}

/** Prepares a listener. Requests go to `onRequest`. Without `secure` there is no TLS. */
export function createListener(
  { host, port }: Address,
  onRequest: (request: Request, response: Response) => void,
  given: Partial<typeof listenerLimits> = {},
  { secure, onRefusal = () => {}, onCut = () => {}, isTrusted = () => false }: ListenerOptions = {},
): Listener {
  const limits = { ...listenerLimits, ...given }
  const connectionsOf = createConnectionLimits(limits, isTrusted)
  const connections = new Set<Connection>()
  let draining = false

  const http = createServer<typeof Request, typeof Response>(
    {
      IncomingMessage: Request,
      ServerResponse: Response,
      maxHeaderSize: headerBytes,
      // For the header; the time itself is measured here.
      keepAliveTimeout: limits.keepAliveTimeout,
      // A missing Host is answered like every other fault, not by Node.
      requireHostHeader: false,
    },
    (request, response) => {
      const connection = request.socket as unknown as Connection
      request.from = connection
      request.on('error', ignore)
      response.on('error', ignore).on('close', release)
      if (draining) {
        // What was sent ahead is answered, too: only the last answer closes the connection.
        if (connection.response && !connection.response.headersSent) connection.response.shouldKeepAlive = true
        response.shouldKeepAlive = false
      }
      connection.begin(request, response)
      onRequest(request, response)
    },
  )
  http.on('clientError', (error: NodeJS.ErrnoException, socket) => {
    refuse(socket as unknown as Connection, error.code)
  })

  /** Answers what is no request, or doesn't arrive as one, and closes the connection. */
  function refuse(connection: Connection, code: string | undefined): void {
    // A connection without a request, such as one that a browser opens ahead, gets no answer.
    if (connection.silent || !connection.writable || code === 'ECONNRESET') {
      connection.destroy()
      return
    }
    connection.stop()
    connection.arrivingSince = undefined
    const answer = () => {
      if (connection.writable) connection.end(faultResponse(code, connection, onRefusal))
      setTimeout(() => connection.destroy(), limits.lingerTimeout).unref()
    }
    // What was asked before is answered first; a request that broke off in its body gets no other answer than this.
    const { request, response, pending } = connection
    if (pending.size === 0 || !response || !request) answer()
    else if (request.complete && code === 'HPE_INVALID_EOF_STATE') connection.destroy()
    else if (request.complete) response.once('close', answer)
    else if (pending.size === 1 && !response.headersSent) answer()
    else connection.destroy()
  }

  const listener = createPort({ noDelay: true, allowHalfOpen: true }, socket => {
    if (!connectionsOf.mayOpen(socket.remoteAddress)) {
      onCut('connections')
      socket.destroy()
      return
    }
    const connection = new Connection(secure ? secure(socket) : socket)
    const surplus = connectionsOf.add(connection)
    if (surplus) {
      onCut('connections')
      surplus.destroy()
    }
    connections.add(connection)
    connection.once('close', () => connections.delete(connection))
    http.emit('connection', connection)
  })
  listener.maxConnections = limits.maxConnections
  listener.on('drop', () => onCut('connections'))

  /** Ends what has taken too long. */
  function sweep(): void {
    const now = performance.now()
    const isOver = (since: number | undefined, time: number) => since !== undefined && now - since > time
    for (const connection of connections) {
      const { request, pending, blocked, requestedAt, arrivingSince, unreadSince, activeAt } = connection
      if (isOver(unreadSince, limits.unreadTimeout)) {
        onCut('unread')
        connection.destroy()
      } else if (blocked) {
        // What isn't read can't arrive.
        if (requestedAt !== undefined) connection.requestedAt = now
        if (arrivingSince !== undefined) connection.arrivingSince = now
      } else if (request?.complete === false) {
        if (isOver(requestedAt, limits.requestTimeout)) refuse(connection, 'ERR_HTTP_REQUEST_TIMEOUT')
      } else if (pending.size === 0) {
        if (isOver(arrivingSince, limits.headersTimeout)) refuse(connection, 'ERR_HTTP_REQUEST_TIMEOUT')
        else if (arrivingSince === undefined && isOver(activeAt, limits.keepAliveTimeout)) connection.destroy()
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
        const { silent, pending, arrivingSince } = connection
        if (silent || (pending.size === 0 && arrivingSince === undefined)) connection.destroy()
      }
    }
    closeIdle()
    // A connection that was busy when the port closed turns idle when its answer is out.
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

/** Headers of what is answered here, before anything knows the request. */
const headersOf = (requestId: string) => ({
  'content-type': 'application/problem+json',
  'cache-control': 'no-store',
  ...securityHeaders,
  'x-request-id': requestId,
})

/** The whole answer to bytes that are no request, ready to be written to the connection. */
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
