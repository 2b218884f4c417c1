/** How answers leave: the headers that all of them have, and the end of a request whose body wasn't wanted. */
import { cors } from '@connectrpc/connect'
import type { Request, Response } from './connection.js'
import { securityHeaders } from './problem.js'
import type { Answer } from './translate.js'

const allowedMethods = 'GET, HEAD, POST'
const allowedHeaders = ['authorization', 'x-requested-with', 'traceparent', ...cors.allowedHeaders]
const exposedHeaders = ['x-request-id', 'retry-after', ...cors.exposedHeaders]

/** What a gateway answers with. */
export interface Sender {
  /** Headers of every answer to a request, CORS (Fetch standard, 3.2) among them. */
  commonHeaders(request: Request): Record<string, string>
  /** Whether a browser asks what a page of another origin may send. What the page is not allowed to, it isn't told. */
  isPreflight(request: Request): boolean
  /** Sends an answer, unless one was sent or the client has gone. */
  send(request: Request, response: Response, answer: Answer): void
}

/** Prepares sending. Pages of `corsOrigins` may read answers; a body that is refused is thrown away for `linger` ms. */
export function createSender(corsOrigins: readonly string[], linger: number): Sender {
  const origins = new Set(corsOrigins)

  function commonHeaders({ headers }: Request): Record<string, string> {
    const common: Record<string, string> = { 'x-request-id': headers['x-request-id'] as string, ...securityHeaders }
    if (origins.size === 0) return common
    common.vary = 'origin'
    const { origin } = headers
    if (origin === undefined || !origins.has(origin)) return common
    common['access-control-allow-origin'] = origin
    common['access-control-expose-headers'] = exposedHeaders.join(', ').toLowerCase()
    if (headers['access-control-request-method']) {
      common['access-control-allow-methods'] = allowedMethods
      common['access-control-allow-headers'] = allowedHeaders.join(', ').toLowerCase()
      common['access-control-max-age'] = '7200'
    }
    return common
  }

  return {
    commonHeaders,
    isPreflight: ({ method, headers }) =>
      method === 'OPTIONS' && headers['access-control-request-method'] !== undefined,
    send(request, response, { status, headers, body }) {
      if (response.headersSent || response.destroyed) return
      const bytes = Buffer.byteLength(body)
      const length: Record<string, string> = status === 204 ? {} : { 'content-length': String(bytes) }
      // Not by spreading: Node.js 20 takes 4 µs for each property that comes after a spread.
      const all = Object.assign(length, headers, commonHeaders(request))
      if (status === 413) {
        sendAndHangUp(request, response, all, body, linger)
        return
      }
      response.writeHead(status, all)
      if (bytes === 0 || request.method === 'HEAD') response.end()
      else response.end(body)
    },
  }
}

/**
 * Answers and closes the connection though a part of the body hasn't been read. What still arrives is thrown away for
 * a moment: closing at once would reset the connection, and the client might never see the answer.
 */
function sendAndHangUp(
  request: Request,
  response: Response,
  headers: Record<string, string>,
  body: string,
  linger: number,
): void {
  request.on('error', () => {})
  request.resume()
  response.writeHead(413, { ...headers, connection: 'close' })
  response.write(body)
  const timer = setTimeout(() => response.end(), linger)
  request.once('end', () => {
    clearTimeout(timer)
    response.end()
  })
}
