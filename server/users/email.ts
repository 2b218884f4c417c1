// How users change their own e-mail address, in two steps: the password again, then a code mailed to the new address.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { UsersRpcs } from '../calls/context.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { isNewAddress, typedKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/** The RPCs that change the e-mail address of the caller. */
export function emailRpcs(
  { users, emails, mailedKeys }: Models,
  { signIns, now }: Access,
  { quotas, chooseLocale, changeBy }: Outbox,
) {
  return {
    /**
     * Queues an e-mail with a code to a new e-mail address, if the password is right. Refuses with WRONG_STATE for a day
     * after a password update.
     */
    async setEmail(request, { call, caller: { user }, transact }) {
      const { email, password } = required({ email: request.email, password: request.password })
      const to = tooLong(email, 'email') ? '' : email.trim()
      if (!isNewAddress(to))
        refuse(Reason.INVALID_EMAIL, {
          fields: [{ field: 'email', reason: 'MALFORMED', message: 'Not a valid e-mail address.' }],
        })
      if (tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)
      checkPasswordAge(user, now(), 'The e-mail address can be changed')

      await using attempt = await signIns.begin('user.ask-email', user.usernameKey, call)
      const { correct } = await attempt.comparePassword(password)
      await attempt.pass(correct && attempt.account?.id === user.id)
      await transact(async ({ t }) => {
        const wait = await quotas.change(user.id, t)
        if (wait > 0) throw tooManyAttempts(wait, 'change')
        const parameters = { userId: user.id, to, generation: user.tokenGeneration }
        await emails.add({ kind: 'email-code', stage: 'requested', parameters }, chooseLocale(call.acceptLanguage), t)
        await attempt.succeed(t)
      })
      return {}
    },

    /** Sets the new e-mail address, with the code that was mailed there. An e-mail notifies the former address. */
    async confirmEmail(request, { call, caller: { user, session }, transact }) {
      const { code } = required({ code: request.code })
      if (tooLong(code, 'key')) refuse(Reason.INVALID_KEY)
      const normalized = typedKey(code)

      await using attempt = await signIns.begin('user.change-email', user.usernameKey, call)
      const right = await mailedKeys.attempt(user, ['email'], normalized, call.address)
      await attempt.pass(right !== undefined)
      const changed = await transact(async ({ t, target }) => {
        const { email } = (await mailedKeys.spend(user, 'email', normalized, t)) ?? {}
        if (!email) return false
        await users.setEmail(target, email, { ...changeBy(call), session: session.id }, t)
        await users.proveEmail(user.id, t)
        await attempt.succeed(t)
        return true
      })
      // A parallel request spent the code.
      if (!changed) return attempt.fail(Reason.INVALID_KEY)
      return {}
    },
  } satisfies Partial<UsersRpcs>
}
