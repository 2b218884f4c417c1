// What is stored of a user: handed out, and erased (LGPD, article 18).
import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import type { Administration } from '../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import type { Unary } from '../call.js'
import type { Erasure } from '../models/erasure.js'
import type { UserData } from '../models/userdata.js'
import { refuse } from '../refusal.js'
import type { Change } from './changes.js'
import { keepAnAdministrator, lockUser, type UserChangeDeps } from './userchanges.js'

type Service = typeof Administration.method

/** Returns all that is stored of a user, without secrets. */
export function exportUser(
  deps: Pick<UserChangeDeps, 'administrators' | 'changes' | 'references'> & { userData: UserData },
): Unary<Service['exportUser']> {
  const { administrators, changes, references, userData } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('exportUser', call)
    const { id } = await references.user(request.user)
    const data = (await userData.export(id)) ?? refuse(Reason.USER_NOT_FOUND, { text: `User #${id} is gone.` })
    await changes.make(administrator, { validateOnly: false }, ({ record }) =>
      record({ action: 'user.export', subject_id: id }),
    )
    return { json: JSON.stringify(data) }
  }
}

/** Erases all that is stored of a user. */
export function eraseUser(deps: UserChangeDeps & { erasure: Erasure }): Unary<Service['eraseUser']> {
  const { administrators, changes, references, administeredUsers, tellAdministrators, erasure } = deps
  return async (request, call) => {
    const administrator = await administrators.identify('eraseUser', call)
    const { id, username } = await references.user(request.user)
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
    const { user, erasedAt, rows } = await changes.make(administrator, request, erase, { unlimited: true })
    return { user, eraseTime: timestampFromDate(new Date(erasedAt)), rows: { ...rows } }
  }
}
