import { setTimeout as sleep } from 'node:timers/promises'
import type { Models } from '../models/define-models.js'
import type { Log } from '../observability/log.js'
import { startLoop } from './intervals.js'

/** Seals staged events into the audit log's chain. Every replica does it, one at a time. */
interface Sealing {
  /** Starts no more rounds, and seals what is left, within two seconds. */
  stop(): Promise<void>
}

/** Milliseconds between two rounds, after a round that failed, and for the last round. */
const times = { interval: 100, afterFailure: 1000, last: 2000 }

/** Starts the rounds. An event is sealed a tenth of a second after a process staged it, by any process that runs. */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log): Sealing {
  let failing = false
  const stop = startLoop(times.interval, async signal => {
    try {
      while ((await audit.seal()) && !signal.aborted);
      failing = false
    } catch (error) {
      // Once for each outage.
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
