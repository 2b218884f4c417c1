/**
 * The access log of requests that no RPC answered, or whose answer was lost: the service logs all others. Lines contain no
 * input of clients, and a path only if it is a known one.
 */

import { traceIdOf } from '../server/observability/tracing.js'
import { network } from '../server/requests/client-address.js'
import type { Request } from './connection.js'

/** Log of requests, and of errors as `{ requestId, err }`. A pino logger fits. */
export interface Log {
  error(fields: object, message: string): void
  info(fields: object, message: string): void
}

/** Methods that are logged; all others are `other`. */
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

/** The method of a request, for the log or a span. */
export function methodOf({ method = '' }: Request): string {
  return methods.includes(method) ? method : 'other'
}

/** How a request ended. */
interface Outcome {
  /** Its path in the table of routes. */
  readonly path: string | undefined
  readonly status: number
  readonly reason: string | undefined
  /** When it began, by `performance.now()`. */
  readonly startedAt: number
}

/** Logs a request. */
export function logRequest(log: Log, request: Request, { path, status, reason, startedAt }: Outcome): void {
  // Probes arrive every few seconds.
  if (path === '/healthz' || path === '/readyz') return
  const { headers } = request
  const fields = {
    method: methodOf(request),
    path,
    status,
    reason,
    ms: Math.round((performance.now() - startedAt) * 10) / 10,
    requestId: headers['x-request-id'],
    traceId: traceIdOf(headers.traceparent as string | undefined),
    network: network(headers['x-forwarded-for'] as string),
    endpoint: 'http',
  }
  log.info(fields, 'request')
}
