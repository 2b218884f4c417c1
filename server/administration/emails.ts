import { randomUUID } from 'node:crypto'
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Administration, EmailState } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../calls/context.js'
import type { References } from '../calls/steps.js'
import type { Transaction } from '../database/database.js'
import type { QueuedEmail } from '../models/email.js'
import type { Models } from '../models/index.js'
import { createMailTransport, describe, shownAnswer, within } from '../outbox/transport.js'
import type { Settings } from '../process/settings.js'
import type { OpenPage } from '../requests/paging.js'
import { refuse } from '../requests/refusal.js'
import { wrongField } from '../requests/wrong-fields.js'
import { isEmailAddress } from '../rules/names.js'

/** Most e-mails that one transaction retries. */
const batch = 1_000

/** Seconds that the mail server has to accept a test. */
const timeout = 10

/** The RPCs of queued e-mails. */
export function emailRpcs(
  { emails }: Models,
  references: References,
  openPage: OpenPage,
  settings: Pick<Settings, 'smtpUrl' | 'mailFrom' | 'issuer' | 'dataDir'>,
) {
  const find = async (id: string, t?: Transaction) => (await emails.find(id, t)) ?? missing(id)

  return {
    /** Lists queued e-mails, the oldest first, and of a user also those that were sent. */
    async listEmails(request) {
      const page = openPage<string>(Administration.method.listEmails, request)
      const filter = { limit: page.limit, afterId: page.after, failed: request.failed }
      const rows = await (request.user
        ? emails.ofUser(await references.user.find(request.user), filter)
        : emails.list(filter))
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      return { emails: shown.map(toQueuedEmail), ...next }
    },

    /** Returns a queued e-mail, without its text. */
    async getEmail(request) {
      return { email: toQueuedEmail(await find(checkId(request.id))) }
    },

    /** Makes a waiting or failed e-mail due now. */
    async retryEmail(request, { transact }) {
      const id = checkId(request.id)
      return transact(async ({ t, record }) => {
        const email = await find(id, t)
        await emails.retry(id, t)
        await record({ action: 'email.retry', ...about(email) })
        return { email: toQueuedEmail(await find(id, t)) }
      })
    },

    /** Makes all permanently failed e-mails due now. */
    async retryFailedEmails(_request, { transact }) {
      let count = 0
      // Ascending ids: an e-mail that fails again meanwhile isn't retried once more. Each transaction is short.
      for (let after = '0'; ; ) {
        const ids = await transact(async ({ t, record }) => {
          const ids = await emails.retryFailed(after, batch, t)
          if (ids.length > 0) await record({ action: 'email.retry', object: `emails:${ids.length}` })
          return ids
        })
        count += ids.length
        if (ids.length < batch) return { emails: count }
        after = ids.at(-1)!
      }
    },

    /** Discards a queued e-mail. */
    async discardEmail(request, { transact }) {
      const id = checkId(request.id)
      return transact(async ({ t, record }) => {
        const email = await find(id, t)
        await emails.done(id, t)
        await record({ action: 'email.discard', ...about(email) })
        return {}
      })
    },

    /** Sends a test e-mail at once, without the queue, and returns the answer of the mail server. */
    async sendTestEmail(request, { transact }) {
      const to = (request.email ?? '').trim()
      if (!isEmailAddress(to)) wrongField('email', 'MALFORMED', 'Not a valid e-mail address.')
      // Recorded first: nothing is sent without an event.
      await transact(({ record }) => record({ action: 'email.test' }))
      const transport = createMailTransport(settings, { error() {} })
      const begun = performance.now()
      const text = 'An administrator sent this e-mail to test the delivery of e-mails.\n'
      const mail = { to, subject: 'Test', text }
      const sending = within(timeout, transport.send({ ...mail, name: `auth.test.${randomUUID()}`, users: [] }))
      const outcome = await sending
        .then(answer => ({ sent: true, answer: shownAnswer(answer) }))
        // A refusal may quote what was sent.
        .catch(error => ({ sent: false, answer: describe(error) }))
        .finally(() => transport.close())
      return { ...outcome, milliseconds: Math.round(performance.now() - begun) }
    },
  } satisfies Partial<AdministrationRpcs>
}

function checkId(id: bigint | undefined): string {
  if (id === undefined || id < 1n) wrongField('id', 'MISSING', 'Specify the id of an e-mail.')
  return String(id)
}

function missing(id: string): never {
  refuse(Reason.RECORD_NOT_FOUND, { text: `There is no e-mail ${id} in the queue: it may have been sent.` })
}

/** What an event says about an e-mail. */
function about({ id, userId }: QueuedEmail) {
  return { object: `email:${id}`, subject_id: userId ?? undefined }
}

/** An e-mail as a message. */
export function toQueuedEmail(email: QueuedEmail) {
  const { id, kind, stage, userId, createdAt, attempts, nextAttemptAt, lastError, sentAt, answer } = email
  const waiting = stage === 'held' ? EmailState.HELD : EmailState.WAITING
  return {
    id: BigInt(id),
    kind,
    user: userId ?? undefined,
    createTime: timestampFromDate(createdAt),
    attempts,
    dueTime: nextAttemptAt ? timestampFromDate(nextAttemptAt) : undefined,
    error: lastError ?? undefined,
    state: sentAt ? EmailState.SENT : nextAttemptAt ? waiting : EmailState.FAILED,
    sendTime: sentAt ? timestampFromDate(sentAt) : undefined,
    answer: answer ?? undefined,
  }
}
