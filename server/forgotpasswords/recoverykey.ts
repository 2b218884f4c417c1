import { timingSafeEqual } from 'node:crypto'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Admission } from '../access/admission.js'
import { traces } from '../access/caller.js'
import type { ForgotPasswordsRpc } from '../access/context.js'
import type { SignIns } from '../access/signin.js'
import type { Tokens } from '../access/tokens.js'
import type { Database } from '../database/connection.js'
import type { EmailRequests } from '../limits/email-requests.js'
import type { Emails } from '../models/email.js'
import type { MailedKeys } from '../models/mailedkey.js'
import { isEmailAddress, usernameKey } from '../names.js'
import type { ChooseLocale } from '../outbox/texts.js'
import { refuse } from '../refusal.js'
import { tooLong } from '../sizes.js'
import type { TellOwner } from './notice.js'

/** Mails a recovery key, when the address is the one registered for the user. */
export function sendKeyByEmail(deps: {
  admission: Admission
  emailRequests: EmailRequests
  emails: Emails
  chooseLocale: ChooseLocale
}): ForgotPasswordsRpc<'sendKeyByEmail'> {
  const { admission, emailRequests, emails, chooseLocale } = deps
  return async (request, { call }) => {
    const { email: given = '' } = request
    const email = tooLong(given, 'email') ? '' : given.trim()
    if (!isEmailAddress(email)) refuse(Reason.INVALID_EMAIL)
    const { address, requestId } = call
    admission.check('recoveryRequests', address)
    const key = usernameKey(request.username ?? '')
    using _turn = await emailRequests.begin(call, await admission.knows(address, key))
    await admission.take('recoveryRequests', address)
    // The same for everybody: whether an e-mail goes out is found out later, when nobody can measure it.
    const actor = call.service && traces(call).actor
    const asked = { usernameKey: key, email, address, requestId }
    const parameters = { ...asked, ...(actor && { actor }) }
    await emails.add({ kind: 'recovery-request', parameters }, chooseLocale(call.acceptLanguage))
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
    // Nobody has the id 0: an unknown user costs the same steps.
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
