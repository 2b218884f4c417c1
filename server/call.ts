import type { DescMethodUnary, DescService, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { FieldViolation } from './refusal.js'
import type { ScopeName } from './scopes.js'

/** What an RPC knows of a call besides its request, whichever endpoint it came through. */
export interface Call {
  /** Value of the `authorization` header or metadata, as sent. */
  readonly authorization: string | undefined
  /** IP address of the client, in canonical text. */
  readonly address: string
  /** Where it came in to this process. */
  readonly endpoint: 'grpc' | 'http'
  /**
   * What a caller that is no gateway says in `x-forwarded-for`, empty for nothing; undefined where the address is a
   * gateway's word. Only a service with the scope `clients.forward` is believed.
   */
  readonly forwardedFor?: string | undefined
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
  /** Who works on the database itself, with its password and master key, and so needs no token. */
  readonly local?: LocalAdministrator
  /** Aborted when the caller has gone or its own deadline has passed. */
  readonly signal: AbortSignal
  /**
   * When the answer comes too late, in ms since 1970: what the caller says (Infinity where it says nothing), brought
   * forward to the time limit of the RPC by dispatch.ts.
   */
  deadline: number
  /** Name in the caller's certificate, where it presents one and is no gateway. */
  readonly certificate?: string | undefined
  /** Id of the user who turned out to call, for the access line: set by whoever finds that out. */
  user?: number
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

/** The function of a unary RPC. It throws `Refusal` (refusal.ts) to refuse. */
export type Unary<M extends DescMethodUnary> = (
  request: MessageShape<M['input']>,
  call: Call,
) => Promise<MessageInitShape<M['output']>>

/** One function for each RPC of a service. */
export type Implementation<S extends DescService> = {
  [K in keyof S['method']]: S['method'][K] extends DescMethodUnary ? Unary<S['method'][K]> : never
}

/** Fields that a gateway couldn't put into the request, as `field=message` pairs in the notation of a form. */
export function readMalformedFields(header: string | undefined): FieldViolation[] {
  if (!header) return []
  return [...new URLSearchParams(header)].slice(0, 100).map(([field, message]) => ({ field, message }))
}
