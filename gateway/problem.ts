/** Everything that is refused leaves as a problem document (RFC 9457), made here. */
import { Code, ConnectError } from '@connectrpc/connect'
import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../proto/gen/google/rpc/error_details_pb.js'

/** HTTP status of each reason a service refuses for. */
export const statuses: Readonly<Record<Reason, number>> = {
  [Reason.UNSPECIFIED]: 400,
  [Reason.ACCESS_DENIED]: 403,
  [Reason.INVALID_TOKEN]: 500,
  [Reason.MISSING_PARAMETER]: 400,
  [Reason.MALFORMED_REQUEST]: 400,
  [Reason.INVALID_SIGN_UP]: 422,
  [Reason.INVALID_CREDENTIALS]: 404,
  [Reason.ACTIVATION_REFUSED]: 422,
  [Reason.USER_NOT_FOUND]: 404,
  [Reason.QUESTION_NOT_FOUND]: 404,
  [Reason.ANSWER_NOT_FOUND]: 404,
  [Reason.INVALID_ANSWERS]: 422,
  [Reason.TOO_MANY_ANSWERS]: 400,
  [Reason.INVALID_KEY]: 422,
  [Reason.INVALID_EMAIL]: 422,
  [Reason.INVALID_PASSWORD]: 400,
  [Reason.ORGANIZATION_EMAIL_NOT_FOUND]: 404,
  [Reason.TOO_MANY_ATTEMPTS]: 429,
  [Reason.OVERLOADED]: 503,
  [Reason.UNAVAILABLE]: 503,
  [Reason.DEADLINE_EXCEEDED]: 503,
  [Reason.INTERNAL]: 503,
  [Reason.RECORD_NOT_FOUND]: 404,
  [Reason.NAME_TAKEN]: 409,
  [Reason.STALE_ETAG]: 409,
  [Reason.WRONG_STATE]: 409,
  [Reason.INVALID_ARGUMENT]: 400,
  [Reason.CODE_NEEDED]: 401,
  [Reason.SIGN_IN_AGAIN]: 401,
  [Reason.CONFIRMATION_NEEDED]: 400,
  [Reason.LAST_ADMINISTRATOR]: 409,
  [Reason.JUSTIFICATION_NEEDED]: 400,
}

/** Headers of every answer that keep browsers from making more of it than it is. */
export const securityHeaders = { 'x-content-type-options': 'nosniff', 'content-security-policy': "default-src 'none'" }

/** HTTP status of each reason the gateway itself refuses for. */
export const gatewayStatuses = {
  MALFORMED_REQUEST: 400,
  NOT_FOUND: 404,
  METHOD_NOT_ALLOWED: 405,
  REQUEST_TIMEOUT: 408,
  PAYLOAD_TOO_LARGE: 413,
  URI_TOO_LONG: 414,
  UNSUPPORTED_MEDIA_TYPE: 415,
  HEADERS_TOO_LARGE: 431,
  UNAVAILABLE: 503,
} as const

/** A request that the gateway itself refuses. The message is shown to the client. */
export class HttpError extends Error {
  constructor(
    readonly reason: keyof typeof gatewayStatuses,
    message: string,
    /** Headers that the status calls for, such as `allow`. */
    readonly headers: Readonly<Record<string, string>> = {},
  ) {
    super(message)
  }
}

/** What is said of a refused request. */
export interface Problem {
  readonly status: number
  /** Stable code in upper snake case: a `Reason` without its prefix, or one of `gatewayStatuses`. */
  readonly reason: string
  /** What happened and what the client can do. */
  readonly detail: string
  /** Every wrong field. */
  readonly errors?: readonly { readonly field: string; readonly message: string }[]
  /** Headers that the status calls for. */
  readonly headers: Readonly<Record<string, string>>
}

/** Turns whatever was thrown into a problem. Of an error that is no refusal, nothing is shown. */
export function problemOf(error: unknown): Problem {
  if (error instanceof HttpError) {
    return {
      status: gatewayStatuses[error.reason],
      reason: error.reason,
      detail: error.message,
      headers: error.headers,
    }
  }
  if (error instanceof ConnectError) {
    return refused(error) ?? undelivered(error.code)
  }
  return undelivered(Code.Internal)
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
 * Whether an error is a fault that nobody has reported: it is no refusal, and not what a client brought about by
 * leaving or a deadline by passing. A service that refuses for a fault of its own has logged it.
 */
export function isUnreported(error: unknown): boolean {
  if (error instanceof HttpError) return false
  if (!(error instanceof ConnectError)) return true
  return ![Code.Canceled, Code.DeadlineExceeded].includes(error.code) && reasonOf(error) === undefined
}

/** Whether an error is what a service answered, and not that the call was lost on its way. */
export function isAnswer(error: unknown): boolean {
  return error instanceof ConnectError && reasonOf(error) !== undefined
}

function reasonOf(error: ConnectError): Reason | undefined {
  const info = error.findDetails(ErrorInfoSchema).find(({ domain }) => domain === 'auth.v1')
  return info && Reason[info.reason as keyof typeof Reason]
}

function refused(error: ConnectError): Problem | undefined {
  const reason = reasonOf(error)
  if (reason === undefined) return undefined
  const errors = error
    .findDetails(BadRequestSchema)
    .flatMap(({ fieldViolations }) =>
      fieldViolations.map(({ field, description }) => ({ field, message: description })),
    )
  const delay = error.findDetails(RetryInfoSchema)[0]?.retryDelay
  return {
    status: statuses[reason],
    reason: Reason[reason],
    detail: error.rawMessage,
    ...(errors.length > 0 && { errors }),
    headers: delay ? { 'retry-after': String(delay.seconds) } : {},
  }
}

/** The call came back without a reason: the service couldn't be reached, was too slow, or failed. */
export function undelivered(code: Code): Problem {
  const headers = { 'retry-after': '1' }
  if (code === Code.Unavailable) {
    return { status: 503, reason: 'UNAVAILABLE', detail: 'The service can’t answer now. Try again later.', headers }
  }
  if (code === Code.DeadlineExceeded) {
    return { status: 503, reason: 'DEADLINE_EXCEEDED', detail: 'The answer would come too late.', headers }
  }
  return { status: 503, reason: 'INTERNAL', detail: 'Something went wrong.', headers: {} }
}
