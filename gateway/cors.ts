/** Cross-origin requests of browsers (CORS; Fetch standard, 3.2). */
import { cors } from '@connectrpc/connect'
import type { Request } from './connection.js'

const allowedMethods = 'GET, HEAD, POST, PATCH'
const listOf = (names: readonly string[]) => names.join(', ').toLowerCase()
/** Allowed where a preflight doesn't ask for headers. */
const allowedHeaders = listOf(['authorization', 'x-requested-with', 'traceparent', ...cors.allowedHeaders])
const exposedHeaders = listOf(['x-request-id', 'retry-after', ...cors.exposedHeaders])

/**
 * The headers that a preflight asks for, in at most 1,000 characters: tracing and caches add some of their own, and no cookie is at
 * stake.
 */
function askedHeaders(asked = allowedHeaders): string {
  return /^[\w!#$%&'*+.^`|~, -]{1,1000}$/.test(asked) ? asked : allowedHeaders
}

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
      'access-control-allow-headers': askedHeaders(headers['access-control-request-headers']),
      'access-control-max-age': '7200',
    })
  }
}
