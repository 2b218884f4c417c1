/**
 * A request on its way through the gateway, and the access lines of those that no RPC answered, or where its answer never
 * came: every other line is the service's own. What a client typed isn't in them; a path only where it is one of ours.
 */

import { type Shed, Work } from '../server/limits/scheduler.js'
import { traceIdOf } from '../server/observability/tracing.js'
import { network } from '../server/requests/client-address.js'
import type { Request, Response } from './connection.js'
import type { Resource } from './router.js'

/** Where the gateway reports requests, and faults as `{ requestId, err }`. A pino logger fits. */
export interface Log {
  error(fields: object, message: string): void
  info(fields: object, message: string): void
}

/** Methods that are written as they are. */
const methods = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS']

/** The method of a request, for a line or a span. */
export function methodOf({ method = '' }: Request): string {
  return methods.includes(method) ? method : 'other'
}

/** What becomes of a visit. */
interface Host<Action> {
  answer(visit: Visit<Action>): void
  shed(visit: Visit<Action>, why: Shed): void
  answered(visit: Visit<Action>): void
  close(visit: Visit<Action>): void
}

/** A request on its way, with all that the gateway knows of it. */
export class Visit<Action = unknown> extends Work {
  /** Whether it is a call over Connect or gRPC-Web. */
  isRpc = false
  /** Whether its line is written: by the service that answered, or here. */
  written = false
  /** Whether it waits in the scheduler. */
  waits = false
  readonly startedAt = performance.now()
  constructor(
    private readonly host: Host<Action>,
    readonly request: Request,
    readonly response: Response,
    /** Path and query, in origin form. */
    readonly target: string,
    readonly path: string,
    /** What the path leads to. */
    readonly resource: Resource<Action> | undefined,
    /** Whether a trusted proxy passed it on. */
    readonly proxied: boolean,
    networks: readonly string[],
    cost: number,
    deadline: number,
  ) {
    super(networks, cost, deadline)
  }
  /** The path of the table of routes that it fits. */
  get route(): string | undefined {
    return this.resource?.path
  }
  override begin(): void {
    this.host.answer(this)
  }
  override shed(why: Shed): void {
    this.host.shed(this, why)
  }
  /** Gives its place to another: its answer begins. Whether the client reads it doesn't matter to others. */
  answered(): void {
    this.host.answered(this)
  }
  /** Ends it: its answer is out, or its client has left. */
  close(): void {
    this.host.close(this)
  }
}

/** Writes the line of a request that ended with an HTTP status, unless that was done. */
export function endVisit(log: Log, visit: Visit, status: number, reason?: string): void {
  const { request, startedAt, route, written } = visit
  // Probes come every few seconds.
  if (written || route === '/healthz' || route === '/readyz') return
  visit.written = true
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
