// Changes of profiles by the users themselves, under the rules of sign-up.

import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Limits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { checkForm, nameOf } from '../registration/form.js'
import type { Registration } from '../registration/index.js'
import { isTaken, revealTaken } from '../registration/name-refusals.js'
import { profileChange } from '../registration/registrar.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { readMask } from '../requests/update-mask.js'
import { wrongField } from '../requests/wrong-fields.js'
import { type ProfileField, profileFields } from '../rules/profile.js'
import { toUserRecord } from './user-record.js'

/**
 * Changes the profile of the caller. Refuses with INVALID_ARGUMENT if no field is named, and with INVALID_SIGN_UP and all invalid
 * fields.
 */
export function updateMe(
  { users, administeredUsers, dataKeys }: Models,
  { rateLimits }: Limits,
  { changeBy }: Outbox,
  { registrar, rules }: Registration,
): UsersRpcs['updateMe'] {
  return async ({ record, updateMask }, { call, caller, transact }) => {
    const { id } = caller.user
    const isGiven = (field: ProfileField) => record?.[field] !== undefined
    const mask = updateMask?.paths.length ? readMask(updateMask, profileFields, nameOf) : profileFields.filter(isGiven)
    if (mask.length === 0)
      wrongField('record', 'MISSING', `Name one or more of ${profileFields.map(nameOf).join(', ')}.`)
    const { wrong, texts } = checkForm(record ?? {}, mask, rules)
    if (wrong.length > 0) refuseFields(wrong)

    const names = { nickname: mask.includes('nickname') ? texts.nickname : undefined }
    if (names.nickname) rateLimits.check('lookUps', call.address)
    const user = await transact(async ({ t, record: append, target: before }) => {
      const { changed, details } = profileChange(before, mask, texts)
      if (changed.length === 0) return before
      await registrar.change({ user: before, details }, { notice: changeBy(call) }, t)
      await append({ action: 'user.edit-own', subject_id: id, object: `fields:${changed.map(nameOf).join(',')}` })
      return (await administeredUsers.lock(id, t))!
    }).catch(async error => {
      if (isTaken(error)) refuseFields(await revealTaken({ users, rateLimits }, call.address, names, id))
      throw error
    })
    return { user: toUserRecord(user, { user, admin: caller.admin }, dataKeys) }
  }
}

/** Refuses with INVALID_SIGN_UP and these fields of the record. */
function refuseFields(wrong: readonly FieldViolation[]): never {
  const fields = wrong.map(each => ({ ...each, field: `record.${each.field}` }))
  refuse(Reason.INVALID_SIGN_UP, { fields })
}
