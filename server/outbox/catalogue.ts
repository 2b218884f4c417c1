// The kinds of e-mails with their contents. portuguese.ts and english.ts have the texts.
import { daysUntilPurge } from '../models/administered-user.js'
import type { Administered } from '../models/email.js'

/** The content of each kind of e-mail. */
export interface Contents {
  /** To a user who forgot the password. The key is valid for 15 minutes. */
  'recovery-key': { username: string; key: string }
  /** To the new address of a user. The code is valid for 15 minutes. */
  'email-code': { username: string; key: string }
  /** To an organization, for a user who requests activation. The key is valid for 72 hours. */
  'activation-key': { username: string; key: string }
  /** To a user whose password was changed. */
  'password-changed': Occurrences
  /** To a user whose answer to a security question was saved, and counts. */
  'answer-saved': Occurrences
  /** To a user whose answer to a security question was saved, and counts a day later. */
  'answer-waits': Occurrences
  /** To a user whose answers to security questions an administrator deleted. */
  'answers-cleared': Occurrences
  /** To a user after a sign-in by answers or by a mailed key. */
  'recovery-login': Occurrences
  /** To the former address of a user. */
  'email-changed': Occurrences
  /** To a user who deleted the account. */
  'account-deleted': Occurrences
  /** To a user whose username was changed. `username` is the present one. */
  'username-changed': Occurrences
  /** To an administrator after 5 wrong one-time codes with the right password in 15 minutes. */
  'wrong-codes': Occurrences
  /** To a user whom an administrator activated. */
  'account-activated': Occurrences
  /** To a user whom an administrator moved to another organization or out of one. */
  'organization-changed': Occurrences
  /** To a user whose provider key was replaced, also by a change of the organization. */
  'provider-key-rotated': Occurrences
  /** To a user whom its organization deactivated. The client address is that of another user, and isn't shown. */
  'member-deactivated': Occurrences
  /** To the former address of an organization. */
  'organization-email-changed': { organization: string; at: string; address: string }
  /** To an administrator: a change to another administrator or a password, made on the database itself. */
  administration: AdministrativeChange
  /** To an administrator: a change to the administrator's own account, at the server or on the database itself. */
  administered: AdministrativeChange
}

/** A change to a user. With `actorId` the actor is a username, otherwise the actor of the audit log. */
interface AdministrativeChange {
  username: string
  id: number
  action: Administered
  role?: string
  actor: string
  actorId?: number
  at: string
  reason?: string
}

/** Events of one kind on a user's account: their number, with time (ISO 8601) and client address of the last. */
interface Occurrences {
  username: string
  times: number
  at: string
  address: string
}

/** Subject and body of each kind of e-mail in a language. `when` formats a time. */
export type Catalogue = {
  [K in keyof Contents]: {
    subject: string
    text: (content: Contents[K], when: (at: string) => string) => string
  }
}

/** When an account that was deleted at a time (ISO 8601) is erased. */
export const erasedAt = (at: string) => new Date(Date.parse(at) + daysUntilPurge * 86_400_000).toISOString()

/** When an answer counts that was saved at a time (ISO 8601), and waits. */
export const countsAt = (at: string) => new Date(Date.parse(at) + 86_400_000).toISOString()

/** Returns a username with the id. The username of an erased user is empty. */
export const withId = (username: string, id: number) => (username === '' ? `(id ${id})` : `${username} (id ${id})`)
