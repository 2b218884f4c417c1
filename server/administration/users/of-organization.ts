// What is done to all members of an organization: suspension when it closes, and its end.

import type { Message } from '@bufbuild/protobuf'
import { Administration } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { AdministrationContext, AdministrationRpcs } from '../../calls/context.js'
import type { References } from '../../calls/steps.js'
import type { Models } from '../../models/index.js'
import type { OpenPage } from '../../requests/paging.js'
import { mostUsersAtOnce } from '../../rules/sizes.js'
import { refuseUnconfirmed } from '../confirmation.js'

/** The RPCs on the members of an organization. */
export function ofOrganizationRpcs({ users, administeredUsers }: Models, references: References, openPage: OpenPage) {
  /** Suspends or resumes members by id, once the number of all is confirmed. */
  const changeAll =
    (method: 'suspendUsers' | 'resumeUsers') =>
    async (
      request: Message & { organization?: string; confirm?: number; pageToken: string; validateOnly: boolean },
      { transact }: AdministrationContext<undefined>,
    ) => {
      const suspends = method === 'suspendUsers'
      const { id: organizationId } = await references.organization.find(request.organization)
      const members = administeredUsers.ofOrganization(organizationId, suspends)
      const page = openPage<number>(Administration.method[method], { ...request, pageSize: 0 })
      if (page.after === undefined) {
        const count = await members.count()
        if (request.validateOnly) return { users: count }
        if (request.confirm !== count) refuseUnconfirmed(count, `To confirm, give the number of users: ${count}`)
      }
      const ids = await transact(async ({ t, record }) => {
        const ids = await members.lock(page.after ?? 0, mostUsersAtOnce, t)
        for (const id of ids) {
          await (suspends ? users.suspend(id, t, true) : users.resume(id, t))
          const action = suspends ? 'user.suspend' : 'user.resume'
          await record({ action, subject_id: id, object: `organization:${organizationId}` })
        }
        return ids
      })
      return { users: ids.length, nextPageToken: ids.length < mostUsersAtOnce ? undefined : page.next(ids.at(-1)!) }
    }

  return {
    suspendUsers: changeAll('suspendUsers'),
    resumeUsers: changeAll('resumeUsers'),
  } satisfies Partial<AdministrationRpcs>
}
