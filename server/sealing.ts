import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from './log.js'
import type { Models } from './models/definemodels.js'

/** What seals staged events into the audit log's chain. Every replica does it; at one time one is at it. */
export interface Sealing {
  /** Begins no more rounds; within two seconds, seals what is left. */
  stop(): Promise<void>
}

/** Milliseconds between two rounds, until the next one when a round failed, and for the last one. */
const times = { interval: 100, afterFault: 1000, last: 2000 }

/** Starts the rounds: whoever staged an event, any process that lives seals it a tenth of a second later. */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log): Sealing {
  const stopping = new AbortController()
  async function run() {
    for (let delay = times.interval; ; ) {
      await sleep(delay, undefined, { signal: stopping.signal, ref: false })
      const wasFaulty = delay === times.afterFault
      try {
        while ((await audit.seal()) && !stopping.signal.aborted);
        delay = times.interval
      } catch (error) {
        // Once for each outage.
        if (!wasFaulty) log.warn({ err: error }, 'events of the audit log can’t be sealed; they wait')
        delay = times.afterFault
      }
    }
  }
  // Ends by being aborted, and in no other way.
  const running = run().catch(() => {})
  return {
    async stop() {
      stopping.abort()
      const rest = running.then(() => audit.seal()).catch(() => {})
      await Promise.race([rest, sleep(times.last, undefined, { ref: false })])
    },
  }
}
