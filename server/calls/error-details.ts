import { create, type DescMessage, type Message } from '@bufbuild/protobuf'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../proto/gen/google/rpc/error_details_pb.js'
import type { Call } from '../requests/call.js'
import { chooseLocale } from '../requests/locale.js'
import { refusalInPortuguese } from '../requests/portuguese.js'
import { type Refusal, suggestionKey } from '../requests/refusal.js'

/** `domain` of every `google.rpc.ErrorInfo`. */
const domain = 'auth.v1'

/** An error detail before it is encoded. */
interface Detail {
  readonly desc: DescMessage
  readonly value: Message
}

/**
 * The text of a refusal in the language of its call, English by default, and its error details (AIP-193): ErrorInfo, and BadRequest
 * and RetryInfo where they apply.
 */
export function describeRefusal(
  refusal: Refusal,
  { requestId, acceptLanguage }: Pick<Call, 'requestId' | 'acceptLanguage'>,
): { text: string; details: Detail[] } {
  const { fields: given = [], retryAfter } = refusal.more
  const locale = chooseLocale(acceptLanguage, 'en')
  const english = { text: refusal.message, fields: given }
  const { text, fields } = locale === 'en' ? english : refusalInPortuguese(refusal.message, given)
  const suggested = fields.flatMap(({ field, suggestion }) => (suggestion ? [[suggestionKey(field), suggestion]] : []))
  const metadata = { requestId, ...Object.fromEntries(suggested) }
  const info = create(ErrorInfoSchema, { reason: Reason[refusal.reason]!, domain, metadata })
  const details: Detail[] = [{ desc: ErrorInfoSchema, value: info }]
  if (fields.length > 0) {
    const fieldViolations = fields.map(({ field, reason, message }) => ({
      field,
      reason,
      description: message,
      localizedMessage: { locale, message },
    }))
    details.push({ desc: BadRequestSchema, value: create(BadRequestSchema, { fieldViolations }) })
  }
  if (retryAfter !== undefined) {
    const seconds = BigInt(Math.max(1, Math.ceil(retryAfter)))
    details.push({ desc: RetryInfoSchema, value: create(RetryInfoSchema, { retryDelay: { seconds } }) })
  }
  return { text, details }
}
