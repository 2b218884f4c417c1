import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { tooLong } from '../rules/sizes.js'
import { refuse } from './refusal.js'

/**
 * The values of required parameters. Refuses with MISSING_PARAMETER, naming every one that is absent or blank. One that
 * is too long is there: it is refused as any other wrong value of it.
 */
export function required<K extends string>(parameters: Record<K, string | undefined>): Record<K, string> {
  const entries = Object.entries(parameters) as [K, string | undefined][]
  const missing = entries.filter(([, value]) => isBlank(value)).map(([field]) => field)
  if (missing.length > 0) {
    refuse(Reason.MISSING_PARAMETER, {
      text: `Give ${missing.join(' and ')}.`,
      fields: missing.map(field => ({ field, message: 'This parameter is required.' })),
    })
  }
  return parameters as Record<K, string>
}

/** Whether nothing is given, or nothing but space. */
export function isBlank(value: string | undefined): boolean {
  return value === undefined || (!tooLong(value, 'token') && value.trim() === '')
}
