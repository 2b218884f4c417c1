import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { required } from '../requests/required-fields.js'

/**
 * Deletes all answers of the caller, if the password is right: those to questions, waiting ones included, and the text of its
 * sign-up. An e-mail notifies the owner, unless there were none. Refuses with WRONG_STATE for a day after a password update.
 */
export function deleteMyAnswers(
  { answers }: Models,
  { signIns, now }: Access,
  { notifyOwner }: Outbox,
): UsersRpcs['deleteMyAnswers'] {
  return async (request, { call, caller: { user }, transact }) => {
    const { password } = required({ password: request.password })
    checkPasswordAge(user, now(), 'The answers can be deleted')
    await signIns.prove('user.delete-own-answers', password, user, call)
    await transact(async ({ t, record, target }) => {
      if ((await answers.clear(user.id, t)) === 0) return
      await notifyOwner('answers-deleted', target, call, t)
      await record({ action: 'user.delete-own-answers', subject_id: user.id })
    })
    return {}
  }
}
