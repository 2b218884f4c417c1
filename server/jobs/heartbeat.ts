import type { Process, Processes } from '../models/process.js'
import type { Log } from '../observability/log.js'
import { startJob } from './job.js'

/** Milliseconds between two writes. A failed write is repeated sooner: others soon take the process for gone. */
const interval = 10_000
const afterFailure = 1_000

/** Keeps the row of a process in the table of processes up to date. Returns a function that removes the row. */
export function startHeartbeat({ processes }: { processes: Processes }, self: Process, log: Log) {
  const renew = async () => {
    await processes.renew(self)
    return interval
  }
  const message = 'this process can’t record that it runs'
  return startJob(interval, renew, { log, message, delay: afterFailure, last: () => processes.remove(self) })
}
