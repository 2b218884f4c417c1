import { Reason } from '../proto/gen/auth/v1/reason_pb.js'
import { refuse } from './refusal.js'

/** Longest text that is looked at as a name, key or address, in characters. */
const longest = 1024

/**
 * The values of required parameters. Refuses with MISSING_PARAMETER, naming every one that is absent or blank, and
 * with MALFORMED_REQUEST when one is too long to be meant.
 */
export function required<K extends string>(parameters: Record<K, string | undefined>): Record<K, string> {
  const entries = Object.entries(parameters) as [K, string | undefined][]
  const missing = entries.filter(([, value]) => !value?.trim()).map(([field]) => field)
  if (missing.length > 0) {
    refuse(Reason.MISSING_PARAMETER, {
      text: `Give ${missing.join(' and ')}.`,
      fields: missing.map(field => ({ field, message: 'This parameter is required.' })),
    })
  }
  const long = entries.filter(([, value]) => value!.length > longest).map(([field]) => field)
  if (long.length > 0) {
    const fields = long.map(field => ({ field, message: `Use at most ${longest} characters.` }))
    refuse(Reason.MALFORMED_REQUEST, { fields })
  }
  return parameters as Record<K, string>
}
