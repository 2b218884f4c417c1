import type { Transaction } from '../database/database.js'
import type { Emails, Notice, NotifiedUser } from '../models/email.js'
import type { Call } from '../requests/call.js'
import type { ChooseLocale } from '../requests/locale.js'

/** Queues an e-mail about a change to a user's account, if the user has an e-mail address. */
export type NotifyOwner = ReturnType<typeof createNotifyOwner>

/** Creates the function that notifies owners, with time and client address, in the language of the call. */
export function createNotifyOwner(emails: Pick<Emails, 'notify'>, chooseLocale: ChooseLocale) {
  return (
    kind: Notice,
    user: NotifiedUser,
    { address, acceptLanguage }: Pick<Call, 'address' | 'acceptLanguage'>,
    t: Transaction,
  ) => emails.notify(kind, user, { address, locale: chooseLocale(acceptLanguage) }, t)
}
