// Data stored about a user: export and erasure (LGPD, article 18).

import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Administration } from '../../../proto/gen/auth/v1/administration_pb.js'
import { Reason } from '../../../proto/gen/auth/v1/reason_pb.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { Models } from '../../models/index.js'
import type { EventPlace } from '../../models/user-data.js'
import { guardedUser } from '../../models/user-state.js'
import type { OpenPage } from '../../requests/paging.js'
import { refuse } from '../../requests/refusal.js'
import { requireConfirmation } from '../confirmation.js'
import type { NotifyAdministrators } from '../security-notices.js'
import { keepAnAdministrator } from './state.js'

/** The RPCs of the data stored about a user. */
export function userDataRpcs(
  { administeredUsers, userData, erasure }: Models,
  notifyAdministrators: NotifyAdministrators,
  openPage: OpenPage,
) {
  return {
    /** Returns a page of all data stored about a user, without secrets. The first page records the event. */
    async exportUser(request, { transact, target: { id } }) {
      const page = openPage<EventPlace>(Administration.method.exportUser, request)
      const isFirst = page.after === undefined
      const data = isFirst ? await userData.export(id, 'administrator') : {}
      if (!data) refuse(Reason.USER_NOT_FOUND, { text: `User #${id} no longer exists.` })
      const rows = await userData.events(id, { before: page.after, limit: page.limit })
      const { shown, ...next } = page.cut(rows, ({ place }) => place)
      if (isFirst) await transact(({ record }) => record({ action: 'user.export', subject_id: id }))
      const events = (sealed: boolean) =>
        shown.filter(({ place }) => 'id' in place === sealed).map(({ event }) => event)
      return { json: JSON.stringify({ ...data, audit_events: events(true), audit_staged: events(false) }), ...next }
    },

    /** Erases all data stored about a user. */
    async eraseUser(request, { administrator, transact, target: { username } }) {
      requireConfirmation(username, request.confirm)
      const { user, eraseTime, rows } = await transact(
        async ({ t, record, target: row }) => {
          const { id } = row
          await keepAnAdministrator(administeredUsers, row, t)
          const receipt = (await erasure.erase(id, t))!
          if (guardedUser.of(row)) await notifyAdministrators(administrator, { action: 'user.erase', subjectId: id }, t)
          await record({ action: 'user.erase', subject_id: id })
          return receipt
        },
        // An erasure reads the whole audit log.
        { unlimited: true },
      )
      return { user, eraseTime: timestampFromDate(new Date(eraseTime)), rows: { ...rows } }
    },
  } satisfies Partial<AdministrationRpcs>
}
