// Signing in: an attempt is admitted, counted as under way, and ends as a success, a failure, or as if it had never been.
//
// This room owns who calls and what they may: limits of client addresses (admission.ts) and accounts (lockout.ts),
// tokens and their keys (tokens.ts, keyring.ts), callers (caller.ts) and their permissions (permissions.ts). How counts
// and keys are stored is models/', how hashes are computed passwords/'. The RPCs use it, and nobody below them.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/connection.js'
import type { Account, AttemptStart, Attempts, CounterKeys, Device, Proof } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { Passwords, Verdict } from '../passwords/hash.js'
import { type Pool, type Waiter, waiterOf } from '../passwords/pool.js'
import { maxEntries } from '../process/cache-size.js'
import type { Call } from '../requests/call.js'
import { network } from '../requests/client-address.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { type Admission, limitsOf, tooManyAttempts } from './admission.js'
import { auditContext } from './caller.js'
import { failuresThatLock, inFlightSeconds, knownAddressDays, lockout } from './lockout.js'

/**
 * The ways to sign in, as events name them: the proof whose count an account keeps, and the reason that an unknown user is
 * refused with. Mailed keys count by key and network alone, so that no failure keeps a right one out; how many of an account
 * were wrong is only recorded.
 */
const ways = {
  'session.login': { proof: 'password', unknown: Reason.INVALID_CREDENTIALS },
  'session.admin-login': { proof: 'administration', unknown: Reason.INVALID_CREDENTIALS },
  'session.login-by-answers': { proof: 'answers', unknown: Reason.USER_NOT_FOUND },
  'session.login-by-key': { proof: undefined, unknown: Reason.INVALID_KEY },
  // The password once more, and the mailed code, for another e-mail address.
  'user.ask-email': { proof: 'password', unknown: Reason.INVALID_TOKEN },
  'user.change-email': { proof: undefined, unknown: Reason.INVALID_TOKEN },
} as const satisfies Record<string, { readonly proof: Proof | undefined; readonly unknown: Reason }>

/** One of them. */
export type SignInAction = keyof typeof ways

/** An attempt under way. Leaving its scope before it succeeded or failed takes it back: it was never made. */
export interface Attempt extends AsyncDisposable {
  /** Whom it is about; undefined when nobody has the name. */
  readonly account: Account | undefined
  /** Its place among those who want something hashed. */
  readonly waiter: Waiter
  /** Compares a password with the account's. Without an account the answer is no, after the same time. */
  comparePassword(text: string): Promise<Verdict>
  /**
   * Ends it: forgets the failures of its proof, remembers the networks of the address, records the event. Refuses as for an
   * unknown user when the user is deleted or erased by now.
   */
  succeed(t?: Transaction): Promise<void>
  /**
   * Ends it: counts a failure against its proof of the account and against the client address, and refuses. An account has
   * an event of the first in 15 minutes, unless it was a mailed key, and of the one that reaches the limit; so does an
   * address that is held up from now on. How many there were is its object.
   */
  fail(reason: Reason): Promise<never>
  /**
   * Ends it when its proof was right and a second one was wrong, which is counted and recorded elsewhere: counts a failure
   * against the client address alone, and refuses.
   */
  failSecond(reason: Reason): Promise<never>
  /** Records that it is refused for a reason, and counts nothing. */
  record(reason: Reason, t?: Transaction): Promise<void>
}

/** Begins attempts to sign in. */
export interface SignIns {
  /**
   * Counts an attempt as under way before anything is compared. Refuses with TOO_MANY_ATTEMPTS once the client address
   * or the proof of the account has failed too often, or has as many attempts under way as it has failures left; with
   * OVERLOADED when `hashes` wouldn't be compared in time. A refused attempt isn’t counted. From a `device` of the account
   * it counts for that alone.
   */
  begin(action: SignInAction, usernameKey: string, call: Call, hashes: number, device?: Device): Promise<Attempt>
}

/** Milliseconds for which a lock that the database told of is believed, so that hammering at it costs no statements. */
const lockBelieved = 100

export function createSignIns(deps: {
  attempts: Attempts
  counterKeys: CounterKeys
  admission: Admission
  pool: Pick<Pool, 'check'>
  passwords: Pick<Passwords, 'verify'>
  /** Multiplies the limits. */
  factor: number
}): SignIns {
  const { attempts, counterKeys, admission, pool, passwords, factor } = deps
  const most = failuresThatLock(factor)
  const bucket = limitsOf(factor).failures
  /** Seconds to wait, by proof, account, address and device. */
  const locks = new LRUCache<string, number>({ ...maxEntries(10_000), ttl: lockBelieved })

  /** Where wrong mailed keys of an account are counted, from wherever they come: this count refuses nobody. */
  const wrongKeysOf = (usernameKey: string) => ({
    subject: counterKeys.account('mailed key', usernameKey),
    account: null,
  })

  /** Refuses a caller that is held up or comes too late, unless the account knows it: then its own counts alone decide. */
  async function admit(waiter: Waiter, call: Call, hashes: number, device: Device | undefined): Promise<void> {
    const held = await admission.blockedFor(call.address)
    const busy = held === undefined && hashes > 0 ? refusalOf(() => pool.check(waiter, hashes)) : undefined
    const refusal = held === undefined ? busy : tooManyAttempts(held, 'failures')
    if (!refusal || (device?.active && device.usernameKey === waiter.account)) return
    if (!(await admission.knows(call.address, waiter.account))) throw refusal
  }

  return {
    async begin(action, usernameKey, call, hashes, device) {
      const { address } = call
      const { proof, unknown } = ways[action]
      const waiter = waiterOf(call, usernameKey, proof === 'administration' ? proof : 'other')
      const lock = [proof, usernameKey, network(address), device?.userId, device?.session].join('\0')
      const locked = locks.get(lock)
      if (locked !== undefined) throw tooManyAttempts(locked, 'account')
      await admit(waiter, call, hashes, device)

      const leave = admission.begin(address)
      let open = true
      const limits = { knownDays: knownAddressDays, most, inFlightSeconds, bucket }
      const begun = await attempts.begin({ usernameKey, proof, address, device, ...limits }).catch(error => {
        leave()
        throw error
      })
      admission.observe(address, begun.addressLevel)
      if (!begun.begun) {
        leave()
        throw refusalOfStart(begun)
      }

      const { account, known, counter } = begun
      const isKnown = known && account?.active === true && !account.suspended
      const place: Waiter = isKnown ? { ...waiter, kind: 'known' } : waiter
      const event = (outcome: 'ok' | 'refused', reason?: Reason): AuditEvent => ({
        ...auditContext(call, outcome === 'ok' ? account : undefined),
        action,
        outcome,
        ...(reason === undefined ? {} : { reason: Reason[reason] }),
        ...(account && { subject_id: account.id }),
      })
      function end() {
        open = false
        leave()
      }
      // What can’t be taken back lapses by itself.
      const takeBack = async () => counter && attempts.undo(counter.subject).catch(() => {})
      const record: Attempt['record'] = (reason, t) => attempts.record(event('refused', reason), t)
      const limitReached = (failures: number): AuditEvent => ({
        ...event('refused', Reason.TOO_MANY_ATTEMPTS),
        object: `failures:${failures}`,
      })
      async function addFailureOfAddress(): Promise<void> {
        const failures = await admission.addFailure(address)
        if (failures === undefined) return
        // It is no event of the account that happened to be tried.
        const { subject_id: _, ...blockedFor } = limitReached(failures)
        await attempts.record(blockedFor)
      }
      return {
        account,
        waiter: place,
        async comparePassword(text) {
          const claim = { context: 'password', text, stored: account?.passwordHash } as const
          const [verdict] = await passwords.verify([claim], place)
          return verdict!
        },
        async succeed(t) {
          const { id } = account!
          if (!(await attempts.succeed(counter?.subject, address, id, event('ok'), t))) refuse(unknown)
          call.user = id
          end()
        },
        record,
        async failSecond(reason) {
          end()
          await takeBack()
          await addFailureOfAddress()
          return refuse(reason)
        },
        async fail(reason) {
          // At once: whoever returns this promise leaves the scope before it settles.
          end()
          const failures = { most, seconds: lockout.seconds, last: limitReached(most) }
          if (counter) await attempts.fail(counter, { ...failures, first: event('refused', reason) }, account?.id)
          else await attempts.fail(wrongKeysOf(usernameKey), failures, account?.id)
          await addFailureOfAddress()
          return refuse(reason)
        },
        async [Symbol.asyncDispose]() {
          if (!open) return
          end()
          await takeBack()
        },
      }

      function refusalOfStart({ known, addressLevel, failed, seconds }: AttemptStart): Refusal {
        if (!known && addressLevel + 1 > bucket.capacity) {
          return tooManyAttempts((addressLevel + 1 - bucket.capacity) / bucket.perSecond, 'failures')
        }
        // Only those under way stand in the way: they are decided soon.
        if (failed < most) return tooManyAttempts(1, 'account')
        locks.set(lock, seconds)
        return tooManyAttempts(seconds, 'account')
      }
    },
  }
}

function refusalOf(work: () => void): Refusal | undefined {
  try {
    work()
    return undefined
  } catch (error) {
    if (error instanceof Refusal) return error
    throw error
  }
}
