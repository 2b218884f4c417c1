import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import { isFreshByKey, isRecent } from '../access/recent-sign-in.js'
import type { ForgotPasswordsRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import type { Hashing } from '../passwords/index.js'
import { checkPassword } from '../passwords/policy.js'
import { waiterOf } from '../passwords/pool.js'
import type { Settings } from '../process/settings.js'
import type { Registration } from '../registration/index.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'

/**
 * Sets a new password and revokes all tokens of the user, so that only one of two updates with the same token succeeds. Of the
 * waiting answers of the user, those stay that the session itself saved.
 */
export function passwordUpdateByUsername(
  { users }: Models,
  { passwords }: Hashing,
  { signIns, now }: Access,
  { notifyOwner }: Outbox,
  { rules }: Registration,
  settings: Pick<Settings, 'strict'>,
): ForgotPasswordsRpcs['passwordUpdateByUsername'] {
  return {
    check(request, { caller, target }) {
      const { newPassword } = required({ newPassword: request.newPassword })
      // A stolen token is enough to set a password elsewhere.
      if (settings.strict === 'on' && !isRecent(caller.session, now())) required({ password: request.password })
      const problem = checkPassword(newPassword, target ?? {}, rules.policy)
      if (!problem) return
      refuse(Reason.INVALID_PASSWORD, { text: problem.message, fields: [{ field: 'newPassword', ...problem }] })
    },
    async handle({ newPassword = '', password }, { call, caller, target, transact }) {
      if (password !== undefined) await signIns.prove('user.change-password', password, caller.user, call)
      const waiter = waiterOf(call, target.usernameKey)
      const [hash] = await passwords.hash([{ context: 'password', text: newPassword }], waiter)
      await transact(async ({ t, record, target }) => {
        const by = { byToken: !isFreshByKey(caller.session, caller.user, now()), session: caller.session.id }
        await users.changePassword(target, hash!, by, t)
        await notifyOwner('password-changed', target, call, t)
        await record({ action: 'user.change-password', subject_id: target.id })
      })
      return {}
    },
  }
}
