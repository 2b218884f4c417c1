// What an active ROLE_INSTITUTION sees and changes of the members of its organization.

import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Users as UsersService } from '../../proto/gen/auth/v1/users_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import type { Outbox } from '../outbox/index.js'
import type { OpenPage } from '../requests/paging.js'
import { required } from '../requests/required-fields.js'
import { checkText } from '../requests/texts.js'
import { toUserRecord } from './user-record.js'

/** Default and maximum number of members of a page. */
const sizes = { usual: 50, max: 500 }

/** The RPCs of members. */
export function memberRpcs(
  { administeredUsers, users, dataKeys }: Models,
  { notifyOwner }: Outbox,
  openPage: OpenPage,
) {
  /** Usernames by id of those users that are members of the organization. */
  async function usernames(ids: readonly (number | null)[], organizationId: number) {
    const known = await users.findMany([...new Set(ids.filter(id => id !== null))], [])
    return new Map(known.filter(user => user.organizationId === organizationId).map(user => [user.id, user.username]))
  }

  return {
    /** Lists the members of the caller's organization by id. */
    async listMembers(request, { caller }) {
      // The policy admits members of an organization only.
      const organizationId = caller.user.organizationId!
      const owner = `organization:${organizationId}`
      const page = openPage<number>(UsersService.method.listMembers, request, { sizes, owner })
      const text = checkText('text', request.text)
      const rows = await administeredUsers.list({
        limit: page.limit,
        organizationId,
        afterId: page.after,
        text,
        // The record doesn't show the e-mail address.
        byEmail: false,
      })
      const { shown, ...next } = page.cut(rows, ({ id }) => id)
      const names = await usernames(
        shown.map(({ activatedBy }) => activatedBy),
        organizationId,
      )
      return {
        members: shown.map(row => {
          const { suspended, activatedAt, activatedBy } = row
          return {
            user: toUserRecord(row, caller, dataKeys),
            suspended,
            activateTime: activatedAt ? timestampFromDate(activatedAt) : undefined,
            activatedBy: activatedBy ?? undefined,
            activatedByUsername: activatedBy === null ? undefined : names.get(activatedBy),
          }
        }),
        ...next,
      }
    },

    /** Deactivates a client of the caller's organization, who is notified by e-mail. */
    deactivateMember: {
      check({ username }) {
        required({ username })
      },
      async handle(_request, { call, transact }) {
        await transact(async ({ t, record, target }) => {
          const { id, organizationId } = target
          await users.deactivate(id, t)
          // The member can export its e-mails: they omit the client address of the institution.
          const from = { address: '', acceptLanguage: call.acceptLanguage }
          await notifyOwner('member-deactivated', target, from, t)
          await record({ action: 'user.deactivate', subject_id: id, object: `organization:${organizationId}` })
        })
        return {}
      },
    },
  } satisfies Partial<UsersRpcs>
}
