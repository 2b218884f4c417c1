import type { Limit } from '../requests/refusal.js'

/**
 * Rate limits of a client address (an IPv6 client is its /64) or a service, as leaky buckets: each has room for `capacity`
 * operations, and drains `perSecond`.
 */
export const addressLimits = {
  /** Failed sign-ins, answers, mailed keys and activation keys, shared by all replicas: 300 in 15 minutes. */
  failures: { capacity: 300, perSecond: 300 / 900 },
  /** Sign-ups, shared by all replicas: 600 at once, then 300 an hour. */
  signUps: { capacity: 600, perSecond: 300 / 3600 },
  /** Requests for recovery keys, shared by all replicas: 600 at once, then 300 an hour. */
  recoveryRequests: { capacity: 600, perSecond: 300 / 3600 },
  /** Requests for recovery keys of one account, which may not exist, shared by all replicas: 60 an hour. */
  accountRecoveryRequests: { capacity: 60, perSecond: 60 / 3600 },
  /** Availability look-ups, per process: 300 at once, then 60 a minute. */
  lookUps: { capacity: 300, perSecond: 1 },
  /** Service keys that a process hasn't seen before, per process: 300 in 15 minutes. */
  serviceKeys: { capacity: 300, perSecond: 300 / 900 },
  /** Users that a service reads, per process and service: 10,000 at once, then 2,000 a second. */
  serviceReads: { capacity: 10_000, perSecond: 2_000 },
} as const satisfies Partial<Record<Limit, { capacity: number; perSecond: number }>>

/**
 * Failed attempts that lock a proof of an account, in the seconds after the first of them. Each network and device that
 * the account knows has a count apart.
 */
export const lockout = { failures: 10, seconds: 900 } as const

/** Maximum attempts of a mailed key from each client address. */
export const keyAttempts = 5

/** Wrong one-time codes that lock the secret, in two windows of `seconds`. After `noticeAfter` wrong codes the owner is notified. */
export const codeLimits = {
  window: { failures: 10, seconds: 15 * 60, noticeAfter: 5 },
  day: { failures: 30, seconds: 24 * 3600 },
} as const

const [minute, hour, day] = [60, 3600, 86_400]

/** Maximum numbers of e-mails, exports and wrong addresses, each in a sliding window of that length. */
export const quotaLimits = {
  /** Recovery keys for an account: 1 a minute and 5 an hour. */
  recovery: [
    { max: 1, seconds: minute },
    { max: 5, seconds: hour },
  ],
  /** Codes for another e-mail address of an account: 1 a minute and 5 an hour. */
  change: [
    { max: 1, seconds: minute },
    { max: 5, seconds: hour },
  ],
  /** E-mails to one recipient, across accounts: 5 an hour and 20 a day. */
  recipient: [
    { max: 5, seconds: hour },
    { max: 20, seconds: day },
  ],
  /** Security notices of an activated account to one recipient: 10 an hour. They don't count against the recipient's. */
  notices: [{ max: 10, seconds: hour }],
  /** Activation keys that an account requests from its organization: 10 a day. */
  partner: [{ max: 10, seconds: day }],
  /** Addresses that no organization has, in an account's requests for activation keys: 10 an hour. */
  partnerAddresses: [{ max: 10, seconds: hour }],
  /** Activation keys to one organization: 60 an hour. */
  organization: [{ max: 60, seconds: hour }],
  /** Keys that a user issues to members of its organization: 40 a day. */
  issuedKeys: [{ max: 40, seconds: day }],
  /** Exports of an account by its user: 5 a day. */
  exports: [{ max: 5, seconds: day }],
} as const satisfies Partial<Record<Limit, readonly { max: number; seconds: number }[]>>
