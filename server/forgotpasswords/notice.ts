import type { Transaction } from '../database/connection.js'
import type { Emails, Notice } from '../models/email.js'
import type { ChooseLocale } from '../outbox/texts.js'
import type { Call } from '../requests/call.js'

/** Queues an e-mail that tells users with an address what was done to their account, and from where. */
export type TellOwner = (
  notice: Notice,
  user: { readonly id: number; readonly email: string | null },
  call: Call,
  t: Transaction,
) => Promise<void>

export function createTellOwner(emails: Emails, chooseLocale: ChooseLocale): TellOwner {
  return async (kind, { id: userId, email }, { address, acceptLanguage }, t) => {
    const parameters = { userId, at: new Date().toISOString(), address }
    if (email) await emails.add({ kind, parameters }, chooseLocale(acceptLanguage), t)
  }
}
