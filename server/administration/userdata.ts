// What is stored of a user: handed out, and erased (LGPD, article 18).
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Change } from '../access/context.js'
import type { Erasure } from '../models/erasure.js'
import type { UserData } from '../models/userdata.js'
import { refuse } from '../refusal.js'
import type { Handler } from './context.js'
import { keepAnAdministrator, lockUser, type UserChangeDeps } from './userchanges.js'

/** Returns all that is stored of a user, without secrets. */
export function exportUser({ userData }: { userData: UserData }): Handler<'exportUser'> {
  return async (_request, { change, target: { id } }) => {
    const data = (await userData.export(id)) ?? refuse(Reason.USER_NOT_FOUND, { text: `User #${id} is gone.` })
    await change({ validateOnly: false }, ({ record }) => record({ action: 'user.export', subject_id: id }))
    return { json: JSON.stringify(data) }
  }
}

/** Erases all that is stored of a user. */
export function eraseUser(deps: UserChangeDeps & { erasure: Erasure }): Handler<'eraseUser'> {
  const { administeredUsers, tellAdministrators, erasure } = deps
  return async (request, { administrator, change, target: { id, username } }) => {
    administrator.confirm(username, request.confirm)
    const erase = async ({ t, record }: Change) => {
      const row = await lockUser(administeredUsers, id, t)
      await keepAnAdministrator(administeredUsers, row, t)
      const receipt = (await erasure.erase(id, t))!
      if (row.role === 'ROLE_ADMIN') await tellAdministrators(administrator, { action: 'user.erase', subjectId: id }, t)
      await record({ action: 'user.erase', subject_id: id })
      return receipt
    }
    // It looks through the whole audit log.
    const { user, erasedAt, rows } = await change(request, erase, { unlimited: true })
    return { user, eraseTime: timestampFromDate(new Date(erasedAt)), rows: { ...rows } }
  }
}
