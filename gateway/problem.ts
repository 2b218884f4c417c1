/** Problem documents (RFC 9457), the answers of all refusals. */
import { protoCamelCase } from '@bufbuild/protobuf/reflect'
import { Code, ConnectError } from '@connectrpc/connect'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../proto/gen/google/rpc/error_details_pb.js'
import { statusOf } from '../server/requests/reasons.js'
import { Refusal, suggestionKey } from '../server/requests/refusal.js'

/** HTTP status of each reason of the gateway itself, with its meaning and what to do. */
export const gatewayReasons = {
  MALFORMED_REQUEST: { status: 400, about: 'A parameter or the body can’t be read. Correct the request.' },
  NOT_FOUND: { status: 404, about: 'The path does not exist. Check the path and the revision.' },
  METHOD_NOT_ALLOWED: { status: 405, about: 'The path has other methods. Use one that `Allow` lists.' },
  REQUEST_TIMEOUT: { status: 408, about: 'The request did not arrive in time. Send it again.' },
  PAYLOAD_TOO_LARGE: { status: 413, about: 'The body is too large. Send at most 64 KiB.' },
  URI_TOO_LONG: { status: 414, about: 'The URL is too long. Send the parameters in the body.' },
  UNSUPPORTED_MEDIA_TYPE: { status: 415, about: 'The media type of the body is not accepted. Send JSON in UTF-8.' },
  EXPECTATION_FAILED: {
    status: 417,
    about: 'The `Expect` header has a value other than `100-continue`. Leave it out.',
  },
  MISDIRECTED_REQUEST: {
    status: 421,
    about: 'The `Host` header names another host than this service. Use its address, or the host of `AUTH_ISSUER`.',
  },
  HEADERS_TOO_LARGE: { status: 431, about: 'The headers are too large. Send fewer or shorter headers.' },
  UNAVAILABLE: { status: 503, about: 'The service can’t answer. Retry after the given time.' },
} as const

/** A refusal of the gateway itself. The client gets the message. */
export class HttpError extends Error {
  constructor(
    readonly reason: keyof typeof gatewayReasons | 'ACCESS_DENIED',
    message: string,
    /** Headers that the status calls for, such as `allow`. */
    readonly headers: Readonly<Record<string, string>> = {},
  ) {
    super(message)
  }
}

/** Description of a refusal. */
export interface Problem {
  readonly status: number
  /** Stable code in upper snake case: a `Reason` without its prefix, or one of `gatewayReasons`. */
  readonly reason: string
  /** Cause and suggested action. */
  readonly detail: string
  /** Every invalid field. */
  readonly errors?: readonly {
    readonly field: string
    readonly reason?: string
    readonly message: string
    readonly suggestion?: string
  }[]
  /** Headers that the status calls for. */
  readonly headers: Readonly<Record<string, string>>
}

/** Turns an error into a problem. Errors that aren't refusals reveal nothing. */
export function problemOf(error: unknown): Problem {
  if (error instanceof HttpError) {
    return {
      status: error.reason === 'ACCESS_DENIED' ? statusOf(Reason.ACCESS_DENIED) : gatewayReasons[error.reason].status,
      reason: error.reason,
      detail: error.message,
      headers: error.headers,
    }
  }
  if (error instanceof ConnectError) {
    return problemOfRefusal(error) ?? problemOfCode(error.code)
  }
  // The scheduler refused it.
  if (error instanceof Refusal) return problemOfReason(error.reason)
  return problemOfCode(Code.Internal)
}

/** The problem document: JSON of media type `application/problem+json`. */
export function problemDocument({ status, reason, detail, errors }: Problem, requestId: string): string {
  const words = reason.toLowerCase().split('_')
  const title = words.join(' ')
  return JSON.stringify({
    type: `urn:auth:problem:${words.join('-')}`,
    title: title[0]?.toUpperCase() + title.slice(1),
    status,
    detail,
    reason,
    requestId,
    errors,
  })
}

/**
 * Whether an error is internal and not logged yet: not a refusal, a disconnected client or a passed deadline. Services log
 * their own internal errors.
 */
export function isUnreported(error: unknown): boolean {
  if (error instanceof HttpError || error instanceof Refusal) return false
  if (!(error instanceof ConnectError)) return true
  return ![Code.Canceled, Code.DeadlineExceeded].includes(error.code) && reasonOf(error) === undefined
}

/** Whether an error is the answer of a service, not a lost call. */
export function isAnswer(error: unknown): boolean {
  return error instanceof ConnectError && reasonOf(error) !== undefined
}

function infoOf(error: ConnectError) {
  return error.findDetails(ErrorInfoSchema).find(({ domain }) => domain === 'auth.v1')
}

function reasonOf(error: ConnectError): Reason | undefined {
  return Reason[infoOf(error)?.reason as keyof typeof Reason]
}

function problemOfRefusal(error: ConnectError): Problem | undefined {
  const reason = reasonOf(error)
  if (reason === undefined) return undefined
  const { metadata } = infoOf(error)!
  const violations = error.findDetails(BadRequestSchema).flatMap(({ fieldViolations }) => fieldViolations)
  // Clients of the paths send the names of JSON: `pageSize` for `page_size`.
  const errors = violations.map(({ field, description, reason }) => {
    const suggestion = metadata[suggestionKey(field)]
    return {
      field: protoCamelCase(field),
      // A server of version 1.0 gives none.
      ...(reason && { reason }),
      message: description,
      ...(suggestion && { suggestion }),
    }
  })
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay
  return {
    status: statusOf(reason),
    reason: Reason[reason],
    // The text may repeat the fields.
    detail: violations.reduce(
      (text, { field }) => text.replace(`${field}: `, `${protoCamelCase(field)}: `),
      error.rawMessage,
    ),
    ...(errors.length > 0 && { errors }),
    headers: delay ? { 'retry-after': String(delay.seconds) } : {},
  }
}

/** Reasons of calls that a service didn't refuse; INTERNAL for other codes. */
const unanswered: Partial<Record<Code, Reason>> = {
  [Code.Unavailable]: Reason.UNAVAILABLE,
  [Code.DeadlineExceeded]: Reason.DEADLINE_EXCEEDED,
}

/** The problem of a call without a reason: the service was unreachable, too slow, or failed. */
export function problemOfCode(code: Code): Problem {
  return problemOfReason(unanswered[code] ?? Reason.INTERNAL)
}

/** The problem of a refusal for a reason that isn't the caller's fault. Retries may succeed after a second. */
export function problemOfReason(reason: Reason): Problem {
  return {
    status: statusOf(reason),
    reason: Reason[reason],
    detail: new Refusal(reason).message,
    headers: reason === Reason.INTERNAL ? {} : { 'retry-after': '1' },
  }
}
