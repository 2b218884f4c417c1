import type { Models } from '../models/index.js'
import type { Log } from '../observability/log.js'
import { startJob } from './job.js'

/** Milliseconds between two rounds, and after a failed one. */
const interval = 100
const afterFailure = 1_000

/**
 * Seals staged events into the chain of the audit log. Every replica runs it; one replica seals at a time, an event within about
 * 100 ms. Returns a function that stops, and seals the remaining events.
 */
export function startSealing({ audit }: Pick<Models, 'audit'>, log: Log) {
  const seal = async (signal: AbortSignal) => {
    while ((await audit.seal()) && !signal.aborted);
    return interval
  }
  const message = 'events of the audit log can’t be sealed; they stay staged'
  return startJob(interval, seal, { log, message, delay: afterFailure, last: audit.seal })
}
