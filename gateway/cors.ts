/** Cross-origin requests of browsers (CORS; Fetch standard, 3.2). */
import { cors } from '@connectrpc/connect'
import type { Request } from './connection.js'

const allowedMethods = 'GET, HEAD, POST, PATCH'
const listOf = (names: readonly string[]) => names.join(', ').toLowerCase()
const allowedHeaders = listOf(['authorization', 'x-requested-with', 'traceparent', ...cors.allowedHeaders])
const exposedHeaders = listOf(['x-request-id', 'retry-after', ...cors.exposedHeaders])

/** Whether a request is a preflight. The answer doesn't list what is forbidden. */
export function isPreflight({ method, headers }: Request): boolean {
  return method === 'OPTIONS' && headers['access-control-request-method'] !== undefined
}

/**
 * Whether a browser sends a request for a page of another site that isn't one of `origins` (Fetch Metadata). It sends some, such
 * as forms, without asking before. Other programs send no `Sec-Fetch-Site`.
 */
export function isForeign({ headers }: Request, origins: readonly string[]): boolean {
  return headers['sec-fetch-site'] === 'cross-site' && !origins.includes(headers.origin ?? '')
}

/**
 * Creates the function that returns the headers of every answer to a request. Pages of `origins` may read answers; those of
 * clients may read what clients call, which takes no cookies.
 */
export function createCorsHeaders(origins: readonly string[]) {
  const trusted = new Set(origins)
  return ({ headers, isOfClient }: Request): Record<string, string> => {
    if (trusted.size === 0 && isOfClient === undefined) return {}
    const { origin } = headers
    if (origin === undefined || !(isOfClient || trusted.has(origin))) return { vary: 'origin' }
    const exposed: Record<string, string> = {
      vary: 'origin',
      'access-control-allow-origin': origin,
      'access-control-expose-headers': exposedHeaders,
    }
    if (!headers['access-control-request-method']) return exposed
    return Object.assign(exposed, {
      'access-control-allow-methods': allowedMethods,
      'access-control-allow-headers': allowedHeaders,
      'access-control-max-age': '7200',
    })
  }
}
