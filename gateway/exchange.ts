/** A request and its answer: common headers, and the end of a connection whose further bytes aren't read. */
import type { Turn } from '../server/requests/call.js'
import type { Request, Response } from './connection.js'
import { createCorsHeaders } from './cors.js'
import { securityHeaders } from './security-headers.js'

/** A request that has its turn. */
export interface Exchange {
  readonly request: Request
  readonly response: Response
  readonly path: string
  readonly query: string
  /** When its answer is due, in ms since 1970. */
  readonly deadline: number
  readonly turn: Turn
}

/** An HTTP answer without the common headers. */
export interface Answer {
  readonly status: number
  readonly headers: Readonly<Record<string, string>>
  readonly body: string | Buffer
}

/** An answer, with what the access log has of it. */
export interface Outcome {
  readonly answer: Answer
  readonly reason?: string
  /** Whether the service that answered has logged the request. */
  readonly isLogged?: boolean
}

/** Log of requests, and of errors as `{ requestId, err }`. A pino logger fits. */
export interface Log {
  error(fields: object, message: string): void
  info(fields: object, message: string): void
}

/**
 * Creates the function that sends answers. Pages of `corsOrigins` may read them; a refused body is discarded for `linger` ms.
 */
export function createSend(corsOrigins: readonly string[], linger: number) {
  const corsHeaders = createCorsHeaders(corsOrigins)
  /** Sends an answer, unless one was sent or the client has disconnected. */
  return function send(request: Request, response: Response, { status, headers, body }: Answer): void {
    if (response.headersSent || response.destroyed) return
    const bytes = Buffer.byteLength(body)
    const length: Record<string, string> = status === 204 || status === 304 ? {} : { 'content-length': String(bytes) }
    const cors = corsHeaders(request)
    const common = { 'x-request-id': request.headers['x-request-id'] as string }
    // Faster than spreads on Node.js 20 (test/bench/measurements.md).
    const all: Record<string, string> = Object.assign(length, common, securityHeaders, cors, headers)
    if (headers.vary && cors.vary) all.vary = `${cors.vary}, ${headers.vary}`
    if (status === 413 || headers.connection === 'close') {
      sendAndClose(request, response, status, all, body, linger)
      return
    }
    response.writeHead(status, all)
    if (bytes === 0 || request.method === 'HEAD') response.end()
    else response.end(body)
  }
}

/** The answer of a route with a fixed text. */
export function textAnswer(body: string): Answer {
  return { status: 200, headers: { 'content-type': 'text/plain; charset=utf-8', 'cache-control': 'no-store' }, body }
}

/**
 * Answers and closes the connection before the whole body is read. Further bytes are discarded for a moment: closing at
 * once would reset the connection, and the client might lose the answer.
 */
function sendAndClose(
  request: Request,
  response: Response,
  status: number,
  headers: Record<string, string>,
  body: string | Buffer,
  linger: number,
): void {
  request.on('error', () => {})
  request.resume()
  response.writeHead(status, { ...headers, connection: 'close' })
  response.write(body)
  const timer = setTimeout(() => response.end(), linger)
  request.once('end', () => {
    clearTimeout(timer)
    response.end()
  })
}
