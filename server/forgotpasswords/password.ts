import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { isFreshByKey } from '../access/password-age.js'
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { Users } from '../models/user.js'
import type { NotifyOwner } from '../outbox/notice.js'
import type { Passwords } from '../passwords/hash.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import { waiterOf } from '../passwords/pool.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'

/**
 * Sets a new password and revokes all tokens of the user, so that only one of two updates with the same token succeeds. Of the
 * waiting answers of the user, those stay that the session itself saved.
 */
export function passwordUpdateByUsername(deps: {
  users: Users
  passwords: Passwords
  policy: PasswordPolicy
  notifyOwner: NotifyOwner
  now: () => number
}): ForgotPasswordsRpcs['passwordUpdateByUsername'] {
  const { users, passwords, policy, notifyOwner, now } = deps
  return {
    check(request, { target }) {
      const { newPassword } = required({ newPassword: request.newPassword })
      const problem = checkPassword(newPassword, target ?? {}, policy)
      if (!problem) return
      refuse(Reason.INVALID_PASSWORD, { text: problem, fields: [{ field: 'newPassword', message: problem }] })
    },
    async handle({ newPassword = '' }, { call, caller, target, transact }) {
      const waiter = waiterOf(call, target.usernameKey)
      const [hash] = await passwords.hash([{ context: 'password', text: newPassword }], waiter)
      await transact(async ({ t, record, target }) => {
        const by = { byToken: !isFreshByKey(caller.session, now()), session: caller.session.id }
        await users.changePassword(target.id, hash!, by, t)
        await notifyOwner('password-changed', target, call, t)
        await record({ action: 'user.change-password', subject_id: target.id })
      })
      return {}
    },
  }
}
