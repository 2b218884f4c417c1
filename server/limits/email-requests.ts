// Limits requests for e-mails to the rate at which e-mails are sent, so that an accepted e-mail leaves soon.
import type { Call } from '../requests/call.js'
import { networksOf } from '../requests/client-address.js'
import { createScheduler, noHashing, type SchedulerLimits } from './scheduler.js'

/** E-mails that a process sends: a burst, then so many per second and core. Each takes up to 10 ms of a core. */
export const emailRate = { burst: 50, perSecond: 2 }

/** One slot: requests finish faster one at a time than e-mails are sent. */
const limits: SchedulerLimits = {
  networkShares: [0, 0, 0, 0],
  peer: 0,
  burst: 0,
  overShare: 0,
  overShareBudget: emailRate.burst,
  slots: 1,
  waiting: { innermost: 256, outermost: 1_000, all: 2_000 },
}

/** Creates the schedule; `factor` multiplies the e-mails per second. */
export function createEmailRequests(factor: number) {
  // Always busy, so that the rate applies at all times; that of the main scheduler applies while all threads hash.
  const busy = { ...noHashing, isBusy: () => true }
  const scheduler = createScheduler({ ...limits, overShare: (emailRate.perSecond * factor) / 1000 }, busy)
  return {
    /**
     * Waits until the request of a call may begin; disposing of the result ends it. Networks get equal shares; the networks
     * `known` to the recipient's account together get half of the rate while they wait. Refuses with DEADLINE_EXCEEDED when
     * the deadline passes or the caller disconnects, and with OVERLOADED when too many requests wait.
     */
    async begin(call: Pick<Call, 'address' | 'deadline' | 'signal' | 'turn'>, known: boolean): Promise<Disposable> {
      const { address, deadline, turn } = call
      const networks = [...networksOf(address), known ? 'known' : 'others']
      const take = async () => scheduler.take({ networks, cost: 1, deadline }, call)
      return turn?.pause(take) ?? take()
    },
  }
}
