/**
 * Clients with a low cost, so that on few cores mainly the server is measured: HTTP/1.1 on bare sockets, gRPC on
 * bare HTTP/2. They support only the responses of these servers.
 */
import { connect as connectHttp2, constants } from 'node:http2'
import { connect, type Socket } from 'node:net'
import { type Endpoint, proxyOf, type Wire } from './operations.js'

/** An answer. `status` is that of HTTP, or of gRPC (0 is OK). */
export interface Answer {
  readonly status: number
  readonly body: Buffer
  /** Text of a gRPC status. */
  readonly message?: string
  /** Seconds. */
  readonly retryAfter?: number
}

/** Connections to one server. */
export interface Client {
  send(wire: Wire): Promise<Answer>
  /** Closes all connections. */
  close(): void
}

/** Where a client connects, and how. */
interface ClientOptions {
  readonly endpoint: Endpoint
  readonly port: number
  /** Bounds the connections of each address; over gRPC each has one. */
  readonly connections: number
}

/** Creates a client that sends requests from the addresses in them, or from the proxy that forwards the address. */
export function createClient({ endpoint, port, connections }: ClientOptions): Client {
  const clients = new Map<string, Client>()
  const clientAt = (localAddress: string) => {
    const dial = () => connect({ port, host: '127.0.0.1', localAddress, noDelay: true })
    return endpoint === 'grpc' ? createGrpcClient(dial) : createHttpClient(dial, connections)
  }
  return {
    send(wire) {
      const address = wire.address ?? '127.0.0.1'
      const client = clients.get(address) ?? clientAt(wire.forwardedFor ? proxyOf(address) : address)
      clients.set(address, client)
      return client.send(wire)
    },
    close() {
      for (const client of clients.values()) client.close()
    },
  }
}

interface Connection {
  readonly socket: Socket
  received: Buffer
  pending: { resolve: (answer: Answer) => void; reject: (error: Error) => void } | undefined
}

function createHttpClient(dial: () => Socket, connections: number): Client {
  const idle: Connection[] = []
  const open = new Set<Connection>()
  const waiting: ((connection: Connection) => void)[] = []
  let closed = false

  function create(): Connection {
    const connection: Connection = { socket: dial(), received: Buffer.alloc(0), pending: undefined }
    open.add(connection)
    connection.socket.on('data', chunk => {
      connection.received = connection.received.length === 0 ? chunk : Buffer.concat([connection.received, chunk])
      const read = readAnswer(connection.received)
      if (!read || !connection.pending) return
      connection.received = connection.received.subarray(read.length)
      const { resolve } = connection.pending
      connection.pending = undefined
      resolve(read.answer)
      if (read.closes) return gone()
      const next = waiting.shift()
      if (next) next(connection)
      else idle.push(connection)
    })
    const gone = (error?: Error) => {
      if (!open.delete(connection)) return
      const place = idle.indexOf(connection)
      if (place >= 0) idle.splice(place, 1)
      connection.pending?.reject(error ?? new Error('connection closed'))
      connection.pending = undefined
      connection.socket.destroy()
      if (!closed) waiting.shift()?.(create())
    }
    connection.socket.on('error', gone).on('close', () => gone())
    return connection
  }

  return {
    send: wire =>
      new Promise((resolve, reject) => {
        const use = (connection: Connection) => {
          connection.pending = { resolve, reject }
          connection.socket.write(head(wire))
          if (wire.body) connection.socket.write(wire.body)
        }
        const connection = idle.pop()
        if (connection) use(connection)
        else if (open.size < connections) use(create())
        else waiting.push(use)
      }),
    close() {
      closed = true
      for (const { socket } of open) socket.destroy()
    },
  }
}

/** The head of a request over HTTP/1.1. */
export function head(wire: Omit<Wire, 'expected' | 'refusable'>): string {
  const { path, token, forwardedFor, contentType, body } = wire
  let text = `${body ? 'POST' : 'GET'} ${path} HTTP/1.1\r\nhost: 127.0.0.1\r\n`
  if (forwardedFor) text += `x-forwarded-for: ${forwardedFor}\r\n`
  if (token) text += `authorization: Bearer ${token}\r\n`
  if (contentType) text += `content-type: ${contentType}\r\n`
  if (body) text += `content-length: ${body.length}\r\n`
  return `${text}\r\n`
}

/** The first response in the received bytes, its length, and whether it is the connection’s last; undefined while incomplete. */
export function readAnswer(received: Buffer): { answer: Answer; length: number; closes: boolean } | undefined {
  const end = received.indexOf('\r\n\r\n')
  if (end < 0) return undefined
  const headers = received.toString('latin1', 0, end)
  const status = Number(headers.slice(9, 12))
  const bytes = status === 204 ? '0' : /\r\ncontent-length: *(\d+)/i.exec(headers)?.[1]
  if (bytes === undefined) throw new Error(`an answer without content-length: ${headers}`)
  const length = end + 4 + Number(bytes)
  if (received.length < length) return undefined
  const after = /\r\nretry-after: *(\d+)/i.exec(headers)?.[1]
  const answer = { status, body: received.subarray(end + 4, length) }
  const closes = /\r\nconnection: *close/i.test(headers)
  return { answer: after === undefined ? answer : { ...answer, retryAfter: Number(after) }, length, closes }
}

function createGrpcClient(dial: () => Socket): Client {
  const open = () => connectHttp2('http://127.0.0.1', { createConnection: dial }).on('error', () => {})
  let session = open()
  const send = (wire: Wire, again = true): Promise<Answer> =>
    new Promise((resolve, reject) => {
      const { path, token, forwardedFor, body } = wire
      if (session.closed || session.destroyed) session = open()
      const stream = session.request({
        ':method': 'POST',
        ':path': path,
        te: 'trailers',
        'content-type': 'application/grpc',
        ...(token && { authorization: `Bearer ${token}` }),
        ...(forwardedFor && { 'x-forwarded-for': forwardedFor }),
      })
      const chunks: Buffer[] = []
      let last: Record<string, unknown> = {}
      const read = (headers: Record<string, unknown>) => {
        last = headers
      }
      stream.on('response', read).on('trailers', read)
      stream.on('data', chunk => chunks.push(chunk))
      // A connection that its server was ending: it hasn't processed the call (RFC 9113, 8.7).
      const isRefused = () => stream.rstCode === constants.NGHTTP2_REFUSED_STREAM
      stream.on('error', error => (again && isRefused() ? resolve(send(wire, false)) : reject(error)))
      stream.on('close', () => {
        const status = last['grpc-status']
        if (status === undefined) reject(new Error('stream closed'))
        const message = decodeURIComponent(String(last['grpc-message'] ?? ''))
        resolve({ status: Number(status), body: chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks), message })
      })
      stream.end(body)
    })
  return { send: wire => send(wire), close: () => session.destroy() }
}

/** Classifies an answer: `right`, `refused`, `late`, or its fault. */
export function judge(endpoint: Endpoint, wire: Wire, { status, body, message = '' }: Answer): string {
  const right = endpoint === 'grpc' ? 0 : 200
  if (status === right) return body.includes(wire.expected) ? 'right' : `wrong content of ${wire.path.slice(0, 20)}`
  const refused = endpoint === 'grpc' ? status === 8 : status === 429 || (status === 503 && body.includes('OVERLOADED'))
  if (wire.refusable && refused) return 'refused'
  if (endpoint === 'grpc' ? status === 4 : status === 503 && body.includes('DEADLINE_EXCEEDED')) return 'late'
  return `${status} ${(message || body.toString()).slice(0, 120)}`
}

/** Milliseconds that a client waits after this answer: the Retry-After, but not beyond the end. */
export function pauseAfter(answer: Answer | Error, end: number): number {
  const seconds = answer instanceof Error ? 1 : (answer.retryAfter ?? 1)
  return Math.max(0, Math.min(seconds * 1000, end - performance.now()))
}
