/** Clients that repeat requests during a test, and record the responses. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Teardown } from './database.js'
import type { Answer } from './service.js'

/** The results of a client. */
interface Sight {
  readonly counts: Record<string, number>
  slowest: number
  /** When its first and last answers other than 200 came. */
  from?: number
  to?: number
}

/** Starts a client for each kind of request, until the test ends. `stop` ends them and returns a line for each kind. */
export function startWitness(t: Teardown, kinds: Readonly<Record<string, () => Promise<Answer>>>) {
  let over = false
  const clients = Object.entries(kinds).map(async ([kind, ask]) => {
    const sight: Sight = { counts: {}, slowest: 0 }
    while (!over) {
      const at = performance.now()
      const { status, json } = await ask()
      const now = performance.now()
      sight.slowest = Math.max(sight.slowest, now - at)
      const key = [status, json?.reason].filter(Boolean).join(' ')
      sight.counts[key] = (sight.counts[key] ?? 0) + 1
      if (status !== 200) {
        sight.from ??= at
        sight.to = now
      }
      await sleep(20)
    }
    return describe(kind, sight)
  })
  const stop = async () => {
    over = true
    return (await Promise.all(clients)).join('\n')
  }
  t.teardown(async () => void (await stop()))
  return { stop }
}

function describe(kind: string, { counts, slowest, from, to }: Sight): string {
  const seconds = (ms: number) => `${(ms / 1000).toFixed(1)} s`
  const seen = Object.entries(counts).map(([key, count]) => `${count} × ${key}`)
  const spell = from === undefined || to === undefined ? 'never refused' : `refused for ${seconds(to - from)}`
  return `${kind}: ${seen.join(', ')}; ${spell}, slowest answer ${seconds(slowest)}`
}
