import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Administration as AdministrationService, UserState } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Admission } from '../../access/admission.js'
import type { AdministeredUsers, UserFilter } from '../../models/administered-user.js'
import type { MasterKey } from '../../models/master-key.js'
import type { OpenPage } from '../../requests/paging.js'
import { checkRole, checkText } from '../../requests/texts.js'
import type { Handler } from '../context.js'
import type { References } from '../references.js'
import { toAdministeredUser } from './record.js'

const states: Record<UserState, UserFilter['state']> = {
  [UserState.UNSPECIFIED]: undefined,
  [UserState.ACTIVE]: 'active',
  [UserState.INACTIVE]: 'inactive',
  [UserState.SUSPENDED]: 'suspended',
  [UserState.DELETED]: 'deleted',
}

/** Lists users by id. Those that a service gets count as read. */
export function listUsers(deps: {
  administeredUsers: AdministeredUsers
  references: References
  masterKey: MasterKey
  openPage: OpenPage
  admission: Pick<Admission, 'takeServiceReads' | 'refundServiceReads'>
}): Handler<'listUsers'> {
  const { administeredUsers, references, masterKey, openPage, admission } = deps
  return async (request, { administrator: { service } }) => {
    const page = openPage<number>(AdministrationService.method.listUsers, request)
    const { organization, createTimeFrom, createTimeTo } = request
    const role = request.role ? checkRole('role', request.role) : undefined
    const state = states[request.state]
    const text = checkText('text', request.text)
    const organizationId = organization ? (await references.organization(organization)).id : undefined
    const counted = service ? admission.takeServiceReads(service.name, page.size) : 0
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
    if (service) admission.refundServiceReads(service.name, Math.max(0, counted - shown.length))
    return {
      users: shown.map(row => toAdministeredUser(row, masterKey)),
      ...next,
    }
  }
}

/** Returns a user as administrators see it. */
export function getUser({ masterKey }: { masterKey: MasterKey }): Handler<'getUser'> {
  return async ({ omitKeys }, { administrator, change, target }) => {
    const shown = toAdministeredUser(target, masterKey, { keys: !omitKeys && administrator.seesKeys })
    const { partnerOrganization, providerActivationKey } = shown.record!
    // Recorded, because others can activate users with a key.
    if (partnerOrganization?.activationkey || providerActivationKey)
      await change({ validateOnly: false }, ({ record }) => record({ action: 'user.show-key', subject_id: target.id }))
    return { user: shown }
  }
}
