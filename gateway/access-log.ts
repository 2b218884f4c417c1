/**
 * A request in the gateway, and the access log of requests that no RPC answered, or whose answer was lost: the service logs
 * all others. Lines contain no input of clients, and a path only if it is a known one.
 */

import { type Shed, Work } from '../server/limits/scheduler.js'
import { traceIdOf } from '../server/observability/tracing.js'
import { network } from '../server/requests/client-address.js'
import type { Request, Response } from './connection.js'
import type { Resource } from './router.js'

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

/** Called at the transitions of a visit. */
interface VisitHooks<Action> {
  answer(visit: Visit<Action>): void
  shed(visit: Visit<Action>, why: Shed): void
  answered(visit: Visit<Action>): void
  close(visit: Visit<Action>): void
}

/** A request in progress, with everything that the gateway knows about it. */
export class Visit<Action = unknown> extends Work {
  /** Whether it is a call over Connect or gRPC-Web. */
  isRpc = false
  /** Whether it is logged: by the service that answered, or here. */
  logged = false
  readonly startedAt = performance.now()
  constructor(
    private readonly hooks: VisitHooks<Action>,
    readonly request: Request,
    readonly response: Response,
    /** Path with unreserved characters decoded. */
    readonly path: string,
    /** Query as sent, without the question mark. */
    readonly query: string,
    /** The resource of the path. */
    readonly resource: Resource<Action> | undefined,
    /** Whether a trusted proxy forwarded it. */
    readonly proxied: boolean,
    networks: readonly string[],
    cost: number,
    deadline: number,
  ) {
    super(networks, cost, deadline)
  }
  /** Its path in the table of routes. */
  get route(): string | undefined {
    return this.resource?.path
  }
  override begin(): void {
    this.hooks.answer(this)
  }
  override shed(why: Shed): void {
    this.hooks.shed(this, why)
  }
  /** Releases its slot when the answer begins, so that a client that reads slowly doesn't hold it. */
  answered(): void {
    this.hooks.answered(this)
  }
  /** Ends it: its answer is sent, or its client has disconnected. */
  close(): void {
    this.hooks.close(this)
  }
}

/** Logs a request that ended with an HTTP status, unless it is logged already. */
export function endVisit(log: Log, visit: Visit, status: number, reason?: string): void {
  const { request, startedAt, route, logged } = visit
  // Probes arrive every few seconds.
  if (logged || route === '/healthz' || route === '/readyz') return
  visit.logged = true
  const { headers } = request
  const fields = {
    method: methodOf(request),
    path: route,
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
