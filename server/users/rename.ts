// How users change their own username: with the password again.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Access } from '../access/index.js'
import { checkPasswordAge } from '../access/password-age.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Limits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { checkPassword } from '../passwords/policy.js'
import { checkForm } from '../registration/form.js'
import type { Registration } from '../registration/index.js'
import { isTaken, revealTaken } from '../registration/name-refusals.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { required } from '../requests/required-fields.js'
import { usernameKey } from '../rules/names.js'
import { tooLong } from '../rules/sizes.js'

/**
 * Maximum former usernames that are reserved for a user who changes the username again: one account can't keep any number of
 * names from others.
 */
const maxReserved = 10

/**
 * Changes the username of the caller, if the password is right. Refuses with WRONG_STATE after too many changes, and for a
 * day after a password update.
 */
export function setUsername(
  { users, formerUsernames }: Models,
  { rateLimits }: Limits,
  { signIns, now }: Access,
  { changeBy }: Outbox,
  { registrar, rules }: Registration,
): UsersRpcs['setUsername'] {
  return async (request, { call, caller: { user }, transact }) => {
    const { password } = required({ username: request.username, password: request.password })
    const { wrong, texts } = checkForm({ username: request.username! }, ['username'], rules)
    refuseUsername(wrong)
    const username = texts.username!
    if (tooLong(password, 'password')) refuse(Reason.INVALID_CREDENTIALS)
    checkPasswordAge(user, now(), 'The username can be changed')
    rateLimits.check('lookUps', call.address)

    await using attempt = await signIns.begin('user.set-own-username', user.usernameKey, call)
    const { correct } = await attempt.comparePassword(password)
    await attempt.pass(correct && attempt.account?.id === user.id)
    // Others see the username, and a password that was set under an earlier policy stays valid.
    if (
      checkPassword(password, { username }, rules.policy)?.reason !== checkPassword(password, {}, rules.policy)?.reason
    ) {
      const message = 'Choose another username: this one reveals your password.'
      refuseUsername([{ field: 'username', reason: 'REPEATS_OWN_DATA', message }])
    }
    // The attempt doesn't end with a success, which would remember the network in this transaction: a sign-in from there that
    // holds the user's row would wait for it, and the change of a unique column waits for the sign-in.
    await transact(async ({ t, record, target }) => {
      checkReserved(await formerUsernames.reserved(user.id, usernameKey(username), t))
      await registrar.change({ user: target, username }, { notice: changeBy(call) }, t)
      await record({ action: 'user.set-own-username', subject_id: user.id })
    }).catch(async error => {
      if (isTaken(error))
        refuse(Reason.INVALID_SIGN_UP, {
          fields: await revealTaken({ users, rateLimits }, call.address, { username }, user.id),
        })
      throw error
    })
    return {}
  }
}

/** Refuses with WRONG_STATE, and the time when the change is possible, while too many usernames are reserved for a user. */
function checkReserved(until: readonly Date[]): void {
  if (until.length < maxReserved) return
  const time = until[0]!.toISOString()
  refuse(Reason.WRONG_STATE, {
    text: `The username was changed ${until.length} times in 30 days. It can be changed again from ${time} on.`,
  })
}

/** Refuses with INVALID_SIGN_UP when there is something wrong with the username. */
function refuseUsername(fields: readonly FieldViolation[]): void {
  if (fields.length > 0) refuse(Reason.INVALID_SIGN_UP, { fields })
}
