import { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { Admission } from '../access/admission.js'
import type { UsersRpc } from '../access/context.js'
import type { AdministeredUsers } from '../models/administered-user.js'
import type { MasterKey } from '../models/master-key.js'
import type { OpenPage } from '../requests/paging.js'
import { checkRole } from '../requests/texts.js'
import { wrongFields } from '../requests/wrong-fields.js'
import { toUserRecord } from './user-record.js'

/** Default and maximum number of users of a page. */
const sizes = { usual: 500, max: 500 }

/** Lists the users of an organization, of a role, or both, by id, for services. Only the users returned count as read. */
export function listUsers({
  administeredUsers,
  admission,
  masterKey,
  openPage,
}: {
  administeredUsers: Pick<AdministeredUsers, 'list'>
  admission: Pick<Admission, 'takeServiceReads' | 'refundServiceReads'>
  masterKey: MasterKey
  openPage: OpenPage
}): UsersRpc<'listUsers'> {
  return async (request, { service: { name } }) => {
    const { organizationId } = request
    if (organizationId === undefined && !request.role)
      wrongFields([{ field: 'organization_id', message: 'Give an organization, a role or both.' }])
    const role = request.role ? checkRole('role', request.role) : undefined
    const page = openPage<number>(UsersService.method.listUsers, request, { sizes, owner: `service:${name}` })
    const counted = admission.takeServiceReads(name, page.size)
    const rows = await administeredUsers.list({
      limit: page.limit,
      ...(page.after !== undefined && { afterId: page.after }),
      ...(organizationId !== undefined && { organizationId }),
      ...(role && { role }),
    })
    const { shown, ...next } = page.cut(rows, ({ id }) => id)
    admission.refundServiceReads(name, Math.max(0, counted - shown.length))
    return { users: shown.map(user => toUserRecord(user, undefined, masterKey)), ...next }
  }
}
