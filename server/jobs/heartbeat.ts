import { setTimeout as sleep } from 'node:timers/promises'
import type { Process, Processes } from '../models/process.js'
import type { Log } from '../observability/log.js'
import { startJob } from './intervals.js'

/** The row of this process in the table of processes. */
interface Heartbeat {
  /** Removes the row, within two seconds. */
  stop(): Promise<void>
}

/**
 * Milliseconds between two writes, and for the removal. A failed write is repeated sooner: others soon take the process for
 * gone.
 */
const times = { interval: 10_000, afterFailure: 1_000, last: 2_000 }

/** Keeps the row of a process up to date. */
export function startHeartbeat({ processes }: { processes: Processes }, self: Process, log: Log): Heartbeat {
  const renew = async () => {
    await processes.renew(self)
    return times.interval
  }
  const message = 'this process can’t record that it runs'
  const stop = startJob(times.interval, renew, { log, message, delay: times.afterFailure })
  return {
    async stop() {
      const removed = stop()
        .then(() => processes.remove(self))
        .catch(() => {})
      await Promise.race([removed, sleep(times.last, undefined, { ref: false })])
    },
  }
}
