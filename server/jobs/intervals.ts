import { setTimeout as sleep } from 'node:timers/promises'

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
