import { knownAddressDays } from './access/lockout.js'
import type { Transaction } from './database/connection.js'
import type { Log } from './log.js'
import type { Models } from './models/definemodels.js'
import { publishLead } from './models/signingkey.js'
import { pruneFiles } from './outbox/transport.js'
import { startRounds } from './rounds.js'
import type { Settings } from './settings.js'

/** What has to be done from time to time. Every replica does it; each step is safe when several do. */
export interface Maintenance {
  /** Deletes what has lapsed, and succeeds a signing key that is of age. */
  round(): Promise<void>
  /** Begins no more rounds, and waits for the one under way. */
  stop(): Promise<void>
}

/** Milliseconds. The first round comes soon, as a process may not live for long, but not in the way of the start. */
const times = { first: 1_000, interval: 10 * 60_000 }

/** Starts the rounds. What a failed round leaves undone the next one does. */
export function startMaintenance(
  {
    database,
    administeredUsers,
    attempts,
    audit,
    buckets,
    creationRequests,
    emailQuotas,
    emails,
    erasure,
    mailedKeys,
    signingKeys,
  }: Models,
  { tokenTtl, auditRetention, dataDir }: Pick<Settings, 'tokenTtl' | 'auditRetention' | 'dataDir'>,
  log: Log,
  { first, interval } = times,
): Maintenance {
  /** Erases a user that was deleted so long ago that nobody brings it back; whether there was one. */
  async function purge(t: Transaction): Promise<boolean> {
    const id = await administeredUsers.lockForPurge(t)
    if (id === undefined) return false
    await erasure.erase(id, t)
    const event = { action: 'user.erase', outcome: 'ok', reason: 'deleted', actor: 'service' } as const
    await audit.append({ ...event, subject_id: id }, t)
    return true
  }

  async function round() {
    await attempts.prune(knownAddressDays)
    await buckets.prune()
    await mailedKeys.prune()
    await creationRequests.prune()
    await emails.prune()
    await emailQuotas.prune()
    while (await database.transact(purge, { unlimited: true }));
    await signingKeys.prune()
    await database.transact(async t => {
      const kid = await signingKeys.rotate({ force: false, lead: publishLead, tokenTtl }, t)
      if (!kid) return
      const event = { action: 'signing-key.rotate', outcome: 'ok', reason: 'age', actor: 'service' } as const
      await audit.append({ ...event, object: `signing-key:${kid}` }, t)
    })
    const broken = await audit.prune(auditRetention)
    if (broken !== undefined)
      log.error({ at: broken }, 'the audit log is broken; what is older than that is not deleted')
    // Each process has a folder of its own, and users are erased by any process, or on the database itself.
    await pruneFiles(dataDir, erasure.gone)
  }

  const stop = startRounds(first, async () => {
    await round().catch(error => log.warn({ err: error }, 'maintenance failed; the next round does its work'))
    return interval
  })
  return { round, stop }
}
