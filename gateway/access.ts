/**
 * The access lines of requests that no RPC answered, or where its answer never came: every other line is the service's
 * own. What a client typed isn't in them; a path only where it is one of ours.
 */
import { network } from '../server/clientaddress.js'
import { traceIdOf } from '../server/tracing.js'
import type { Request } from './listener.js'
import type { Log } from './rpcs.js'

/** Methods that are written as they are. */
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

/** The method of a request, for a line or a span. */
export function methodOf({ method = '' }: Request): string {
  return methods.includes(method) ? method : 'other'
}

/** A request under way, as far as its access line is concerned. */
export interface Visit {
  readonly request: Request
  readonly startedAt: number
  /** The path of the table of routes that it fits. */
  path?: string
  /** Whether it is a call over Connect or gRPC-Web. */
  isRpc?: boolean
  /** Whether its line is written: by the service that answered, or here. */
  written: boolean
}

export function beginVisit(request: Request): Visit {
  return { request, startedAt: performance.now(), written: false }
}

/** Writes the line of a request that ended with an HTTP status, unless that was done. */
export function endVisit(log: Log, visit: Visit, status: number, reason?: string): void {
  const { request, startedAt, path, written } = visit
  // Probes come every few seconds.
  if (written || path === '/healthz' || path === '/readyz') return
  visit.written = true
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
