import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { isFreshByKey, isRecent } from '../access/password-age.js'
import type { SignIns } from '../access/sign-in.js'
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { Users } from '../models/user.js'
import type { NotifyOwner } from '../outbox/notice.js'
import type { Passwords } from '../passwords/hash.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import { waiterOf } from '../passwords/pool.js'
import type { Settings } from '../process/settings.js'
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
  signIns: SignIns
  notifyOwner: NotifyOwner
  settings: Pick<Settings, 'strict'>
  now: () => number
}): ForgotPasswordsRpcs['passwordUpdateByUsername'] {
  const { users, passwords, policy, signIns, notifyOwner, settings, now } = deps
  return {
    check(request, { caller, target }) {
      const { newPassword } = required({ newPassword: request.newPassword })
      // A stolen token is enough to set a password elsewhere.
      if (settings.strict === 'on' && !isRecent(caller.session, now())) required({ password: request.password })
      const problem = checkPassword(newPassword, target ?? {}, policy)
      if (!problem) return
      refuse(Reason.INVALID_PASSWORD, { text: problem, fields: [{ field: 'newPassword', message: problem }] })
    },
    async handle({ newPassword = '', password }, { call, caller, target, transact }) {
      if (password !== undefined) await signIns.prove('user.change-password', password, caller.user, call)
      const waiter = waiterOf(call, target.usernameKey)
      const [hash] = await passwords.hash([{ context: 'password', text: newPassword }], waiter)
      await transact(async ({ t, record, target }) => {
        const by = { byToken: !isFreshByKey(caller.session, now()), session: caller.session.id }
        await users.changePassword(target, hash!, by, t)
        await notifyOwner('password-changed', target, call, t)
        await record({ action: 'user.change-password', subject_id: target.id })
      })
      return {}
    },
  }
}
