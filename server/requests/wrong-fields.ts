import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { FieldReason } from '../rules/fault.js'
import { type FieldViolation, refuse } from './refusal.js'

/** Refuses a request with INVALID_ARGUMENT; the text names every wrong field. */
export function wrongFields(fields: readonly FieldViolation[]): never {
  refuse(Reason.INVALID_ARGUMENT, {
    text: fields.map(({ field, message }) => `${field}: ${message}`).join(' '),
    fields,
  })
}

/** Refuses a request with INVALID_ARGUMENT because of one field. */
export function wrongField(field: string, reason: FieldReason, message: string): never {
  wrongFields([{ field, reason, message }])
}
