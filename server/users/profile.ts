// Changes of profiles under the rules of sign-up: by the users themselves (UpdateMe), and by administrators.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Admission } from '../access/admission.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Transaction } from '../database/connection.js'
import type { AdministeredUsers } from '../models/administered-user.js'
import type { MasterKey } from '../models/master-key.js'
import type { User, Users } from '../models/user.js'
import type { PasswordPolicy } from '../passwords/policy.js'
import { type FieldViolation, refuse } from '../requests/refusal.js'
import { readMask } from '../requests/update-mask.js'
import { formatDateOfBirth } from '../rules/dates.js'
import { attributesOf, type ProfileField, profile, profileFields } from '../rules/profile.js'
import { checkFields, type SignUpTexts } from './sign-up-form.js'
import { checkFree, isTaken, revealTaken } from './taken-names.js'
import { toUserRecord } from './user-record.js'

/** Returns those of the fields whose values differ from the user's. */
export function changedFields(user: User, fields: readonly ProfileField[], texts: SignUpTexts): ProfileField[] {
  const shown = { ...texts, dateofborn: texts.dateofborn && formatDateOfBirth(texts.dateofborn) }
  return fields.filter(field => (shown[field] ?? null) !== user[profile[field].attribute])
}

/**
 * Changes those of the fields whose values differ from the user's, and returns them. The user's row is locked, and the texts
 * are valid. Throws `Taken` for a taken nickname.
 */
export async function editProfile(
  users: Pick<Users, 'lookalikes' | 'edit'>,
  user: User,
  fields: readonly ProfileField[],
  texts: SignUpTexts,
  t: Transaction,
): Promise<ProfileField[]> {
  const changed = changedFields(user, fields, texts)
  if (changed.length === 0) return changed
  const nickname = changed.includes('nickname') ? texts.nickname : undefined
  if (nickname) await checkFree(users, { nickname }, t, user.id)
  await users.edit(user.id, attributesOf(changed, texts), t)
  return changed
}

/** Changes the profile of the caller. Refuses with INVALID_SIGN_UP and all invalid fields. */
export function updateMe(deps: {
  readonly users: Users
  readonly administeredUsers: Pick<AdministeredUsers, 'lock'>
  readonly admission: Pick<Admission, 'check' | 'takeLookUp'>
  readonly policy: PasswordPolicy
  readonly timeZone: string
  readonly masterKey: MasterKey
  readonly now: () => number
}): UsersRpcs['updateMe'] {
  const { users, administeredUsers, admission, policy, timeZone, masterKey, now } = deps
  return async ({ record, updateMask }, { call, caller, transact }) => {
    const { id } = caller.user
    const isGiven = (field: ProfileField) => record?.[field] !== undefined
    const mask = updateMask?.paths.length ? readMask(updateMask, profileFields) : profileFields.filter(isGiven)
    const given = Object.fromEntries(mask.map(field => [field, record?.[field]]))
    const { fields, texts } = checkFields(given, policy, { now: new Date(now()), timeZone })
    const wrong = fields.filter(({ field }) => (mask as string[]).includes(field))
    if (wrong.length > 0) refuseFields(wrong)

    const names = { nickname: mask.includes('nickname') ? texts.nickname : undefined }
    if (names.nickname) admission.check('lookUps', call.address)
    const user = await transact(async ({ t, record: append, target: before }) => {
      const changed = await editProfile(users, before, mask, texts, t)
      if (changed.length === 0) return before
      await append({ action: 'user.edit-own', subject_id: id, object: `fields:${changed.join(',')}` })
      return (await administeredUsers.lock(id, t))!
    }).catch(async error => {
      if (isTaken(error)) refuseFields(await revealTaken(deps, call.address, names, id))
      throw error
    })
    return { user: toUserRecord(user, { user, admin: caller.admin }, masterKey) }
  }
}

/** Refuses with INVALID_SIGN_UP and these fields of the record. */
function refuseFields(wrong: readonly FieldViolation[]): never {
  const fields = wrong.map(({ field, message }) => ({ field: `record.${field}`, message }))
  refuse(Reason.INVALID_SIGN_UP, { fields })
}
