// How users change their own e-mail address, which people who moved in without one need for recovery: the password once
// more, then a code that was mailed to the new address.
import { timingSafeEqual } from 'node:crypto'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import { tooManyAttempts } from '../access/admission.js'
import type { Callers } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { SignIns } from '../access/signin.js'
import type { Call, Unary } from '../call.js'
import type { Database } from '../database/connection.js'
import type { Emails } from '../models/email.js'
import { emailCode, type MailedKeys } from '../models/mailedkey.js'
import type { Users } from '../models/user.js'
import { isEmailAddress } from '../names.js'
import type { Quotas } from '../outbox/quotas.js'
import type { ChooseLocale } from '../outbox/texts.js'
import { refuse } from '../refusal.js'
import { required } from '../required.js'
import { tooLong } from '../sizes.js'

interface Deps {
  readonly database: Database
  readonly users: Users
  readonly emails: Emails
  readonly mailedKeys: MailedKeys
  readonly quotas: Quotas
  readonly callers: Callers
  readonly signIns: SignIns
  readonly chooseLocale: ChooseLocale
}

/** Asks for another e-mail address: mails a code there, if the password is right. */
export function setEmail(deps: Omit<Deps, 'mailedKeys'>): Unary<typeof UsersService.method.setEmail> {
  const { database, users, emails, quotas, callers, signIns, chooseLocale } = deps
  return async (request, call) => {
    const { user, ...caller } = await callers.identify(call)
    permit('setEmail', { user, ...caller }, user)
    checkShape(call)
    const { email, password } = required({ email: request.email, password: request.password })
    const to = tooLong(email, 'email') ? '' : email.trim()
    if (!isEmailAddress(to))
      refuse(Reason.INVALID_EMAIL, { fields: [{ field: 'email', message: 'It is no address.' }] })
    if (tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)

    await using attempt = await signIns.begin('user.ask-email', user.usernameKey, call, 1)
    const { account } = attempt
    const { correct } = await attempt.comparePassword(password)
    if (account?.id !== user.id || !correct) return attempt.fail(Reason.INVALID_CREDENTIALS)
    await database.transact(async t => {
      // Since the call began the session may have been revoked.
      if (!(await users.holdSession(user.id, user.tokenGeneration, t))) refuse(Reason.INVALID_TOKEN)
      const wait = await quotas.change(user.id, t)
      if (wait > 0) throw tooManyAttempts(wait, 'change')
      const parameters = { userId: user.id, to, generation: user.tokenGeneration }
      await emails.add({ kind: 'email-request', parameters }, chooseLocale(call.acceptLanguage), t)
      await attempt.succeed(t)
    })
    return {}
  }
}

/** Makes the new address count, with the code that was mailed there; the one before is told. */
export function confirmEmail(deps: Omit<Deps, 'quotas'>): Unary<typeof UsersService.method.confirmEmail> {
  const { database, users, emails, mailedKeys, callers, signIns, chooseLocale } = deps
  return async (request, call) => {
    const { user, ...caller } = await callers.identify(call)
    permit('confirmEmail', { user, ...caller }, user)
    checkShape(call)
    const { code } = required({ code: request.code })
    if (tooLong(code, 'key')) refuse(Reason.INVALID_KEY)
    const { id, tokenGeneration } = user
    const typed = emailCode(code.trim().toUpperCase(), tokenGeneration)

    await using attempt = await signIns.begin('user.change-email', user.usernameKey, call, 0)
    const digest = await mailedKeys.attempt(id, 'email', call.address)
    const equal = timingSafeEqual(digest ?? Buffer.alloc(32), mailedKeys.digest(id, 'email', typed))
    if (!digest || !equal) return attempt.fail(Reason.INVALID_KEY)
    const changed = await database.transact(async t => {
      // The user first, as whoever changes a password locks both in this order.
      const before = await users.lockOwn(id, tokenGeneration, t)
      if (!before) refuse(Reason.INVALID_TOKEN)
      const email = await mailedKeys.spendEmail(id, typed, t)
      if (email === undefined) return false
      await users.setEmail(id, email, t)
      if (before.email) {
        const parameters = { userId: id, at: new Date().toISOString(), address: call.address, to: before.email }
        await emails.add({ kind: 'email-changed', parameters }, chooseLocale(call.acceptLanguage), t)
      }
      await attempt.succeed(t)
      return true
    })
    // Of several at once with one code, one has spent it.
    if (!changed) return attempt.fail(Reason.INVALID_KEY)
    return {}
  }
}

/** Refuses values of another type than the field's, which a gateway left out of the request. */
function checkShape({ malformedFields: fields }: Call): void {
  if (fields.length > 0) refuse(Reason.MALFORMED_REQUEST, { fields })
}
