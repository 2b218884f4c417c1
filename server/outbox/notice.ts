import type { Transaction } from '../database/connection.js'
import type { Emails, Notice } from '../models/email.js'
import type { Call } from '../requests/call.js'
import type { ChooseLocale } from './texts.js'

/**
 * Queues an e-mail about a change to a user's account, with time and client address, if the user has an e-mail address.
 */
export type NotifyOwner = (
  notice: Notice,
  user: { readonly id: number; readonly email: string | null },
  call: Pick<Call, 'address' | 'acceptLanguage'>,
  t: Transaction,
) => Promise<void>

/** Creates the function that notifies owners, in the language of the call. */
export function createNotifyOwner(emails: Emails, chooseLocale: ChooseLocale): NotifyOwner {
  return async (kind, { id: userId, email }, { address, acceptLanguage }, t) => {
    const parameters = { userId, at: new Date().toISOString(), address }
    if (email) await emails.add({ kind, parameters }, chooseLocale(acceptLanguage), t)
  }
}
