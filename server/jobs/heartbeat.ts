import { performance } from 'node:perf_hooks'
import type { Models } from '../models/index.js'
import type { Process } from '../models/process.js'
import type { Log } from '../observability/log.js'
import { startJob } from './job.js'

/** Milliseconds between two writes. A failed write is repeated sooner: others soon take the process for gone. */
const interval = 10_000
const afterFailure = 1_000

/**
 * Records that a process runs, and what the clock of the database shows meanwhile. Returns a function that removes the row of the
 * process.
 */
export async function startHeartbeat(
  { processes, clock }: Pick<Models, 'processes' | 'clock'>,
  self: Process,
  log: Log,
) {
  let beatAt: number | undefined
  const beat = async () => {
    const at = performance.now()
    const { leapt, broughtBack } = await clock.beat(beatAt === undefined ? undefined : (at - beatAt) / 1000)
    beatAt = at
    if (leapt !== undefined)
      log.warn(
        { seconds: Math.round(leapt) },
        'the clock of the database leapt, or no process ran: nothing is deleted by age',
      )
    if (broughtBack > 0)
      log.warn({ rows: broughtBack }, 'times that lay ahead of the clock of the database are brought back')
  }
  await beat()
  const renew = async () => {
    await processes.renew(self)
    await beat()
    return interval
  }
  const message = 'this process can’t record that it runs'
  return startJob(interval, renew, { log, message, delay: afterFailure, last: () => processes.remove(self) })
}
