/** The limits of the access policy in words. AUTH_LIMIT_FACTOR multiplies them. */
import { addressLimits, lockout, quotaLimits } from '../../server/policy/limits.js'
import { type Limit, limitMeanings } from '../../server/requests/refusal.js'

/** What a limit counts, and how many it permits. */
export function describeLimit(limit: Limit): string {
  const amount = amountOf(limit)
  return amount === undefined ? limitMeanings[limit] : `${limitMeanings[limit]} (${amount})`
}

function amountOf(limit: Limit): string | undefined {
  if (limit === 'account' || limit === 'activation') return inTime(lockout.failures, lockout.seconds)
  const bucket = (addressLimits as Partial<Record<Limit, { capacity: number; perSecond: number }>>)[limit]
  if (bucket) return `${bucket.capacity.toLocaleString('en')} at once, then ${rateOf(bucket.perSecond)}`
  const quotas = (quotaLimits as Partial<Record<Limit, readonly { max: number; seconds: number }[]>>)[limit]
  return quotas?.map(({ max, seconds }) => inTime(max, seconds)).join(' and ')
}

const units = [
  [1, 'second'],
  [60, 'minute'],
  [3600, 'hour'],
  [86_400, 'day'],
] as const

/** A rate in the shortest unit in which it is a whole number. */
function rateOf(perSecond: number): string {
  const [seconds, unit] = units.find(([seconds]) => Number.isInteger(Math.round(perSecond * seconds * 1e6) / 1e6))!
  return `${Math.round(perSecond * seconds).toLocaleString('en')} ${unit === 'hour' ? 'an' : 'a'} ${unit}`
}

function inTime(count: number, seconds: number): string {
  const [length, unit] = units.findLast(([length]) => seconds % length === 0)!
  const times = seconds / length
  return times === 1 ? `${count} ${unit === 'hour' ? 'an' : 'a'} ${unit}` : `${count} in ${times} ${unit}s`
}
