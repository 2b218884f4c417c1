import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { auditContext } from '../access/caller.js'
import type { Access } from '../access/index.js'
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { Limits } from '../limits/index.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { RecoveryRequest } from '../models/email.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import type { Settings } from '../process/settings.js'
import { network } from '../requests/client-address.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { emailKey, isEmailAddress, typedKey, usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** The RPCs of recovery by a mailed key. */
export function recoveryKeyRpcs(
  { mailedKeys, users, administeredUsers, emails, audit }: Models,
  { rateLimits, knownAccounts, emailRequests }: Limits,
  { signIns, tokens }: Access,
  { notifyOwner, chooseLocale }: Outbox,
  settings: Pick<Settings, 'recoveryEmail'>,
) {
  /** Whether a bucket refuses the request and the account is exempt from it. Rethrows the refusal for other accounts. */
  async function isExempt(known: boolean, address: string, account: string): Promise<boolean> {
    try {
      await rateLimits.take('recoveryRequests', address)
      await rateLimits.take('accountRecoveryRequests', address, account)
      return false
    } catch (error) {
      if (!(error instanceof Refusal) || !known) throw error
      return true
    }
  }

  /** The refusal of a request whose bucket, of the client address or of the account there, is known to be full. */
  async function refusalOf(address: string, account: string): Promise<Refusal | undefined> {
    for (const [kind, of] of [['recoveryRequests'], ['accountRecoveryRequests', account]] as const) {
      const wait = await rateLimits.blockedFor(address, kind, of)
      if (wait !== undefined) return tooManyAttempts(wait, kind)
    }
    return undefined
  }

  /** Queues an exempt request. The statements are the same whether or not it has the registered address. */
  async function addExempt(request: RecoveryRequest, locale: string): Promise<void> {
    const account = await users.byUsername(request.usernameKey)
    const registered = emailKey(account?.email ?? '') === emailKey(request.email)
    await emails.replaceRequest({ ...request, network: network(request.address), registered }, locale)
  }

  return {
    /**
     * Queues a request for a recovery key, which is mailed if the address is the one registered for the user. Refuses with
     * TOO_MANY_ATTEMPTS when the bucket of the client address, or of the account there, is full. An active account that knows
     * the network is exempt: its quota of e-mails applies.
     */
    async sendKeyByEmail(request, { call }) {
      const { email: given = '' } = request
      const email = tooLong(given, 'email') ? '' : given.trim()
      if (!isEmailAddress(email)) refuse(Reason.INVALID_EMAIL)
      const { address, requestId } = call
      const key = usernameKey(request.username ?? '')
      const known = await knownAccounts.knows(address, key)
      // Without a username, an e-mail address stands for the account.
      const account = key || emailKey(email)
      const refusal = await refusalOf(address, account)
      if (refusal && !known) throw refusal
      let exempt = refusal !== undefined
      using _turn = await emailRequests.begin(call, known)
      exempt ||= await isExempt(known, address, account)
      // The outbox decides whether an e-mail goes out, so that response times don't show which users exist.
      const actor = call.service && auditContext(call).actor
      const parameters = { usernameKey: key, email, address, requestId, actor }
      const locale = chooseLocale(call.acceptLanguage)
      if (exempt) await addExempt(parameters, locale)
      else await emails.add({ kind: 'recovery-key', stage: 'requested', parameters }, locale)
      return {}
    },

    /**
     * Signs in with a mailed or an issued key, which becomes invalid; returns a token of a session of `otp`. The first mailed key
     * that comes back from the address ends whatever was set before: until this session sets one, the user has no password. An
     * issued key proves no address.
     */
    async loginByUsernameAndKey(request, { call }) {
      const { username = '', key = '' } = request
      if (tooLong(username, 'text') || tooLong(key, 'key')) refuse(Reason.INVALID_KEY)
      const normalized = typedKey(key)
      if (username.trim() === '' || normalized === '') refuse(Reason.INVALID_KEY)

      await using attempt = await signIns.begin('session.login-by-key', usernameKey(username), call)
      // No user has the id 0: the steps for an unknown user are the same.
      const holder = attempt.account ?? { id: 0, tokenGeneration: 0 }
      const right = await mailedKeys.attempt(holder, ['recovery', 'issued'], normalized, call.address)
      const entered = await attempt.enter(right !== undefined, {
        async work(account, t) {
          // First the user, then its key: so does a change of the address, which ends the key.
          const user = await administeredUsers.lock(account.id, t)
          if (!user || !right || !(await mailedKeys.spend(user, right, normalized, t))) return false
          // An issued key proves no address, and with `any` the key may have gone to any.
          const proves = right === 'recovery' && settings.recoveryEmail === 'registered'
          const first = proves && user.email !== null && !user.emailProved
          await notifyOwner(first ? 'first-recovery' : 'recovery-login', user, call, t)
          if (!first) return undefined
          const revoked = { action: 'user.revoke-own-tokens', reason: 'ADDRESS_PROVED', subject_id: user.id } as const
          await audit.append({ ...auditContext(call, account), ...revoked, outcome: 'ok' }, t)
          return { tokenGeneration: await users.proveByKey(user, t) }
        },
      })
      return { token: await tokens.issue(entered, 'otp') }
    },
  } satisfies Partial<ForgotPasswordsRpcs>
}
