import { timingSafeEqual } from 'node:crypto'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Admission } from '../access/admission.js'
import { auditContext } from '../access/caller.js'
import type { ForgotPasswordsRpc } from '../access/context.js'
import type { SignIns } from '../access/sign-in.js'
import type { Tokens } from '../access/tokens.js'
import type { Database } from '../database/connection.js'
import type { EmailRequests } from '../limits/email-requests.js'
import type { Emails, RecoveryRequest } from '../models/email.js'
import type { MailedKeys } from '../models/mailed-key.js'
import type { Users } from '../models/user.js'
import type { ChooseLocale } from '../outbox/texts.js'
import { network } from '../requests/client-address.js'
import { Refusal, refuse } from '../requests/refusal.js'
import { emailKey, isEmailAddress, usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'
import type { TellOwner } from './notice.js'

/**
 * Mails a recovery key, when the address is the one registered for the user. Refuses with TOO_MANY_ATTEMPTS when the
 * network has used up its requests, unless the account is active and knows it: its own quota of e-mails holds there.
 */
export function sendKeyByEmail(deps: {
  admission: Admission
  emailRequests: EmailRequests
  users: Users
  emails: Emails
  chooseLocale: ChooseLocale
}): ForgotPasswordsRpc<'sendKeyByEmail'> {
  const { admission, emailRequests, users, emails, chooseLocale } = deps

  /** Whether the bucket of the network refuses a request, of an account that goes on there as it knows the network. */
  async function isExempt(known: boolean, take: () => unknown): Promise<boolean> {
    try {
      await take()
      return false
    } catch (error) {
      if (!(error instanceof Refusal) || !known) throw error
      return true
    }
  }

  /** Queues such a request: with the same statements, whether or not it names the registered address. */
  async function addExempt(request: RecoveryRequest, locale: string): Promise<void> {
    const account = await users.byUsername(request.usernameKey)
    const registered = emailKey(account?.email ?? '') === emailKey(request.email)
    await emails.replaceRequest({ ...request, network: network(request.address), registered }, locale)
  }

  return async (request, { call }) => {
    const { email: given = '' } = request
    const email = tooLong(given, 'email') ? '' : given.trim()
    if (!isEmailAddress(email)) refuse(Reason.INVALID_EMAIL)
    const { address, requestId } = call
    const key = usernameKey(request.username ?? '')
    const known = await admission.knows(address, key)
    let exempt = await isExempt(known, () => admission.check('recoveryRequests', address))
    using _turn = await emailRequests.begin(call, known)
    exempt ||= await isExempt(known, () => admission.take('recoveryRequests', address))
    // The same for all callers: whether an e-mail goes out is decided later, where none can measure it.
    const actor = call.service && auditContext(call).actor
    const parameters = { usernameKey: key, email, address, requestId, ...(actor && { actor }) }
    const locale = chooseLocale(call.acceptLanguage)
    if (exempt) await addExempt(parameters, locale)
    else await emails.add({ kind: 'recovery-request', parameters }, locale)
    return {}
  }
}

/** Signs in with a mailed key, which is spent. */
export function loginByUsernameAndKey(deps: {
  database: Database
  mailedKeys: MailedKeys
  signIns: SignIns
  tokens: Tokens
  tellOwner: TellOwner
}): ForgotPasswordsRpc<'loginByUsernameAndKey'> {
  const { database, mailedKeys, signIns, tokens, tellOwner } = deps
  return async (request, { call }) => {
    const { username = '', key = '' } = request
    if (tooLong(username, 'text') || tooLong(key, 'key')) refuse(Reason.INVALID_KEY)
    const typed = key.trim().toUpperCase()
    if (username.trim() === '' || typed === '') refuse(Reason.INVALID_KEY)

    await using attempt = await signIns.begin('session.login-by-key', usernameKey(username), call, 0)
    const { account } = attempt
    // No user has the id 0: an unknown one costs the same steps.
    const id = account?.id ?? 0
    const digest = await mailedKeys.attempt(id, 'recovery', call.address)
    const equal = timingSafeEqual(digest ?? Buffer.alloc(32), mailedKeys.digest(id, 'recovery', typed))
    if (!account || !digest || !equal || account.suspended) return attempt.fail(Reason.INVALID_KEY)
    const spent = await database.transact(async t => {
      if (!(await mailedKeys.spend(id, typed, t))) return false
      await tellOwner('recovery-login', account, call, t)
      await attempt.succeed(t)
      return true
    })
    if (!spent) return attempt.fail(Reason.INVALID_KEY)
    return { token: await tokens.issue(account, 'otp') }
  }
}
