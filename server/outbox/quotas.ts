// Quotas of e-mails, exports and wrong addresses. Refused ones don’t count.
import { LRUCache } from 'lru-cache'
import type { Transaction } from '../database/database.js'
import { maxEntries } from '../limits/cache-size.js'
import type { CounterKeys } from '../models/attempt.js'
import type { EmailQuotas } from '../models/email-quota.js'
import type { User } from '../models/user.js'
import { quotaLimits } from '../policy/limits.js'
import { emailKey } from '../rules/names.js'

/** Milliseconds for which a refusal is cached: an administrator may end it. */
const cachedFor = 1_000

/**
 * Who shares a count of e-mails to a recipient, so that none uses up that of another: recovery of the account with this id;
 * recovery of all accounts that may have the address of another person, apart from networks that they know (`known`) and from others
 * (`unproved`); recovery by administrators; without one, everything else, above all codes, which any account can ask for.
 */
type Sharers = number | 'known' | 'unproved' | 'administration' | undefined

/** Whether an account has its e-mail address by right: anyone can sign up, and sign in, with that of another person. */
export const hasByRight = ({ active, emailProved }: Pick<User, 'active' | 'emailProved'>) => active || emailProved

/** Counts e-mails, exports and wrong addresses by limit. */
export type Quotas = ReturnType<typeof createQuotas>

/**
 * Creates the quotas. `factor` multiplies the limits; each allows at least one e-mail. `now` is a clock in
 * ms; `onRefusal` is called with the limit of each refusal.
 *
 * Each function counts one and returns 0; when the limit is reached, it returns the seconds until the next one is permitted.
 * After a refusal the caller rolls the transaction back, which reverts other counts. Without a transaction the functions only
 * read the refusals that this process has cached, otherwise return 0.
 */
export function createQuotas(
  counts: EmailQuotas,
  counterKeys: CounterKeys,
  factor: number,
  now: () => number,
  onRefusal: (limit: keyof typeof quotaLimits) => void = () => {},
) {
  const limitsOf = (limit: keyof typeof quotaLimits) =>
    quotaLimits[limit].map(({ max, seconds }) => ({ max: Math.ceil(max * factor), seconds }))
  const refused = new LRUCache<string, { from: number; until: number }>(maxEntries(100_000))

  async function take(limit: keyof typeof quotaLimits, of: (string | number)[], t?: Transaction): Promise<number> {
    const subject = counterKeys.emails(limit, of.join('\0'))
    const key = subject.toString('latin1')
    const known = refused.get(key)
    const time = now()
    let wait = 0
    if (known && time >= known.from && time < Math.min(known.until, known.from + cachedFor)) {
      wait = Math.ceil((known.until - time) / 1000)
    } else if (t) {
      wait = await counts.take(subject, limitsOf(limit), t)
      if (wait > 0) refused.set(key, { from: time, until: time + wait * 1000 })
    }
    if (wait > 0) onRefusal(limit)
    return wait
  }

  const toRecipient = (email: string, sharers: Sharers) => [emailKey(email), ...(sharers ? [sharers] : [])]

  /** What prevents a user who knows these networks, by limit: all but notices, which the limit only delays. */
  function subjectsOf(user: Pick<User, 'id' | 'email' | 'active' | 'emailProved'>, networks: readonly Buffer[]) {
    const { id, email } = user
    const sharers: Sharers[] = ['administration', ...(hasByRight(user) ? [id] : (['known', 'unproved'] as const))]
    const of = {
      recovery: [[id], ...networks.map(network => [id, network.toString('hex')])],
      recipient: email === null ? [] : sharers.map(each => toRecipient(email, each)),
      change: [[id]],
      partner: [[id]],
      partnerAddresses: [[id]],
      exports: [[id]],
      issuedKeys: [[id]],
    } as const
    return Object.entries(of).map(([name, subjects]) => {
      const limit = name as keyof typeof of
      return { limit, subjects: subjects.map(each => counterKeys.emails(limit, each.join('\0'))) }
    })
  }

  return {
    /** Returns the limits that refuse the next e-mail or export of a user, each with the seconds until it is permitted. */
    async held(...[user, networks, t]: [...Parameters<typeof subjectsOf>, Transaction?]) {
      const all = []
      for (const { limit, subjects } of subjectsOf(user, networks)) {
        const seconds = await counts.wait(subjects, limitsOf(limit), t)
        if (seconds > 0) all.push({ limit, subjects, seconds: Math.ceil(seconds) })
      }
      return all
    },
    /** A recovery key for an account. Each network that the account knows has a separate count. */
    recovery: (userId: number, knownNetwork: string | undefined, t?: Transaction) =>
      take(
        'recovery',
        knownNetwork === undefined ? [userId] : [userId, counterKeys.knownNetwork(knownNetwork).toString('hex')],
        t,
      ),
    /** A code for another e-mail address of an account. */
    change: (userId: number, t: Transaction) => take('change', [userId], t),
    /** A security notice of an activated account to an address. */
    notice: (userId: number, email: string, t: Transaction) => take('notices', [userId, emailKey(email)], t),
    /** Any other e-mail to an address, in the count of its sharers. */
    recipient: (email: string, sharers: Sharers, t?: Transaction) => take('recipient', toRecipient(email, sharers), t),
    /** An activation key for an account. */
    partner: (userId: number, t?: Transaction) => take('partner', [userId], t),
    /** An address that no organization has, given by an account. */
    partnerAddress: (userId: number, t?: Transaction) => take('partnerAddresses', [userId], t),
    /** An activation key to an organization. */
    organization: (organizationId: number, t?: Transaction) => take('organization', [organizationId], t),
    /** A key that a user issues to a member of its organization. */
    issuedKeys: (userId: number, t: Transaction) => take('issuedKeys', [userId], t),
    /** An export of an account by its user. */
    exports: (userId: number, t: Transaction) => take('exports', [userId], t),
  }
}
