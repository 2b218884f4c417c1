// What clients of the older implementation send and read beyond the contract, for AUTH_COMPATIBILITY=predecessor.
import type { JsonObject, Message } from '@bufbuild/protobuf'
import type { SignUpRequest } from '../proto/gen/auth/v1/users_pb.js'

/** Institution, and type of institution, of users who named none. */
const noInstitution = 'X'

/**
 * Midnight in a time zone of Brazil, which is 1 to 6 hours behind UTC: either in UTC, or as 00:00 with its offset. The date
 * of the text is the intended day, in any time zone of the client.
 */
const midnight = /^(\d{4}-\d\d-\d\d)T(?:0[1-5]:\d\d(?::\d\d(?:\.\d+)?)?Z|00:00(?::00(?:\.0+)?)?-0[1-5](?::?\d\d)?)$/

/** Corrects a sign-up. */
export function adaptSignUp(message: Message): void {
  const form = message as SignUpRequest
  if (form.institution?.trim() === noInstitution) delete form.institution
  if (form.institutiontype?.trim() === noInstitution) delete form.institutiontype
  const day = midnight.exec(form.dateofborn?.trim() ?? '')?.[1]
  if (day) form.dateofborn = day
}

/** Corrects a query that the client didn't escape: a percent sign that begins no escape is one. */
export function adaptQuery(query: string): string {
  return query.replace(/%(?![\da-f]{2})/gi, '%25')
}

/** Adds the list of roles to the record of a user. */
export function addRoles(user: JsonObject): void {
  if (typeof user.role === 'string') user.roles = [user.role]
}
