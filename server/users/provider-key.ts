import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import { refuse } from '../requests/refusal.js'
import { toUserRecord } from './user-record.js'

/** Replaces the provider key of the caller, who is notified by e-mail, and returns the record with the new key. */
export function rotateProviderKey(
  { users, administeredUsers, dataKeys }: Models,
  { changeBy }: Outbox,
): UsersRpcs['rotateProviderKey'] {
  return async (_request, { call, transact }) =>
    transact(async ({ t, record, target }) => {
      const { id } = target
      const rotated = await users.rotateProviderKey(target, changeBy(call), t)
      if (!rotated) refuse(Reason.WRONG_STATE, { text: 'There is no provider key. An activation brings one.' })
      await record({ action: 'user.rotate-provider-key', subject_id: id })
      const user = (await administeredUsers.lock(id, t))!
      return { user: toUserRecord(user, { user, admin: false }, dataKeys) }
    })
}
