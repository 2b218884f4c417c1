import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'

/**
 * Runs `round` after `first` ms, and repeats it after the ms that each round returns. A round must not throw. Returns a
 * function that stops the loop: it aborts `signal` and waits for the round in progress.
 */
export function startLoop(first: number, round: (signal: AbortSignal) => Promise<number>): () => Promise<void> {
  const stopping = new AbortController()
  const { signal } = stopping
  async function run() {
    for (let delay = first; ; delay = await round(signal)) await sleep(delay, undefined, { signal, ref: false })
  }
  // The promise rejects only when the loop is aborted.
  const running = run().catch(() => {})
  return () => {
    stopping.abort()
    return running
  }
}

/** What a job does when a round fails: it logs the first failure of each outage, and repeats the round after some ms. */
interface OnFailure {
  readonly log: Pick<Log, 'warn'>
  readonly message: string
  readonly delay: number
}

/** As `startLoop`, for a round that may throw. */
export function startJob(
  first: number,
  round: (signal: AbortSignal) => Promise<number>,
  { log, message, delay }: OnFailure,
): () => Promise<void> {
  let failing = false
  return startLoop(first, async signal => {
    try {
      const next = await round(signal)
      failing = false
      return next
    } catch (error) {
      if (!failing) log.warn({ err: error }, message)
      failing = true
      return delay
    }
  })
}
