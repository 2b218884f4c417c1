// What last ended the sessions of a user, as administrators see it.

import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { Models } from '../../models/index.js'
import type { changedBy } from '../../policy/audit-actions.js'

type Changes = typeof changedBy

/** Actions that end all sessions of a user who still exists. */
type Ending = Exclude<
  { [A in keyof Changes]: 'tokens' extends Changes[A][number] ? A : never }[keyof Changes],
  'user.erase'
>

/** What each of them is. */
const ends: { readonly [action: string]: string } = {
  'user.change-password': 'The user set a new password.',
  'user.deactivate': 'Its organization deactivated the user.',
  'user.delete': 'An administrator deleted the user.',
  'user.delete-own': 'The user deleted its account.',
  'user.enroll-totp': 'The user enrolled one-time codes.',
  'user.remove-totp': 'An administrator removed the one-time codes of the user.',
  'user.revoke-own-tokens': 'The user logged out everywhere.',
  'user.revoke-tokens': 'An administrator logged the user out everywhere.',
  'user.set-organization': 'The user was moved to another organization, or out of one.',
  'user.set-password': 'An administrator set a password.',
  'user.set-role': 'An administrator gave the user another role.',
  'user.suspend': 'An administrator suspended the user.',
} satisfies Readonly<Record<Ending, string>>

/** What the first key from an address that wasn't proved before does. */
const proved = 'The first key that came back from its e-mail address ended what was set before.'

/** Returns what last ended the sessions of a user, among its newest 200 events; undefined if nothing did. */
export async function sessionEndOf(audit: Models['audit'], subjectId: number) {
  const events = await audit.list({ subjectId, outcome: 'ok', limit: 200 })
  const last = events.findLast(({ action }) => ends[action])
  if (!last) return undefined
  const reason = last.reason === 'ADDRESS_PROVED' ? proved : ends[last.action]
  return { action: last.action, reason, time: timestampFromDate(last.at) }
}
