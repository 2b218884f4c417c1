import { create, type DescMessage, type Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import type { Refusal } from '../requests/refusal.js'

/** `domain` of every `google.rpc.ErrorInfo`. */
const domain = 'auth.v1'

/** An error detail before it is encoded. */
interface Detail {
  readonly desc: DescMessage
  readonly value: Message
}

/** The error details of a refusal (AIP-193): ErrorInfo, and BadRequest and RetryInfo where they apply. */
export function detailsOf(refusal: Refusal, requestId: string): Detail[] {
  const { fields, retryAfter } = refusal.more
  const info = create(ErrorInfoSchema, { reason: Reason[refusal.reason]!, domain, metadata: { requestId } })
  const details: Detail[] = [{ desc: ErrorInfoSchema, value: info }]
  if (fields?.length) {
    const fieldViolations = fields.map(({ field, message }) => ({ field, description: message }))
    details.push({ desc: BadRequestSchema, value: create(BadRequestSchema, { fieldViolations }) })
  }
  if (retryAfter !== undefined) {
    const seconds = BigInt(Math.max(1, Math.ceil(retryAfter)))
    details.push({ desc: RetryInfoSchema, value: create(RetryInfoSchema, { retryDelay: { seconds } }) })
  }
  return details
}
