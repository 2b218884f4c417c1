import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { tooLong } from '../rules/sizes.js'
import { refuse } from './refusal.js'

/**
 * Returns required parameters. Refuses with MISSING_PARAMETER and lists all that are absent or blank. A value that is
 * too long counts as present: the caller refuses it like any other invalid value.
 */
export function required<K extends string>(parameters: Record<K, string | undefined>): Record<K, string> {
  const entries = Object.entries(parameters) as [K, string | undefined][]
  const missing = entries.filter(([, value]) => isBlank(value)).map(([field]) => field)
  if (missing.length > 0) {
    refuse(Reason.MISSING_PARAMETER, {
      text: `Give ${missing.join(' and ')}.`,
      fields: missing.map(field => ({ field, reason: 'MISSING', message: 'This parameter is required.' })),
    })
  }
  return parameters as Record<K, string>
}

/** Whether a value is absent or has only white space. */
export function isBlank(value: string | undefined): boolean {
  return value === undefined || (!tooLong(value, 'token') && value.trim() === '')
}
