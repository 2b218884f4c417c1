import type { Transaction } from '../database/connection.js'
import type { Emails, Notice, NotifiedUser } from '../models/email.js'
import type { Call } from '../requests/call.js'
import type { ChooseLocale } from './texts.js'

/**
 * Queues an e-mail about a change to a user's account, with time and client address, if the user has an e-mail address.
 */
export type NotifyOwner = (
  notice: Notice,
  user: NotifiedUser,
  call: Pick<Call, 'address' | 'acceptLanguage'>,
  t: Transaction,
) => Promise<void>

/** Creates the function that notifies owners, in the language of the call. */
export function createNotifyOwner(emails: Pick<Emails, 'notify'>, chooseLocale: ChooseLocale): NotifyOwner {
  return (kind, user, { address, acceptLanguage }, t) =>
    emails.notify(kind, user, { address, locale: chooseLocale(acceptLanguage) }, t)
}
