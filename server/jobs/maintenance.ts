/**
 * This folder owns the periodic jobs of every replica (job.ts): maintenance of the registry (here) and sealing of the
 * audit log (sealing.ts). Several replicas can run a step concurrently. Models own the statements of the steps.
 */
import type { Transaction } from '../database/database.js'
import { registryTag } from '../models/data-key.js'
import type { Models } from '../models/index.js'
import { publishLead } from '../models/signing-key.js'
import type { Log } from '../observability/log.js'
import { pruneFiles } from '../outbox/transport.js'
import type { Settings } from '../process/settings.js'
import { startJob } from './job.js'

const rounds = {
  /** Delays in ms. The first round runs soon, because a process may not run for long, but doesn't slow startup. */
  first: 1_000,
  interval: 10 * 60_000,
  /** Maximum never-activated accounts that a round erases, which takes some seconds. */
  maxErasures: 1_000,
}

/**
 * Starts rounds, which delete expired data, and rotate the signing key if it is due. Replicas can run them concurrently; a round
 * completes the work of a failed previous one. While the clock of the database is in doubt (models/clock.ts), a round does nothing.
 */
export function startMaintenance(
  models: Models,
  settings: Pick<Settings, 'tokenTtl' | 'auditRetention' | 'unactivatedRetention' | 'dataDir'>,
  log: Log,
  limits: Partial<typeof rounds> = {},
) {
  const { database, administeredUsers, audit, erasure, signingKeys } = models
  const { tokenTtl, auditRetention, unactivatedRetention, dataDir } = settings
  const { first, interval, maxErasures } = { ...rounds, ...limits }

  /** Erases the user that `lock` finds, and records the erasure. Returns false when there is none. */
  function eraseOne(reason: string, lock: (t: Transaction) => Promise<number | undefined>): Promise<boolean> {
    const work = async (t: Transaction) => {
      const id = await lock(t)
      // The clock may have leapt since the round began, and the age be none.
      if (id === undefined || (await models.clock.doubt()) > 0) return false
      await erasure.erase(id, t)
      await audit.append({ action: 'user.erase', outcome: 'ok', reason, actor: 'service', subject_id: id }, t)
      return true
    }
    return database.transact(work, { unlimited: true })
  }

  /** Erases accounts that were never activated. After a flood of sign-ups, this takes several rounds. */
  async function eraseUnactivated(retention: number, signal?: AbortSignal): Promise<void> {
    const lock = (t: Transaction) => administeredUsers.lockLapsed(retention, t)
    let erased = 0
    while (erased < maxErasures && !signal?.aborted && (await eraseOne('unactivated', lock))) erased++
    if (erased > 0) log.info({ erased }, 'erased accounts that were never activated')
  }

  async function round(signal?: AbortSignal) {
    // Age alone decides on all that follows.
    if ((await models.clock.doubt()) > 0) return
    for (const model of Object.values(models)) if ('prune' in model) await model.prune()
    while (await eraseOne('deleted', administeredUsers.lockForPurge));
    await database.transact(async t => {
      const kid = await signingKeys.rotate({ force: false, lead: publishLead, tokenTtl }, t)
      if (!kid) return
      const event = { action: 'signing-key.rotate', outcome: 'ok', reason: 'age', actor: 'service' } as const
      await audit.append({ ...event, object: `signing-key:${kid}` }, t)
    })
    const broken = await audit.pruneOlder(auditRetention)
    if (broken !== undefined)
      log.error({ at: broken }, 'the audit log is broken; what is older than that is not deleted')
    if (unactivatedRetention !== undefined) await eraseUnactivated(unactivatedRetention, signal)
    // Processes can have folders of their own, but another process, or a command on the database itself, can erase a user.
    await pruneFiles({ dataDir, registry: registryTag(models.dataKeys) }, erasure.erased)
  }

  const next = async (signal: AbortSignal) => {
    await round(signal)
    return interval
  }
  const message = 'maintenance failed; the next round repeats it'
  return {
    /** Runs a round now. */
    round,
    /** Starts no more rounds, and waits for the round in progress. */
    stop: startJob(first, next, { log, message, delay: interval }),
  }
}
