import type { ForgotPasswords } from '../../proto/gen/auth/v1/forgotpasswords_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { type Callers, traces } from '../access/caller.js'
import { permit } from '../access/permissions.js'
import type { Unary } from '../call.js'
import type { Database } from '../database/connection.js'
import type { Audit } from '../models/audit.js'
import type { Questions } from '../models/question.js'
import type { Users } from '../models/user.js'
import { usernameKey } from '../names.js'
import type { Passwords } from '../passwords/hash.js'
import { checkPassword, type PasswordPolicy } from '../passwords/policy.js'
import { waiterOf } from '../passwords/pool.js'
import { refuse } from '../refusal.js'
import { isBlank, required } from '../required.js'
import type { TellOwner } from './notice.js'

/** Sets a new password and revokes every earlier token of the user. */
export function passwordUpdateByUsername(deps: {
  database: Database
  users: Users
  questions: Questions
  audit: Audit
  callers: Callers
  passwords: Passwords
  policy: PasswordPolicy
  tellOwner: TellOwner
}): Unary<typeof ForgotPasswords.method.passwordUpdateByUsername> {
  const { database, users, questions, audit, callers, passwords, policy, tellOwner } = deps
  return async (request, call) => {
    const { username } = request
    const key = isBlank(username) ? undefined : usernameKey(username!)
    const { caller, target: named } = await callers.identifyWith(call, key ?? '')
    const target = key === undefined ? caller.user : named
    permit('passwordUpdateByUsername', caller, target)
    const { newPassword } = required({ newPassword: request.newPassword })
    const problem = checkPassword(newPassword, target ?? {}, policy)
    if (problem) {
      refuse(Reason.INVALID_PASSWORD, { text: problem, fields: [{ field: 'newPassword', message: problem }] })
    }
    if (!target) refuse(Reason.USER_NOT_FOUND)

    const [hash] = await passwords.hash(
      [{ context: 'password', text: newPassword }],
      waiterOf(call, target.usernameKey),
    )
    await database.transact(async t => {
      // Of two updates with one token, the first revokes it.
      const generation = target.id === caller.user.id ? caller.user.tokenGeneration : null
      const changed = await users.changePassword(target.id, hash!, generation, t)
      if (!changed) refuse(Reason.INVALID_TOKEN)
      await questions.discardNext(target.id, t)
      await tellOwner('password-changed', changed, call, t)
      const event = { action: 'user.change-password', outcome: 'ok', subject_id: target.id } as const
      await audit.append({ ...traces(call, caller.user), ...event }, t)
    })
    return {}
  }
}
