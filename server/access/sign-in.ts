// Attempts to sign in. An attempt is admitted and counted as in flight; it then succeeds, fails, or is undone.
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Transaction } from '../database/database.js'
import { maxEntries } from '../limits/cache-size.js'
import type { Limits } from '../limits/index.js'
import { failuresThatLock, limitsOf, tooManyAttempts } from '../limits/rate-limits.js'
import type { Account, AttemptStart, Device, Proof } from '../models/attempt.js'
import type { AuditEvent } from '../models/audit.js'
import type { Models } from '../models/index.js'
import type { User } from '../models/user.js'
import { activeUser } from '../models/user-state.js'
import type { Verdict } from '../passwords/hash.js'
import type { Hashing } from '../passwords/index.js'
import { type Waiter, waiterOf } from '../passwords/pool.js'
import { lockout } from '../policy/limits.js'
import type { Settings } from '../process/settings.js'
import type { Call } from '../requests/call.js'
import { network } from '../requests/client-address.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { tooLong } from '../rules/sizes.js'
import { auditContext } from './caller.js'
import { type Passed, pass, type Way, ways } from './gate.js'

/** The password again, of a user that calls. */
const again = { way: 'give its password again', proof: 'password', unknown: Reason.INVALID_TOKEN } as const

/**
 * Actions that require authentication, by audit action. `way`: where it ends at the gate. `proof`: the proof whose failures
 * lock the account. An action without a proof never locks it: its keys are limited by key and network (models/mailed-key.ts),
 * so a right key always works, and the count of wrong keys only leads to an audit event. `unknown`: the reason of the refusal
 * for a user who is unknown, or erased meanwhile.
 */
const actions = {
  'session.login': { way: 'sign in', proof: 'password', unknown: Reason.INVALID_CREDENTIALS },
  'session.admin-login': {
    way: 'sign in to Administration',
    proof: 'administration',
    unknown: Reason.INVALID_CREDENTIALS,
  },
  'session.login-by-answers': { way: 'recover by answers', proof: 'answers', unknown: Reason.USER_NOT_FOUND },
  // The one-time code of an administrator, at the pages of the registry.
  'session.authorize': { way: 'use a token', proof: undefined, unknown: Reason.INVALID_TOKEN },
  'session.login-by-key': { way: 'recover by e-mail', proof: undefined, unknown: Reason.INVALID_KEY },
  // The password of a user whose sign-up is repeated.
  'user.sign-up': { way: 'sign up', proof: 'password', unknown: Reason.INVALID_SIGN_UP },
  // The two steps of a change of the e-mail address: the password, then the mailed code.
  'user.ask-email': again,
  'user.change-email': { way: 'confirm an e-mail address', proof: undefined, unknown: Reason.INVALID_TOKEN },
  'user.delete-own': again,
  'user.set-own-username': again,
  'user.delete-own-answers': again,
  // For an answer that counts at once.
  'user.save-answer': again,
  'user.change-password': again,
  'user.issue-key': again,
} as const satisfies Record<string, { readonly way: Way; readonly proof: Proof | undefined; readonly unknown: Reason }>

/** What else the success of an attempt does, and what it changes of the account. */
type Work = (account: Account, t: Transaction) => Promise<Partial<Account> | false | undefined>

/** The audit action of an attempt. */
type SignInAction = keyof typeof actions

/** Begins attempts to sign in. */
export type SignIns = ReturnType<typeof createSignIns>

/** An attempt in flight. When its scope ends before a success or a failure, the attempt is undone and doesn't count. */
export type Attempt = Awaited<ReturnType<SignIns['begin']>>

/** An attempt that is admitted and counted as in flight. */
interface Admitted extends Pick<AttemptStart, 'account' | 'counter'> {
  readonly action: SignInAction
  readonly usernameKey: string
  readonly call: Call
  /** Its place in the hash queue. */
  readonly waiter: Waiter
  /** Ends what this process counts. Returns false if it has ended: a transaction that is repeated ends the attempt again. */
  end(): boolean
}

/** Milliseconds for which a lock is cached, so that repeated attempts cost few statements. */
const lockCachedFor = 100

/** Creates the sign-ins of a process. */
export function createSignIns(
  { database, attempts, counterKeys }: Models,
  { rateLimits, knownAccounts }: Limits,
  { pool, passwords }: Hashing,
  { limitFactor: factor }: Pick<Settings, 'limitFactor'>,
) {
  const limits = { max: failuresThatLock(factor), bucket: limitsOf(factor).failures }
  /** Seconds to wait, by proof, account, address and device. */
  const locks = new LRUCache<string, number>({ ...maxEntries(10_000), ttl: lockCachedFor })

  const secondsToRoom = (level: number) => (level + 1 - limits.bucket.capacity) / limits.bucket.perSecond

  /** The counter of an account's wrong mailed keys, from all addresses. It refuses no attempt. */
  const wrongKeysOf = (usernameKey: string) => ({
    subject: counterKeys.account('mailed key', usernameKey),
    account: null,
  })

  /**
   * Refuses when the client address is blocked or the hash queue is full. An account that knows the device or network
   * is exempt: only its own counts apply.
   */
  async function checkRoom(waiter: Waiter, call: Call, hashes: boolean, device: Device | undefined): Promise<void> {
    const seconds = await rateLimits.blockedFor(call.address)
    const busy = seconds === undefined && hashes ? refusalOf(() => pool.check(waiter)) : undefined
    const refusal = seconds === undefined ? busy : tooManyAttempts(seconds, 'failures')
    if (!refusal || (device?.active && device.usernameKey === waiter.account)) return
    if (!(await knownAccounts.knows(call.address, waiter.account))) throw refusal
    if (hashes) pool.check({ ...waiter, kind: 'known' })
  }

  /** Counts an attempt as in flight, or refuses it. */
  async function admit(action: SignInAction, usernameKey: string, call: Call, device?: Device): Promise<Admitted> {
    const { address } = call
    const { proof } = actions[action]
    const waiter = waiterOf(call, usernameKey, proof === 'administration' ? proof : 'other')
    const lockKey = [proof, usernameKey, network(address), device?.userId, device?.session].join('\0')
    const lockedFor = locks.get(lockKey)
    if (lockedFor !== undefined) throw tooManyAttempts(lockedFor, 'account')
    await checkRoom(waiter, call, proof !== undefined, device)

    const inFlight = rateLimits.begin(address)
    let open = true
    function end(): boolean {
      if (!open) return false
      open = false
      inFlight[Symbol.dispose]()
      return true
    }
    const start = await attempts.begin({ usernameKey, proof, address, device, limits }).catch(error => {
      end()
      throw error
    })
    const { account, counter, known, obstacle, addressLevel, seconds } = start
    rateLimits.observe(address, addressLevel)
    call.user ??= account?.id
    if (!obstacle) {
      const kind = known && account && activeUser.of(account) ? 'known' : waiter.kind
      return { action, usernameKey, call, waiter: { ...waiter, kind }, account, counter, end }
    }
    end()
    if (obstacle === 'address') throw tooManyAttempts(secondsToRoom(addressLevel), 'failures')
    if (obstacle === 'failures') locks.set(lockKey, seconds)
    // Attempts in flight end soon.
    throw tooManyAttempts(obstacle === 'failures' ? seconds : 1, 'account')
  }

  // An attempt that can't be undone expires.
  const undo = async ({ counter }: Admitted) => counter && attempts.undo(counter.subject).catch(() => {})

  /** Counts a failure of the client address, and records the one that blocks it: of no account, as the block concerns none. */
  async function addFailureOfAddress(attempt: Admitted, level?: number): Promise<void> {
    const failures = await rateLimits.addFailure(attempt.call.address, level)
    if (failures !== undefined) await attempts.record({ ...limitReached(attempt, failures), subject_id: undefined })
  }

  /** What ends an attempt that is admitted, once. */
  function settle(admitted: Admitted) {
    const { action, usernameKey, call, waiter, account, counter, end } = admitted
    const { way, unknown } = actions[action]
    let passed: Passed<Account> | undefined
    const attempt = {
      /** The account; undefined when no user has the name. */
      account,
      waiter,
      /** Compares a password with the account's. Without an account the result is not correct, after the same time. */
      async comparePassword(text: string): Promise<Verdict> {
        const claim = { context: 'password', text, stored: account?.passwordHash } as const
        const [verdict] = await passwords.verify([claim], waiter)
        return verdict!
      },
      /**
       * Returns the account if the proof is right, and its state opens the way of the attempt. Otherwise fails alike for both, and
       * for an unknown user. Doesn't end the attempt: ask after everything that takes time.
       */
      async pass(proved: boolean, more?: Refusal['more']): Promise<Passed<Account>> {
        passed = proved ? pass(account, way) : undefined
        return passed ?? attempt.fail(ways[way], more)
      },
      /**
       * Ends the attempt as `pass` and `succeed` do: tokens are issued to the account that it returns. `work` is in the transaction
       * of the success, and returns what it changes of the account; `false` says that the proof is spent, and the attempt fails.
       */
      async enter(
        proved: boolean,
        { work, more }: { work?: Work; more?: Refusal['more'] } = {},
      ): Promise<Passed<Account>> {
        const entering = await attempt.pass(proved, more)
        if (!work) {
          await attempt.succeed()
          return entering
        }
        const entered = await database.transact(async t => {
          const changed = await work(entering, t)
          if (changed === false) return undefined
          const account = { ...entering, ...changed }
          await attempt.succeed(t, account.tokenGeneration)
          return account
        })
        return entered ?? attempt.fail(ways[way], more)
      },
      /**
       * Ends the attempt of an account that passed: clears the failures of its proof, adds the networks of the address to the known
       * ones, and records the audit event. Refuses as for an unknown user when the user has been deleted or erased, or its tokens
       * were revoked since the attempt began, except by `t`, which says the new generation.
       */
      async succeed(t?: Transaction, tokenGeneration = account!.tokenGeneration): Promise<void> {
        if (!passed) throw new Error('Only an attempt that passed the gate can succeed.')
        const user = { id: passed.id, tokenGeneration }
        const event = eventOf(admitted, 'ok')
        if (!(await attempts.succeed(counter?.subject, call.address, user, event, t))) refuse(unknown)
        end()
      },
      /**
       * Appends an audit event of a refusal with this reason, or with one that is more precise than the caller's. Doesn't end the
       * attempt and counts nothing.
       */
      record: (reason: Reason | 'WRONG_CODE' | 'CODE_USED', t?: Transaction) =>
        attempts.record(eventOf(admitted, 'refused', reason), t),
      /**
       * Ends the attempt when the second factor was wrong, whose failures totp.ts counts and records: counts a
       * failure of the client address only, and throws `refusal`.
       */
      async failSecond(refusal: Refusal): Promise<never> {
        end()
        await undo(admitted)
        await addFailureOfAddress(admitted)
        throw refusal
      },
      /**
       * Ends the attempt: counts a failure of the proof and of the client address, and refuses. Audit events record the
       * first failure of the account in 15 minutes (except of a mailed key), the failure that locks it, and the failure
       * that blocks the address; the object of the last two is the number of failures.
       */
      async fail(reason: Reason, more?: Refusal['more']): Promise<never> {
        // Before the first await: `return attempt.fail(…)` ends the caller's scope before this promise settles.
        end()
        const failures = {
          max: limits.max,
          seconds: lockout.seconds,
          first: counter && eventOf(admitted, 'refused', reason),
          last: limitReached(admitted, limits.max),
        }
        const of = { userId: account?.id, address: call.address, bucket: limits.bucket }
        await addFailureOfAddress(admitted, await attempts.fail(counter ?? wrongKeysOf(usernameKey), failures, of))
        return refuse(reason, more)
      },
      async [Symbol.asyncDispose](): Promise<void> {
        if (end()) await undo(admitted)
      },
    }
    return attempt
  }

  const signIns = {
    /**
     * Counts an attempt as in flight before any comparison. Refuses with TOO_MANY_ATTEMPTS when the failures and attempts
     * in flight of the client address, or of the proof of the account, reach their limit; with OVERLOADED when the hash
     * queue has no room. A refused attempt doesn't count. An attempt from a `device` of the account counts for that device
     * only.
     */
    begin: async (...of: Parameters<typeof admit>) => settle(await admit(...of)),

    /** Compares the password of a signed-in user once more. Refuses with INVALID_CREDENTIALS, and as `begin` does. */
    async prove(
      action: SignInAction,
      password: string,
      user: Pick<User, 'id' | 'usernameKey'>,
      call: Call,
    ): Promise<void> {
      if (tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)
      await using attempt = await signIns.begin(action, user.usernameKey, call)
      const { correct } = await attempt.comparePassword(password)
      await attempt.pass(correct && attempt.account?.id === user.id)
    },
  }
  return signIns
}

function eventOf({ action, call, account }: Admitted, outcome: 'ok' | 'refused', reason?: Reason | string): AuditEvent {
  return {
    ...auditContext(call, outcome === 'ok' ? account : undefined),
    action,
    outcome,
    reason: typeof reason === 'number' ? Reason[reason] : reason,
    subject_id: account?.id,
  }
}

/** The event of the failure that reaches a limit. */
function limitReached(attempt: Admitted, failures: number): AuditEvent {
  return { ...eventOf(attempt, 'refused', Reason.TOO_MANY_ATTEMPTS), object: `failures:${failures}` }
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
