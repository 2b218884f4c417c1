import { setTimeout as sleep } from 'node:timers/promises'

/**
 * Does a round of work in `first` ms, and the next one as many ms later as each returns; none may throw. Returns what
 * stops it: it begins no more rounds, has `signal` tell the one under way, and waits for that.
 */
export function startRounds(first: number, round: (signal: AbortSignal) => Promise<number>): () => Promise<void> {
  const stopping = new AbortController()
  const { signal } = stopping
  async function run() {
    for (let delay = first; ; delay = await round(signal)) await sleep(delay, undefined, { signal, ref: false })
  }
  // Ends by being aborted, and in no other way.
  const running = run().catch(() => {})
  return () => {
    stopping.abort()
    return running
  }
}
