// The turns of requests for e-mails: they are taken no faster than e-mails can leave, so that what was accepted goes out soon.
import type { Call } from '../requests/call.js'
import { networksOf } from '../requests/client-address.js'
import { createScheduler, type SchedulerLimits } from './scheduler.js'
import { Turn } from './turn.js'

/** E-mails that a process sends: so many at once, then so many a second for each core. Each takes up to 10 ms of processors. */
export const emailRate = { atOnce: 50, perSecond: 2 }

/** Lets requests for e-mails begin. */
export interface EmailRequests {
  /**
   * Waits for the turn of a call, which ends when what it returns is disposed of. Networks take turns; those `known` to the
   * account that is to get the e-mail have half of them, however many others wait. Refuses with DEADLINE_EXCEEDED when the
   * deadline passes or the caller leaves, and with OVERLOADED when too many wait.
   */
  begin(call: Pick<Call, 'address' | 'deadline' | 'signal' | 'work'>, known: boolean): Promise<Disposable>
}

/** One at a time: e-mails leave more slowly than even one after the other is done. */
const limits: SchedulerLimits = {
  light: [0, 0, 0, 0],
  peer: 0,
  burst: 0,
  heavy: 0,
  turn: emailRate.atOnce,
  places: 1,
  waiting: { innermost: 256, outermost: 1_000, all: 2_000 },
}

/** Starts the turns; `factor` multiplies how many e-mails leave a second. */
export function createEmailRequests(factor: number): EmailRequests {
  // It is paced all the time, as the other is while threads hash.
  const scheduler = createScheduler({ ...limits, heavy: (emailRate.perSecond * factor) / 1000 }, () => true)
  return {
    async begin(call, known) {
      const { address, deadline, work } = call
      const turn = new Turn(scheduler, [...networksOf(address), known ? 'known' : 'others'], 1, deadline)
      await (work ? work.away(async () => turn.take(call)) : turn.take(call))
      return turn
    },
  }
}
