import type { SessionCode } from './errors.js'
import type { User } from './tokens.js'

/** Where a session is kept: `localStorage`, `sessionStorage`, AsyncStorage, or an object like them. */
export interface Store {
  getItem(key: string): string | null | undefined | Promise<string | null | undefined>
  setItem(key: string, text: string): unknown
  removeItem(key: string): unknown
}

/** The user, with a refresh token, or an access token if the registry gives none; or why the session ended, for other tabs. */
export interface Kept {
  readonly user?: User
  readonly refresh?: string
  readonly access?: string
  readonly ended?: SessionCode
}

/** A store that forgets when the page is closed. */
export const memoryStore = (items = new Map<string, string>()): Store => ({
  getItem: key => items.get(key),
  setItem: (key, text) => items.set(key, text),
  removeItem: key => items.delete(key),
})

/** ms to wait for another tab: one that sleeps may have the lock. Without it two tabs may refresh at once, which the registry takes. */
const patience = 60_000

/** Returns a function that does one work after the other: of all tabs and workers where there are Web Locks, else of this one. */
export function createQueue(name: string): <T>(work: () => Promise<T>) => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  return work => {
    let begun = false
    const begin = () => {
      begun = true
      return work()
    }
    const locked = () => {
      // Browsers have none for a page that came without TLS.
      const locks = globalThis.navigator?.locks
      const request = locks?.request(name, { signal: AbortSignal.timeout(patience) }, begin)
      return request?.catch(error => (begun ? Promise.reject(error) : begin())) ?? begin()
    }
    const done = last.then(locked)
    last = done.catch(() => undefined)
    return done
  }
}

/** Creates the place of one session in a store. `onRead` is called with what is new in it, from this tab or another. */
export function createKeeper(store: Store, name: string, onRead: (kept: Kept | undefined) => void) {
  let text: string | null | undefined
  let kept: Kept | undefined
  let changes = 0
  const channel = globalThis.BroadcastChannel && new BroadcastChannel(name)

  function take(next: string | null): void {
    changes++
    text = next
    try {
      kept = next === null ? undefined : JSON.parse(next)
    } catch {
      kept = undefined
    }
    onRead(kept)
  }

  /** Reads the store: another tab may have signed in or out, or refreshed. */
  async function look(): Promise<Kept | undefined> {
    const before = changes
    const found = (await store.getItem(name)) ?? null
    // What was written meanwhile is newer.
    if (before === changes && found !== text) take(found)
    return kept
  }

  /** Writes, and returns what was there. */
  async function put(next: Kept | undefined): Promise<Kept | undefined> {
    const former = await look()
    const written = next ? JSON.stringify(next) : null
    await (written === null ? store.removeItem(name) : store.setItem(name, written))
    take(written)
    channel?.postMessage(null)
    return former
  }

  channel?.addEventListener('message', () => look().catch(() => undefined))
  // Node.js would go on for its sake.
  ;(channel as { unref?(): void } | undefined)?.unref?.()
  return { look, put }
}
