/**
 * A port for HTTP/1.1, with or without TLS, with limits for each client. node:http serves each connection as a Duplex
 * (`connection.ts`), as the documentation of the event `connection` allows, and enforces the timeouts of requests.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createServer, STATUS_CODES } from 'node:http'
import { type AddressInfo, Server, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import { type Bucket, createBucket } from '../server/limits/bucket.js'
import { maxEntries } from '../server/limits/cache-size.js'
import { canonicalAddress, networksOf } from '../server/requests/client-address.js'
import { announcesTooMuch } from './body.js'
import { Connection, Request, type Response } from './connection.js'
import { HttpError, type Problem, problemDocument, problemOf } from './problem.js'
import { securityHeaders } from './security-headers.js'

/** A host and a port. */
export interface Address {
  readonly host: string
  /** 0 selects any free port. */
  readonly port: number
}

/** A port that can be opened once and closed once. */
export type Listener = ReturnType<typeof createListener>

/** Limits of the clients of a port. Times are in ms. */
export const listenerLimits = {
  /** Concurrent connections of an address or /64. */
  perAddress: 1_000,
  /** Concurrent connections of a /24 or /48. */
  perNetwork: 2_500,
  /** New connections of an address or /64 per second, and at once. */
  newPerSecond: 100,
  newAtOnce: 1_000,
  /** Time limit for the headers of a request to arrive; for the first request of a connection, including TLS. */
  headersTimeout: 10_000,
  /** Time limit for a whole request to arrive. */
  requestTimeout: 15_000,
  /** How long an idle connection stays open: longer than load balancers keep idle connections open. */
  keepAliveTimeout: 65_000,
  /** Time limit for the client to read a response. */
  unreadTimeout: 30_000,
  /**
   * How long to discard the bytes of a refused client before its connection closes, and how long connections without a request
   * outlast the port.
   */
  lingerTimeout: 500,
  /** Maximum connections of all clients. */
  maxConnections: 10_000,
}

/** Addresses whose new connections are counted; the least recently used ones are dropped. */
const trackedAddresses = 50_000

/** Milliseconds between two checks of the timeouts. */
const checkInterval = 500

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
) {
  const limits = { ...listenerLimits, ...given }
  const connections = new Set<Connection>()
  const openedBy = new LRUCache<string, Bucket>(maxEntries(trackedAddresses))
  const connectionsOf = new Map<string, Set<Connection>>()
  let [draining, closing] = [false, false]

  const http = createServer<typeof Request>(
    {
      IncomingMessage: Request,
      maxHeaderSize: headerBytes,
      headersTimeout: limits.headersTimeout,
      requestTimeout: limits.requestTimeout,
      keepAliveTimeout: limits.keepAliveTimeout,
      connectionsCheckingInterval: checkInterval,
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

  function end(response: Response): void {
    onEnd(response)
    // Its headers, sent before, kept the connection open.
    if (closing) response.req.from.end()
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

  /** Networks in which the connections of an address count, innermost first; none for trusted proxies, which carry many clients. */
  function countedNetworks(remoteAddress = ''): readonly string[] {
    const address = canonicalAddress(remoteAddress)
    return address === undefined || isTrusted(address) ? [] : networksOf(address)
  }

  /** Whether an address may open another connection now. */
  function mayOpen([innermost]: readonly string[]): boolean {
    if (innermost === undefined) return true
    const bucket =
      openedBy.get(innermost) ?? createBucket({ capacity: limits.newAtOnce, perSecond: limits.newPerSecond })
    openedBy.set(innermost, bucket)
    return bucket.acquire(1)
  }

  /** Counts a connection until it closes. If a network is at its limit, closes its longest idle other connection. */
  function count(connection: Connection, networks: readonly string[]): void {
    connections.add(connection)
    const counted = networks.length === 0 ? [] : [networks[0]!, networks.at(-1)!]
    let evicted: Connection | undefined
    for (const [level, network] of counted.entries()) {
      const others = connectionsOf.get(network) ?? new Set()
      if (others.size >= (level === 0 ? limits.perAddress : limits.perNetwork)) evicted ??= longestIdle(others)
      connectionsOf.set(network, others.add(connection))
    }
    connection.once('close', () => {
      connections.delete(connection)
      for (const network of counted) {
        const others = connectionsOf.get(network)!
        others.delete(connection)
        if (others.size === 0) connectionsOf.delete(network)
      }
    })
    if (!evicted) return
    onCut('connections')
    evicted.destroy()
  }

  // node:http serves sockets by its listener of this event, and times requests on a port of its own alone.
  const [serve] = http.listeners('connection')
  http.removeAllListeners('connection').on('connection', (socket: Socket) => {
    const networks = countedNetworks(socket.remoteAddress)
    // Before any other work, including TLS.
    if (!mayOpen(networks)) {
      onCut('connections')
      socket.destroy()
      return
    }
    const connection = new Connection(secure ? secure(socket) : socket, begin, end)
    count(connection, networks)
    serve!.call(http, connection)
  })
  http.maxConnections = limits.maxConnections
  http.on('drop', () => onCut('connections'))

  /** Closes connections whose clients don't read. */
  function cutUnread(): void {
    for (const connection of connections) {
      if (connection.unreadFor <= limits.unreadTimeout) continue
      onCut('unread')
      connection.destroy()
    }
  }

  /** Closes each connection after its response in progress, so that clients reconnect to other processes. */
  function drain(): void {
    draining = true
    for (const { response } of connections) if (response && !response.headersSent) response.shouldKeepAlive = false
  }

  /**
   * Stops accepting connections, closes those without a request after `lingerTimeout`, waits at most `graceMs` for requests in
   * progress, then closes all connections.
   */
  async function close(graceMs: number): Promise<void> {
    drain()
    closing = true
    // `http.close` would also close idle connections, over which a proxy may just be sending a request that it can't repeat.
    const closed = new Promise<void>(resolve => Server.prototype.close.call(http, () => resolve()))
    const cut = setTimeout(() => {
      for (const connection of connections) connection.destroy()
    }, graceMs)
    await Promise.race([closed, sleep(Math.min(limits.lingerTimeout, graceMs))])
    http.closeIdleConnections()
    // node:http expects a request from them.
    for (const connection of connections) if (connection.silent) connection.destroy()
    await closed
    clearInterval(checking)
    clearTimeout(cut)
  }

  let checking: NodeJS.Timeout | undefined
  return {
    /** Number of open connections. */
    connections: () => connections.size,
    /** Opens the port; resolves to its actual address. */
    async listen(): Promise<Address> {
      await once(http.listen({ host, port, backlog }), 'listening')
      checking = setInterval(cutUnread, checkInterval).unref()
      return { host, port: (http.address() as AddressInfo).port }
    },
    drain,
    close,
  }
}

/** The longest idle connection; connections without a request come first. */
function longestIdle(connections: Iterable<Connection>): Connection | undefined {
  let longest: Connection | undefined
  for (const each of connections) {
    if (each.destroyed) continue
    if (!longest || isIdleLonger(each, longest)) longest = each
  }
  return longest
}

function isIdleLonger(one: Connection, other: Connection): boolean {
  if ((one.response === undefined) !== (other.response === undefined)) return one.response === undefined
  return one.activeAt < other.activeAt
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
