// What users read of the data stored about them (LGPD, article 18): an export, and their events of the audit log.

import { timestampFromDate } from '@bufbuild/protobuf/wkt'
import { Users } from '../../proto/gen/auth/v1/users_pb.js'
import type { UsersRpcs } from '../calls/context.js'
import { tooManyAttempts } from '../limits/rate-limits.js'
import type { Models } from '../models/index.js'
import type { EventPlace } from '../models/user-data.js'
import type { Outbox } from '../outbox/index.js'
import type { OpenPage } from '../requests/paging.js'

/** Default and maximum number of events of a page. */
const sizes = { usual: 50, max: 500 }

/** Maximum number of events in an export, which keep it below 1 MB. */
const maxExportedEvents = 1_000

/** The RPCs of the data stored about the caller. */
export function myDataRpcs({ userData }: Models, { quotas }: Outbox, openPage: OpenPage) {
  return {
    /** Returns the data of the caller. It is read in the transaction that counts and records the export. */
    async exportMe(_request, { caller, transact }) {
      const { id } = caller.user
      return transact(async ({ t, record }) => {
        const wait = await quotas.exports(id, t)
        if (wait > 0) throw tooManyAttempts(wait, 'exports')
        await record({ action: 'user.export-own', subject_id: id })
        const data = await userData.export(id, 'owner', t)
        const events = await userData.ownEvents(id, { before: undefined, limit: maxExportedEvents }, t)
        return { json: JSON.stringify({ ...data, audit_events: events.map(({ event }) => event) }) }
      })
    },

    /** Returns a page of the caller's events, the newest first. */
    async listMyEvents(request, { caller }) {
      const { id } = caller.user
      const page = openPage<EventPlace>(Users.method.listMyEvents, request, { sizes, owner: `user:${id}` })
      const rows = await userData.ownEvents(id, { before: page.after, limit: page.limit })
      const { shown, ...next } = page.cut(rows, ({ place }) => place)
      const events = shown.map(({ event: { time, address, ...event } }) => ({
        ...event,
        time: timestampFromDate(new Date(time)),
        address: address ?? undefined,
      }))
      return { events, ...next }
    },
  } satisfies Partial<UsersRpcs>
}
