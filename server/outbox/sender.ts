/**
 * Sends the e-mails of the queue, several at once but no more than so many a second, and none inside a transaction. An
 * e-mail stays in the queue until it is accepted: a failure only delays it, by 5 seconds at first and up to an hour, and
 * after 72 hours it is kept as failed; where the mail server refuses the recipient, after 3 attempts in an hour. First
 * attempts go before retries and have places of their own, so that retries never hold them up. An e-mail may go out twice
 * when the process dies between sending and settling, under the same Message-ID.
 */
import { availableParallelism } from 'node:os'
import { emailRate } from '../limits/email-requests.js'
import { createTokenBucket } from '../limits/token-bucket.js'
import type { Mail } from './transport.js'

/** What the sender must know of an e-mail on loan. */
interface Queued {
  readonly id: string
  readonly kind: string
  /** Attempts so far, this one included. */
  readonly attempts: number
  /** 0 for a first attempt; all others share the places that aren't kept for those. */
  readonly priority: number
  readonly createdAt: Date
}

/** The queue, as far as the sender uses it. */
interface Queue<L> {
  /**
   * Lends an e-mail that is due for `lease` seconds, first attempts before others, and without `retries` no others.
   * Concurrent callers get different e-mails.
   */
  claim(lease: number, retries: boolean): Promise<L | undefined>
  /** Deletes an e-mail. */
  done(id: string): Promise<void>
  /** Puts an e-mail off for `delay` seconds, or for good without one. */
  failed(id: string, error: string, delay: number | undefined): Promise<void>
}

/**
 * What became of an entry of the queue: an e-mail, none because it is no longer wanted (`unwanted`: the entry
 * is deleted), none because it waited too long to be of use (`expired`: the same, with a line in the log), or none yet
 * (`held`: the entry stays as it is).
 */
export type Composed = Mail | 'unwanted' | 'expired' | 'held'

/** The sender of e-mails. */
export interface Sender {
  /** Looks at the queue now rather than at the next turn. */
  wake(): void
  /** Takes no more e-mails and waits for those in flight. */
  close(): Promise<void>
}

const parallel = 4
/** The other places are kept for first attempts: whatever a mail server does with retries, they go on. */
const parallelRetries = 2
const turn = 500
/** Seconds. The lease outlasts the longest attempt, so that no other process claims the e-mail meanwhile. */
const lease = 90
const longestAttempt = 60
const firstDelay = 5
const longestDelay = 3600
const failedAfter = 72 * 3600
/** Where the mail server refuses the recipient, so that the last of 3 attempts comes after an hour. */
const refusedDelay = 1800
const refusedAttempts = 3
const refusedAfter = 3600

/** Starts sending. `compose` makes the e-mail, with the keys in it, at each attempt. */
export function startSender<L extends Queued>(parts: {
  readonly queue: Queue<L>
  readonly compose: (entry: L) => Promise<Composed>
  readonly transport: { send(mail: Mail): Promise<unknown>; close(): void }
  readonly log: { warn(fields: object, text: string): void; info(fields: object, text: string): void }
  /** Multiplies how many leave a second. */
  readonly factor?: number
  /** The clock, in ms since 1970. */
  readonly now?: () => number
}): Sender {
  const { queue, compose, transport, log, factor = 1, now = Date.now } = parts
  // Unwanted entries cost little and aren't counted: otherwise they would hold up what owners wait for.
  const room = createTokenBucket(emailRate.burst, emailRate.perSecond * availableParallelism() * factor)
  const inFlight = new Set<Promise<void>>()
  let retries = 0
  let closed = false
  let again = false
  let filling: Promise<void> | undefined
  let reachable = true

  async function deliver(entry: L): Promise<void> {
    const { id, kind, attempts, createdAt } = entry
    try {
      const mail = await compose(entry)
      if (mail === 'held') return
      if (mail === 'expired') {
        log.warn({ entry: id, kind, attempts }, 'e-mail dropped: too old to be of use')
      } else if (mail !== 'unwanted') {
        room.acquire(1)
        await within(longestAttempt, transport.send(mail))
        log.info({ entry: id, kind, attempts }, 'e-mail sent')
      }
    } catch (error) {
      const reason = describe(error)
      const delay = delayAfter(error, attempts, (now() - createdAt.getTime()) / 1000)
      log.warn({ entry: id, kind, attempts, reason, delay }, delay ? 'e-mail delayed' : 'e-mail failed for good')
      return queue.failed(id, reason, delay)
    }
    await queue.done(id)
  }

  async function fill(): Promise<void> {
    try {
      do {
        again = false
        while (!closed && inFlight.size < parallel && room.blockedFor(1) === 0) {
          const entry = await queue.claim(lease, retries < parallelRetries)
          reachable = true
          if (!entry) break
          const isRetry = entry.priority > 0
          if (isRetry) retries++
          const work: Promise<void> = deliver(entry)
            // The e-mail comes back when its lease is over.
            .catch(error => log.warn({ entry: entry.id, reason: describe(error) }, 'e-mail not settled'))
            .finally(() => {
              inFlight.delete(work)
              if (isRetry) retries--
              wake()
            })
          inFlight.add(work)
        }
      } while (again && !closed)
    } catch (error) {
      if (reachable) log.warn({ reason: describe(error) }, 'mail queue out of reach')
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

  const timer = setInterval(wake, turn)
  wake()
  return {
    wake,
    async close() {
      closed = true
      clearInterval(timer)
      await filling
      await Promise.all(inFlight)
      transport.close()
    },
  }
}

/** Seconds until the attempt after one that failed, of an e-mail of that age in seconds; undefined when it was the last. */
function delayAfter(error: unknown, attempts: number, age: number): number | undefined {
  const refused = refusesRecipient(error)
  if (age >= failedAfter || (refused && attempts >= refusedAttempts && age >= refusedAfter)) return undefined
  const delay = Math.min(firstDelay * 2 ** Math.min(attempts - 1, 30), longestDelay)
  return refused ? Math.max(delay, refusedDelay) : delay
}

/**
 * Whether the mail server refuses the recipient: a 5xx reply to RCPT TO (RFC 5321). A 5xx reply to another command is about
 * this service, its password or its reputation, which an operator can correct.
 */
function refusesRecipient(error: unknown): boolean {
  const { command, responseCode } = error as Record<string, unknown>
  return command === 'RCPT TO' && Number(responseCode) >= 500
}

/** Rejects when a task takes longer than some seconds. The task isn't stopped. */
export async function within<T>(seconds: number, task: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(Object.assign(new Error('too slow'), { code: 'ETIMEDOUT' })), seconds * 1000)
  })
  return Promise.race([task, late]).finally(() => clearTimeout(timer))
}

/** An error by its codes alone: what a mail server or a driver says may quote e-mails, addresses or passwords. */
export function describe(error: unknown): string {
  const { name, code, responseCode, command } = error as Record<string, unknown>
  return [name, code, responseCode, command]
    .filter(part => typeof part === 'string' || typeof part === 'number')
    .join(' ')
}
