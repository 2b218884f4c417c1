import { timestampDate } from '@bufbuild/protobuf/wkt'
import { Administration, UserState } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { References } from '../../calls/steps.js'
import type { Limits } from '../../limits/index.js'
import type { UserFilter } from '../../models/administered-user.js'
import type { Models } from '../../models/index.js'
import type { OpenPage } from '../../requests/paging.js'
import { checkRole, checkText } from '../../requests/texts.js'
import { toAdministeredUser } from './record.js'

const states: Record<UserState, UserFilter['state']> = {
  [UserState.UNSPECIFIED]: undefined,
  [UserState.ACTIVE]: 'active',
  [UserState.INACTIVE]: 'inactive',
  [UserState.SUSPENDED]: 'suspended',
  [UserState.DELETED]: 'deleted',
}

/** The RPCs that read users. */
export function userReadRpcs(
  { administeredUsers, dataKeys }: Models,
  { rateLimits }: Limits,
  references: References,
  openPage: OpenPage,
) {
  return {
    /** Lists users by id. Those that a service gets count as read. */
    async listUsers(request, { administrator: { service } }) {
      const page = openPage<number>(Administration.method.listUsers, request)
      const { organization, createTimeFrom, createTimeTo } = request
      const role = request.role ? checkRole('role', request.role) : undefined

      const text = checkText('text', request.text)
      const organizationId = organization ? (await references.organization.find(organization)).id : undefined
      const counted = service ? rateLimits.takeServiceReads(service.name, page.size) : 0
      const rows = await administeredUsers.list({
        limit: page.limit,
        afterId: page.after,
        role,
        state: states[request.state],
        organizationId,
        createdFrom: createTimeFrom && timestampDate(createTimeFrom),
        createdTo: createTimeTo && timestampDate(createTimeTo),
        text,
      })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      if (service) rateLimits.refundServiceReads(service.name, Math.max(0, counted - shown.length))
      return { users: shown.map(row => toAdministeredUser(row, dataKeys)), ...next }
    },

    /** Returns a user as administrators see it. */
    async getUser({ omitKeys }, { administrator, transact, target }) {
      const shown = toAdministeredUser(target, dataKeys, { keys: !omitKeys && administrator.seesKeys })
      const { partnerOrganization, providerActivationKey } = shown.record!
      // Recorded, because others can activate users with a key.
      if (partnerOrganization?.activationkey || providerActivationKey)
        await transact(({ record }) => record({ action: 'user.show-key', subject_id: target.id }))
      return { user: shown }
    },
  } satisfies Partial<AdministrationRpcs>
}
