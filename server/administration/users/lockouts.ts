// Which users are locked now. A counter's name is a keyed digest, which names no user: the audit log has an event for each
// lock, and the counters then show whether it still holds.

import { Administration as AdministrationService } from '../../../proto/gen/auth/v1/administration_pb.js'
import type { Access } from '../../access/index.js'
import type { AdministrationRpcs } from '../../calls/context.js'
import type { Audit } from '../../models/audit.js'
import type { Models } from '../../models/index.js'
import { lockout } from '../../policy/limits.js'
import type { Settings } from '../../process/settings.js'
import type { OpenPage } from '../../requests/paging.js'
import { disorder, stretch } from '../audit-log.js'
import { readFailures } from './explain.js'

/** Default and maximum number of users of a page: each takes several queries. */
const sizes = { usual: 50, max: 100 }

/** Lists the users that are locked now because of failures, by id. */
export function listLockouts(
  registry: Models,
  { now }: Access,
  settings: Pick<Settings, 'limitFactor'>,
  openPage: OpenPage,
): AdministrationRpcs['listLockouts'] {
  const { administeredUsers, audit, totpSecrets } = registry
  return async request => {
    const page = openPage<number>(AdministrationService.method.listLockouts, request, { sizes })
    const { after = 0 } = page
    const since = new Date(now() - lockout.seconds * 1000)
    const refused = await refusedSince(audit, since)
    for (const id of await totpSecrets.locked()) refused.add(id)
    const ids = [...refused].filter(id => id > after).sort((a, b) => a - b)
    const locked = []
    for (const id of ids) {
      if (locked.length === page.limit) break
      const user = await administeredUsers.find({ id })
      if (!user || user.deletedAt) continue
      const counts = await readFailures(registry, settings, user, undefined)
      const failures = counts.filter(({ locked, scope }) => locked && scope !== 'account, in a day')
      if (failures.length > 0) locked.push({ user: id, username: user.username, failures })
    }
    const { shown, ...next } = page.cut(locked, ({ user }) => user)
    return { lockouts: [...shown], ...next }
  }
}

/** The ids of users who reached a limit of failures since a time. */
async function refusedSince(audit: Pick<Audit, 'list' | 'ends'>, since: Date): Promise<Set<number>> {
  const ids = new Set<number>()
  let beforeId: number | undefined
  for (;;) {
    const fromId = Math.max(0, (beforeId ?? (await audit.ends(0)).newest + 1) - stretch)
    const filter = { outcome: 'refused', since, limit: stretch }
    const events = await audit.list(filter, { fromId, beforeId })
    for (const { reason, subject_id: id } of events) if (reason === 'TOO_MANY_ATTEMPTS' && id !== null) ids.add(id)
    const { oldest, from } = await audit.ends(fromId)
    if (fromId <= oldest || (from && from.getTime() < since.getTime() - disorder)) return ids
    beforeId = fromId
  }
}
