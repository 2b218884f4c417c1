/**
 * A call, as all endpoints present it. This folder owns what every other one needs of a request: the call (here),
 * refusals (refusal.ts) with their codes, statuses and texts (reasons.ts), the client address (client-address.ts), required
 * fields (required-fields.ts), deadlines (deadline.ts, grpc-timeout.ts) and update masks (update-mask.ts).
 */
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { isOneLine } from '../rules/names.js'
import type { ScopeName } from '../rules/scopes.js'
import { tooLong } from '../rules/sizes.js'
import { type FieldViolation, refuse } from './refusal.js'

/**
 * The metadata of a call that an RPC gets in addition to its request. It has no credentials: the RPC gets its caller from
 * the access policy's steps.
 */
export interface Call {
  /** IP address of the client, in canonical text. */
  readonly address: string
  /** The endpoint of this process that received it. */
  readonly endpoint: 'grpc' | 'http'
  /** The service that calls, when the call has a good key of one. */
  readonly service?: CallingService
  /** Value of `accept-language` (RFC 9110), as sent. */
  readonly acceptLanguage: string | undefined
  /** Id that names the call in logs, audit events and error answers. */
  readonly requestId: string
  /** Values of `traceparent` and `tracestate` (W3C Trace Context), as sent. */
  readonly traceparent: string | undefined
  readonly tracestate: string | undefined
  /** Whether the message can't be decoded: the request is empty instead, and refused at the step of its shape. */
  readonly undecodable?: boolean
  /** Fields that were left out of the request, because their JSON has the wrong type or they are lists that are too long. */
  readonly malformedFields: readonly FieldViolation[]
  /** Names of the secrets that the gateway found in the query of the URL. */
  readonly secretsInQuery: readonly string[]
  /** Aborted when the caller disconnects or its own deadline passes. */
  readonly signal: AbortSignal
  /** Whether the caller has disconnected: `signal.aborted`, at less cost. */
  readonly gone: boolean
  /** The deadline of the response, in ms since 1970: that of the caller, at most the time in the RPC's policy. */
  readonly deadline: number
  /** Name in the certificate of a caller other than a gateway. */
  readonly certificate?: string | undefined
  /** Its turn; absent on the command line. */
  readonly turn?: Turn | undefined
  /** Id of the user that calls, or as which an attempt signs in, for the access log; set when the user is found. */
  user?: number | undefined
  /** Name of the client of OpenID Connect that the call claims to be of, for the access log; set when there is such a client. */
  client?: string | undefined
}

/** The turn of a request: its right to use the main thread and the database, until it is disposed of. */
export interface Turn extends Disposable {
  /** Leaves it to others during `work`, which uses neither the main thread nor the database. */
  pause<T>(work: () => Promise<T>): Promise<T>
  /** Charges its networks for more milliseconds than its policy has: for the input that it turned out to have. */
  charge(cost: number): void
}

/** A call before its caller is identified, with its credentials. */
export interface IncomingCall extends Call {
  /** A service with the scope `clients.forward` can replace it. */
  address: string
  service?: CallingService
  turn?: Turn | undefined
  /** The networks that the scheduler counts it for; absent after the scheduler, and where there is none. */
  readonly networks?: readonly string[]
  /** Milliseconds to read its message, in addition to the cost in its policy; absent where the turn is charged for it. */
  readonly inputCost?: number
  /** Shortened to the time in the RPC's policy. */
  deadline: number
  /** The reason that an administrator gives for it, in the metadata `x-reason`, percent-encoded. */
  readonly reason?: string | undefined
  /** Value of the `authorization` header or metadata, as sent. */
  readonly authorization: string | undefined
  /**
   * The `x-forwarded-for` of a caller other than a gateway, empty without one; undefined when a gateway gave the
   * address. Only that of a service with the scope `clients.forward` counts.
   */
  readonly forwardedFor?: string | undefined
  /** The command line on the database itself, which needs no token: it has the database password and the master key. */
  readonly local?: LocalAdministrator
}

/** A service that authenticated by its key. */
export interface CallingService {
  readonly name: string
  readonly scopes: readonly ScopeName[]
}

/** The user of the command line on the database itself. */
export interface LocalAdministrator {
  /** For the audit log: `cli:<system user>@<host>`. */
  readonly actor: string
  /** The reason given for the call. */
  readonly reason?: string
}

/**
 * Reads the header in which a gateway names the fields that it left out of the request, as `field=message` pairs in the
 * form-urlencoded format.
 */
export function readMalformedFields(header: string | undefined): FieldViolation[] {
  if (!header) return []
  return Array.from(new URLSearchParams(header), ([field, message]) => ({ field, reason: 'MALFORMED', message }))
}

/** Reads the reason of a call: text of one line, percent-encoded. Undefined without one, or for anything else. */
export function readReason(header: string | undefined): string | undefined {
  try {
    const text = decodeURIComponent(header ?? '').trim()
    return text !== '' && isOneLine(text) && !tooLong(text, 'text') ? text : undefined
  } catch {
    return undefined
  }
}

/** Reads the header in which a gateway names the secrets that were in the query of the URL. Returns at most 100. */
export function readSecretsInQuery(header: string | undefined): string[] {
  return header ? header.split(',', 100) : []
}

/** Refuses with MALFORMED_REQUEST when the message can't be decoded, or fields of a wrong type were left out of it. */
export function checkShape({
  undecodable,
  malformedFields: fields,
}: Pick<Call, 'undecodable' | 'malformedFields'>): void {
  if (fields.length > 0) refuse(Reason.MALFORMED_REQUEST, { fields })
  if (undecodable) refuse(Reason.MALFORMED_REQUEST, { text: 'The message can’t be decoded.' })
}
