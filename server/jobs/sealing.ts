import { setTimeout as sleep } from 'node:timers/promises'
import type { Models } from '../models/define-models.js'
import type { Log } from '../observability/log.js'
import { startRounds } from './intervals.js'

/** What seals staged events into the audit log's chain. Every replica does it; at one time one is at it. */
interface Sealing {
  /** Begins no more rounds; within two seconds, seals what is left. */
  stop(): Promise<void>
}

/** Milliseconds between two rounds, until the next one when a round failed, and for the last one. */
const times = { interval: 100, afterFault: 1000, last: 2000 }

/** Starts the rounds: whoever staged an event, any process that lives seals it a tenth of a second later. */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log): Sealing {
  let faulty = false
  const stop = startRounds(times.interval, async signal => {
    try {
      while ((await audit.seal()) && !signal.aborted);
      faulty = false
    } catch (error) {
      // Once for each outage.
      if (!faulty) log.warn({ err: error }, 'events of the audit log can’t be sealed; they wait')
      faulty = true
    }
    return faulty ? times.afterFault : times.interval
  })
  return {
    async stop() {
      const rest = stop()
        .then(() => audit.seal())
        .catch(() => {})
      await Promise.race([rest, sleep(times.last, undefined, { ref: false })])
    },
  }
}
