import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '../observability/log.js'

/** Milliseconds that the last work of a job may take. */
const lastTime = 2_000

/** How a job reports failures, and how it ends. */
interface JobOptions {
  readonly log: Pick<Log, 'warn'>
  /** For the log, at the first failure of each outage. */
  readonly message: string
  /** Milliseconds after a failed round. */
  readonly delay: number
  /** Done once the job is stopped, within two seconds. */
  readonly last?: () => Promise<unknown>
}

/**
 * Runs `round` after `first` ms, and repeats it after the ms that each round returns. Returns a function that stops the job: it
 * aborts `signal` and waits for the round in progress.
 */
export function startJob(
  first: number,
  round: (signal: AbortSignal) => Promise<number>,
  { log, message, delay: afterFailure, last }: JobOptions,
): () => Promise<void> {
  const stopping = new AbortController()
  const { signal } = stopping
  async function run() {
    let failing = false
    for (let delay = first; ; ) {
      await sleep(delay, undefined, { signal, ref: false })
      try {
        delay = await round(signal)
        failing = false
      } catch (error) {
        if (!failing) log.warn({ err: error }, message)
        failing = true
        delay = afterFailure
      }
    }
  }
  // The promise rejects only when the job is stopped.
  const running = run().catch(() => {})
  return async () => {
    stopping.abort()
    const ended = last ? running.then(last).catch(() => {}) : running
    await (last ? Promise.race([ended, sleep(lastTime, undefined, { ref: false })]) : ended)
  }
}
