import { setTimeout as sleep } from 'node:timers/promises'
import type { Models } from '../models/define-models.js'
import type { Log } from '../observability/log.js'
import { startJob } from './intervals.js'

/** Seals staged events into the chain of the audit log. Every replica runs it; one replica seals at a time. */
interface Sealing {
  /** Starts no more rounds, and seals the remaining events within two seconds. */
  stop(): Promise<void>
}

/** Milliseconds between two rounds, after a failed round, and for the last round. */
const times = { interval: 100, afterFailure: 1000, last: 2000 }

/** Starts the rounds. Any running replica seals a staged event within about 100 ms. */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log): Sealing {
  const seal = async (signal: AbortSignal) => {
    while ((await audit.seal()) && !signal.aborted);
    return times.interval
  }
  const message = 'events of the audit log can’t be sealed; they stay staged'
  const stop = startJob(times.interval, seal, { log, message, delay: times.afterFailure })
  return {
    async stop() {
      const last = stop()
        .then(() => audit.seal())
        .catch(() => {})
      await Promise.race([last, sleep(times.last, undefined, { ref: false })])
    },
  }
}
