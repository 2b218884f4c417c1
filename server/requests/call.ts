/**
 * Requests own what every room knows of a request: the call (here), the refusals and their texts, the client address, and
 * which fields are required. Who may call, and what a call does, belongs to the rooms above.
 */
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { ScopeName } from '../rules/scopes.js'
import { type FieldViolation, refuse } from './refusal.js'

/**
 * What an RPC knows of a call besides its request, whichever endpoint it came through. What shows who calls isn't part of
 * it: an RPC gets its caller, found by its policy.
 */
export interface Call {
  /** IP address of the client, in canonical text. */
  readonly address: string
  /** Where it came in to this process. */
  readonly endpoint: 'grpc' | 'http'
  /** Which service calls, where the call came with a good key of one. */
  readonly service?: CallingService
  /** Value of `accept-language` (RFC 9110), as sent. */
  readonly acceptLanguage: string | undefined
  /** Id that names the call in logs, audit events and error answers. */
  readonly requestId: string
  /** Values of `traceparent` and `tracestate` (W3C Trace Context), as sent. */
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
  /** Fields that didn't even reach the request, since their JSON has the wrong type. */
  readonly malformedFields: readonly FieldViolation[]
  /** Aborted when the caller has gone or its own deadline has passed. */
  readonly signal: AbortSignal
  /** Whether the caller has gone: the same as `signal.aborted`, at less cost. */
  readonly gone: boolean
  /** When the answer comes too late, in ms since 1970: what the caller says, at most the time that the row of the RPC gives. */
  readonly deadline: number
  /** Name in the caller's certificate, where it presents one and is no gateway. */
  readonly certificate?: string | undefined
  /** Its place in the scheduler, which it gives back while it waits for something else; absent on the command line. */
  readonly work?: Place | undefined
  /** Id of the user who turned out to call, for the access line: set by whoever finds that out. */
  user?: number
}

/** The place of a call in the scheduler. */
export interface Place {
  /** Gives it back while the call waits for something else than the main thread and the database. */
  away<T>(wait: () => Promise<T>): Promise<T>
}

/** A call as it comes in, with what shows who calls. */
export interface IncomingCall extends Call {
  /** A service that may forward addresses says for whom it calls. */
  address: string
  service?: CallingService
  work?: Place | undefined
  /** What it counts for in the scheduler; absent where it has passed one, or needs none. */
  readonly networks?: readonly string[]
  /** The row of the RPC may ask for less than the caller does. */
  deadline: number
  /** Value of the `authorization` header or metadata, as sent. */
  readonly authorization: string | undefined
  /**
   * What a caller that is no gateway says in `x-forwarded-for`, empty for nothing; undefined where the address is a
   * gateway's word. Only a service with the scope `clients.forward` is believed.
   */
  readonly forwardedFor?: string | undefined
  /** Who works on the database itself, with its password and master key, and so needs no token. */
  readonly local?: LocalAdministrator
}

/** A service that showed who it is by its key. */
export interface CallingService {
  readonly name: string
  /** What it may do. */
  readonly scopes: readonly ScopeName[]
}

/** Somebody at the command line, on a machine that holds the keys of the registry. */
export interface LocalAdministrator {
  /** For the audit log: `cli:<system user>@<host>`. */
  readonly actor: string
  /** Why it is done, as they say. */
  readonly reason?: string
}

/** Fields that a gateway couldn't put into the request, as `field=message` pairs in the notation of a form. */
export function readMalformedFields(header: string | undefined): FieldViolation[] {
  if (!header) return []
  return [...new URLSearchParams(header)].slice(0, 100).map(([field, message]) => ({ field, message }))
}

/** Refuses with DEADLINE_EXCEEDED a call whose caller has gone, or takes no answer any more: it isn't worked for. */
export function checkPresence(call: Pick<Call, 'gone' | 'deadline'>): void {
  if (call.gone || call.deadline <= Date.now()) refuse(Reason.DEADLINE_EXCEEDED, { retryAfter: 1 })
}
