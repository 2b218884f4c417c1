import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { guardedUser } from '../models/user-state.js'
import type { Outbox } from '../outbox/index.js'
import { refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { advise } from '../rules/remedies.js'
import { tooLong } from '../rules/sizes.js'

/**
 * Deletes the caller as administrators delete users, if the password is right: hidden at once, erased by maintenance 30 days
 * later. An e-mail notifies the owner. Of two calls with the same token only one succeeds.
 */
export function deleteMe({ users }: Models, { signIns, now }: Access, { notifyOwner }: Outbox): UsersRpcs['deleteMe'] {
  return async (request, { call, caller: { user }, transact }) => {
    const { password } = required({ password: request.password })
    if (guardedUser.of(user)) refuse(Reason.WRONG_STATE, { text: advise('delete administrator') })
    if (tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)
    checkPasswordAge(user, now(), 'The account can be deleted')

    await using attempt = await signIns.begin('user.delete-own', user.usernameKey, call)
    // Another call has deleted it since this one identified its caller.
    if (attempt.account?.id !== user.id) refuse(Reason.INVALID_TOKEN)
    const { correct } = await attempt.comparePassword(password)
    await attempt.pass(correct)
    await transact(async ({ t, target }) => {
      // Before the deletion: it refuses for a deleted user. Its event is that of the deletion.
      await attempt.succeed(t)
      await users.delete(user.id, t)
      await notifyOwner('account-deleted', target, call, t)
    })
    return {}
  }
}
