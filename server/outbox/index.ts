// This folder owns the composition and delivery of queued e-mails: it composes them (compose.ts) within quotas (quotas.ts),
// from texts (write-email.ts), and sends them (sender.ts) by a mail server or to files (transport.ts). models/ stores the
// queue. No request waits for the outbox.
import type { Transaction } from '../database/database.js'
import type { Notice, NotifiedChange, NotifiedUser } from '../models/email.js'
import type { Models } from '../models/index.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { chooseLocale as selectLocale } from '../requests/locale.js'
import { createQuotas } from './quotas.js'

/** What calls need to queue e-mails. */
export type Outbox = ReturnType<typeof createOutbox>

/** Makes what calls need to queue e-mails; `now` is a clock in ms. */
export function createOutbox({ emails, emailQuotas, counterKeys }: Models, settings: Settings, now: () => number) {
  const chooseLocale = (acceptLanguage: string | undefined) => selectLocale(acceptLanguage, settings.mailLocale)
  /** What notices to owners say about a change by a call: from where, in its language. */
  const changeBy = ({ address, acceptLanguage }: Pick<Call, 'address' | 'acceptLanguage'>): NotifiedChange => ({
    address,
    locale: chooseLocale(acceptLanguage),
  })
  return {
    chooseLocale,
    changeBy,
    quotas: createQuotas(emailQuotas, counterKeys, settings.limitFactor, now),
    /**
     * Queues an e-mail about a change to a user's account, with time and client address, in the language of the call, if the user
     * has an e-mail address.
     */
    notifyOwner: (kind: Notice, user: NotifiedUser, by: Parameters<typeof changeBy>[0], t: Transaction) =>
      emails.notify(kind, user, changeBy(by), t),
  }
}
