// Signing in: an attempt is admitted, counted as under way, and ends as a success, a failure, or as if it had never been.
//
// This room owns who calls and what they may: limits of client addresses (admission.ts) and accounts (lockout.ts),
// tokens and their keys (tokens.ts, keyring.ts), callers (caller.ts) and their permissions (permissions.ts). How counts
// and keys are stored is models/', how hashes are computed passwords/'. The RPCs use it, and nobody below them.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Call } from '../call.js'
import type { Transaction } from '../database/connection.js'
import type { Account, Attempts, Begun, Subjects } from '../models/attempt.js'
import type { Audit, AuditEvent } from '../models/audit.js'
import { upTo } from '../onfirstuse.js'
import type { Passwords, Verdict } from '../passwords/hash.js'
import { type Pool, type Waiter, waiterOf } from '../passwords/pool.js'
import { Refusal, refuse } from '../refusal.js'
import { type Admission, limitsOf, tooManyAttempts } from './admission.js'
import { traces } from './caller.js'
import { failuresThatLock, knownAddressDays, lockout, underWaySeconds } from './lockout.js'

/** The ways to sign in, as events name them. */
export type SignInAction =
  | 'session.login'
  | 'session.admin-login'
  | 'session.login-by-answers'
  | 'session.login-by-key'
  /** The password once more, and the mailed code, for another e-mail address. */
  | 'user.ask-email'
  | 'user.change-email'

/** An attempt under way. Leaving its scope before it succeeded or failed takes it back: it was never made. */
export interface Attempt extends AsyncDisposable {
  /** Whom it is about; undefined when nobody has the name. */
  readonly account: Account | undefined
  /** Its place among those who want something hashed. */
  readonly waiter: Waiter
  /** Compares a password with the account's. Without an account the answer is no, after the same time. */
  comparePassword(text: string): Promise<Verdict>
  /** Ends it: forgets the failures, remembers the address as known, records the event. */
  succeed(t?: Transaction): Promise<void>
  /** Ends it: counts a failure against account and client address, records it, and refuses. */
  fail(reason: Reason): Promise<never>
}

/** Begins attempts to sign in. */
export interface SignIns {
  /**
   * Counts an attempt as under way before anything is compared. Refuses with TOO_MANY_ATTEMPTS once the client address
   * or the account has failed too often, or has as many attempts under way as it has failures left; with OVERLOADED
   * when `hashes` wouldn't be compared in time. Who is refused is counted against nobody.
   */
  begin(action: SignInAction, usernameKey: string, call: Call, hashes: number): Promise<Attempt>
}

/** Milliseconds for which a lock that the database told of is believed, so that hammering at it costs no statements. */
const lockBelieved = 100

export function createSignIns(deps: {
  attempts: Attempts
  subjects: Subjects
  admission: Admission
  audit: Audit
  pool: Pick<Pool, 'check'>
  passwords: Pick<Passwords, 'verify'>
  /** Multiplies the limits. */
  factor: number
}): SignIns {
  const { attempts, subjects, admission, audit, pool, passwords, factor } = deps
  const most = failuresThatLock(factor)
  const bucket = limitsOf(factor).failures
  /** Seconds to wait, by account and address. */
  const locks = new LRUCache<string, number>({ ...upTo(10_000), ttl: lockBelieved })

  /** Refuses who is held up or comes too late, unless the account knows the address: those go on under their own counts. */
  async function admit(waiter: Waiter, call: Call, hashes: number): Promise<void> {
    const held = await admission.heldUp(call.address)
    const busy = held === undefined && hashes > 0 ? refusalOf(() => pool.check(waiter, hashes)) : undefined
    const refusal = held === undefined ? busy : tooManyAttempts(held, 'failures')
    if (refusal && !(await admission.knows(call.address, waiter.account))) throw refusal
  }

  function count(usernameKey: string, { address }: Call): Promise<Begun> {
    return attempts.begin({
      usernameKey,
      subjects: {
        account: subjects.account(usernameKey),
        known: subjects.known(usernameKey, address),
        address: subjects.address('failures', address),
      },
      knownAddress: subjects.knownAddress(address),
      knownDays: knownAddressDays,
      most,
      underWaySeconds,
      bucket,
    })
  }

  return {
    async begin(action, usernameKey, call, hashes) {
      const { address } = call
      const waiter = waiterOf(call, usernameKey)
      const lock = `${usernameKey}\0${waiter.address}`
      const locked = locks.get(lock)
      if (locked !== undefined) throw tooManyAttempts(locked, 'account')
      await admit(waiter, call, hashes)

      const leave = admission.begin(address)
      let open = true
      const begun = await count(usernameKey, call).catch(error => {
        leave()
        throw error
      })
      admission.learn(address, begun.addressLevel)
      if (!begun.begun) {
        leave()
        throw refusalOfBegun(begun)
      }

      const { account, known } = begun
      const place = { ...waiter, known: known && account?.active === true && !account.suspended }
      const subject = known ? subjects.known(usernameKey, address) : subjects.account(usernameKey)
      const event = (outcome: 'ok' | 'refused', reason?: Reason): AuditEvent => ({
        ...traces(call, outcome === 'ok' ? account : undefined),
        action,
        outcome,
        ...(reason === undefined ? {} : { reason: Reason[reason] }),
        ...(account && { subject_id: account.id }),
      })
      function end() {
        open = false
        leave()
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
          await attempts.succeed(subject, subjects.knownAddress(address), account!.id, event('ok'), t)
          call.user = account!.id
          end()
        },
        async fail(reason) {
          // At once: whoever returns this promise leaves the scope before it settles.
          end()
          const failures = await attempts.fail(subject, lockout.seconds, event('refused', reason))
          const addressHeldUp = await admission.addFailure(address)
          // A lock is recorded once, not each refusal that follows.
          if (failures === most || addressHeldUp) await audit.append(event('refused', Reason.TOO_MANY_ATTEMPTS))
          return refuse(reason)
        },
        async [Symbol.asyncDispose]() {
          if (!open) return
          end()
          // What can’t be taken back lapses by itself.
          await attempts.undo(subject).catch(() => {})
        },
      }

      function refusalOfBegun({ known, addressLevel, failed, seconds }: Begun): Refusal {
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
