import type { DescMethodUnary, DescService, MessageInitShape, MessageShape } from '@bufbuild/protobuf'
import type { FieldViolation } from './refusal.js'

/** What an RPC knows of a call besides its request, whichever endpoint it came through. */
export interface Call {
  /** Value of the `authorization` header or metadata, as sent. */
  readonly authorization: string | undefined
  /** IP address of the client, in canonical text. */
  readonly address: string
  /** Value of `accept-language` (RFC 9110), as sent. */
  readonly acceptLanguage: string | undefined
  /** Id that names the call in logs, audit events and error answers. */
  readonly requestId: string
  /** Fields that didn't even reach the request, since their JSON has the wrong type. */
  readonly malformedFields: readonly FieldViolation[]
  /** Aborted when the caller has gone or its deadline has passed. */
  readonly signal: AbortSignal
  /** When the caller stops waiting, in ms since 1970; Infinity when it never does. */
  readonly deadline: number
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
