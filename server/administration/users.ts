import { timestampDate } from '@bufbuild/protobuf/wkt'
import {
  type Administration,
  Administration as AdministrationService,
  UserState,
} from '../../proto/gen/auth/v1/administration_pb.js'
import type { Administrators } from '../access/administrator.js'
import type { Unary } from '../call.js'
import type { MasterKey } from '../masterkey.js'
import type { AdministeredUsers, UserFilter } from '../models/administereduser.js'
import { type Role, roles } from '../roles.js'
import type { OpenPage } from './paging.js'
import type { References } from './references.js'
import { checkText } from './texts.js'
import { toAdministeredUser } from './userrecord.js'
import { wrongFields } from './wrongfields.js'

type Service = typeof Administration.method

const states: Record<UserState, UserFilter['state']> = {
  [UserState.UNSPECIFIED]: undefined,
  [UserState.ACTIVE]: 'active',
  [UserState.INACTIVE]: 'inactive',
  [UserState.SUSPENDED]: 'suspended',
  [UserState.DELETED]: 'deleted',
}

/** Lists users by id. */
export function listUsers(deps: {
  administrators: Administrators
  administeredUsers: AdministeredUsers
  references: References
  masterKey: MasterKey
  openPage: OpenPage
}): Unary<Service['listUsers']> {
  const { administrators, administeredUsers, references, masterKey, openPage } = deps
  return async (request, call) => {
    await administrators.identify('listUsers', call)
    const page = openPage<number>(AdministrationService.method.listUsers, request)
    const { organization, createTimeFrom, createTimeTo } = request
    const role = request.role ? checkRole('role', request.role) : undefined
    const state = states[request.state]
    const text = checkText('text', request.text)
    const organizationId = organization ? (await references.organization(organization)).id : undefined
    const rows = await administeredUsers.list({
      limit: page.limit,
      ...(page.after !== undefined && { afterId: page.after }),
      ...(role && { role }),
      ...(state && { state }),
      ...(organizationId !== undefined && { organizationId }),
      ...(createTimeFrom && { createdFrom: timestampDate(createTimeFrom) }),
      ...(createTimeTo && { createdTo: timestampDate(createTimeTo) }),
      ...(text && { text }),
    })
    const { shown, ...next } = page.cut(rows, ({ id }) => id)
    return {
      users: shown.map(row => toAdministeredUser(row, masterKey)),
      ...next,
    }
  }
}

/** Returns a user with all that an administrator sees. */
export function getUser(deps: {
  administrators: Administrators
  references: References
  masterKey: MasterKey
}): Unary<Service['getUser']> {
  const { administrators, references, masterKey } = deps
  return async (request, call) => {
    await administrators.identify('getUser', call)
    const user = await references.user(request.user)
    return { user: toAdministeredUser(user, masterKey, { keys: true }) }
  }
}

/** A role, or a refusal that lists them. */
export function checkRole(field: string, role: string | undefined): Role {
  const known = roles.find(each => each === role)
  return known ?? wrongFields([{ field, message: `Give one of ${roles.join(', ')}.` }])
}
