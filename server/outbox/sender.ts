/**
 * Sends the e-mails of the queue, in parallel at a limited rate, outside transactions. An e-mail stays in the queue
 * until the mail server accepts it. Failures are retried with exponential backoff, from 5 seconds to an hour. An e-mail
 * fails permanently after 72 hours, or, when the mail server refuses the recipient, after 3 attempts over an hour. First
 * attempts precede retries and have reserved connections, so that retries don't delay them. Delivery is at least once:
 * when the process ends before it settles a sent e-mail, the e-mail is sent again with the same Message-ID.
 */
import { availableParallelism } from 'node:os'
import { isUnreachable } from '../database/failures.js'
import { createBucket } from '../limits/bucket.js'
import { emailRate } from '../limits/email-requests.js'
import { type Email, type Emails, notComposed } from '../models/email.js'
import { describe, type Mail, type MailTransport, refusesRecipient, shownAnswer, within } from './transport.js'

/** An entry of the queue, as the sender needs it. */
type ClaimedEmail = Pick<Email, 'id' | 'attempts' | 'priority' | 'age'> & { readonly kind: string }

/**
 * The result of composing an entry: an e-mail; `unwanted`, when the entry no longer applies and is deleted; `expired`,
 * when it is too old and is deleted with a warning in the log; or `held`, when the entry stays in the queue.
 */
export type Composed = Mail | 'unwanted' | 'expired' | 'held'

/** Maximum e-mails in flight. */
const maxInFlight = 4
/** Maximum retries in flight. The remaining connections are reserved for first attempts. */
const maxRetries = 2
/** Milliseconds between two reads of the queue. */
const readInterval = 500
/** Seconds of a lease. A lease is longer than an attempt, so that no other process claims the entry meanwhile. */
const lease = 90
/** Maximum seconds of an attempt. */
const attemptTimeout = 60
/** Seconds of the first delay, which doubles with each attempt. */
const firstDelay = 5
const maxDelay = 3600
const failedAfter = 72 * 3600
/** Seconds between attempts when the mail server refuses the recipient: the third comes after an hour. */
const refusedDelay = 1800
const refusedAttempts = 3
const refusedAfter = 3600

/** Starts the sender. `compose` runs at each attempt, and creates a new key each time. */
export function startSender<L extends ClaimedEmail>(parts: {
  readonly queue: Pick<Emails, 'done' | 'sent' | 'failed'> & {
    claim(...args: Parameters<Emails['claim']>): Promise<L | undefined>
  }
  readonly compose: (entry: L) => Promise<Composed>
  readonly transport: Pick<MailTransport, 'close'> & { send(mail: Mail): Promise<string> }
  readonly log: { warn(fields: object, text: string): void; info(fields: object, text: string): void }
  /** Multiplies the rate. */
  readonly factor?: number
}) {
  const { queue, compose, transport, log, factor = 1 } = parts
  // Only sent e-mails take a token. Otherwise, many unwanted entries would delay e-mails to owners.
  const rateLimit = createBucket({
    capacity: emailRate.burst,
    perSecond: emailRate.perSecond * availableParallelism() * factor,
  })
  const inFlight = new Set<Promise<void>>()
  let retries = 0
  let closed = false
  let again = false
  let filling: Promise<void> | undefined
  let reachable = true

  async function deliver(entry: L): Promise<void> {
    const { id, kind, attempts, age } = entry
    let composed = false
    let answer: string | undefined
    try {
      const mail = await compose(entry)
      composed = true
      if (mail === 'held') return
      if (mail === 'expired') {
        log.warn({ entry: id, kind, attempts }, 'e-mail dropped: too old to be of use')
      } else if (mail !== 'unwanted') {
        // Several entries may have been claimed for one token.
        rateLimit.spend(1)
        answer = await within(attemptTimeout, transport.send(mail))
        log.info({ entry: id, kind, attempts }, 'e-mail sent')
      }
    } catch (error) {
      // Without the database the attempt can't be settled either.
      if (!composed && isUnreachable(error)) throw error
      const reason = `${composed ? '' : notComposed}${describe(error)}`
      const delay = delayAfter(error, attempts, age)
      log.warn({ entry: id, kind, attempts, reason, delay }, delay ? 'e-mail delayed' : 'e-mail failed permanently')
      return queue.failed(id, reason, delay)
    }
    await (answer === undefined ? queue.done(id) : queue.sent(id, shownAnswer(answer)))
  }

  async function fill(): Promise<void> {
    try {
      do {
        again = false
        while (!closed && inFlight.size < maxInFlight && rateLimit.blockedFor(1) === 0) {
          const entry = await queue.claim(lease, retries < maxRetries)
          reachable = true
          if (!entry) break
          const isRetry = entry.priority > 0
          if (isRetry) retries++
          const work: Promise<void> = deliver(entry)
            // The entry is due again when its lease ends.
            .catch(error =>
              log.warn(
                { entry: entry.id, reason: describe(error) },
                'e-mail entry not updated: it is retried when its lease ends',
              ),
            )
            .finally(() => {
              inFlight.delete(work)
              if (isRetry) retries--
              wake()
            })
          inFlight.add(work)
        }
      } while (again && !closed)
    } catch (error) {
      if (reachable) log.warn({ reason: describe(error) }, 'e-mail queue not readable')
      reachable = false
    }
  }

  function wake(): void {
    if (closed) return
    again = true
    filling ??= fill().finally(() => {
      filling = undefined
    })
  }

  const timer = setInterval(wake, readInterval)
  wake()
  return {
    /** Reads the queue now, without waiting for the next interval. */
    wake,
    /** Claims no further entries, waits for those in flight, and closes the transport. */
    async close() {
      closed = true
      clearInterval(timer)
      await filling
      await Promise.all(inFlight)
      transport.close()
    },
  }
}

/**
 * Returns the seconds until the next attempt after a failed one; undefined after the last attempt. `age` is the age of
 * the entry in seconds.
 */
function delayAfter(error: unknown, attempts: number, age: number): number | undefined {
  const refused = refusesRecipient(error)
  if (age >= failedAfter || (refused && attempts >= refusedAttempts && age >= refusedAfter)) return undefined
  const delay = Math.min(firstDelay * 2 ** Math.min(attempts - 1, 30), maxDelay)
  return refused ? Math.max(delay, refusedDelay) : delay
}
