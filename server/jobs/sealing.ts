import { setTimeout as sleep } from 'node:timers/promises'
import type { Models } from '../models/define-models.js'
import type { Log } from '../observability/log.js'
import { startLoop } from './intervals.js'

/** Seals staged events into the chain of the audit log. Every replica runs it; one replica seals at a time. */
interface Sealing {
  /** Starts no more rounds, and seals the remaining events within two seconds. */
  stop(): Promise<void>
}

/** Milliseconds between two rounds, after a failed round, and for the last round. */
const times = { interval: 100, afterFailure: 1000, last: 2000 }

/** Starts the rounds. Any running replica seals a staged event within about 100 ms. */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log): Sealing {
  let failing = false
  const stop = startLoop(times.interval, async signal => {
    try {
      while ((await audit.seal()) && !signal.aborted);
      failing = false
    } catch (error) {
      // Logs once for each outage.
      if (!failing) log.warn({ err: error }, 'events of the audit log can’t be sealed; they stay staged')
      failing = true
    }
    return failing ? times.afterFailure : times.interval
  })
  return {
    async stop() {
      const last = stop()
        .then(() => audit.seal())
        .catch(() => {})
      await Promise.race([last, sleep(times.last, undefined, { ref: false })])
    },
  }
}
