import type { Client } from '@connectrpc/connect'
import { ChangeKind, type Changes } from '../gen/auth/v1/changes_pb.js'
import { elapsedSince, type Moment, present } from './clock.js'
import { follow, isRefused, type Page } from './feed.js'
import type { Keys } from './keys.js'
import type { Warning } from './warning.js'

/** Revocations below which they aren’t read anew. */
const minRenewal = 10_000

/** The revocations that this process knows, from the feed. */
export interface Revocations {
  /** How old they are; undefined until the first snapshot is complete. */
  state(): State | undefined
  /** Whether a token of this user with this generation is revoked. */
  isRevoked(sub: string, ver: number): boolean
  /** Resolves with the first complete snapshot; rejects if the registry refuses the key. */
  readonly ready: Promise<void>
}

/** The age of what is known. */
export interface State {
  /** Time of the registry’s database in ms since 1970, up to which every revocation is known. */
  readonly asOf: number
  /** ms since then. */
  readonly ageMs: number
}

/** Follows the revocations until the signal aborts. */
export function followRevocations(deps: {
  changes: Client<typeof Changes>
  keys: Pick<Keys, 'retire' | 'restart'>
  onWarning: (warning: Warning) => void
  signal: AbortSignal
}): Revocations {
  const { changes, keys, onWarning, signal } = deps
  /** Lowest valid generation by user. */
  let current = new Map<string, number>()
  /** A snapshot whose pages still come; until it is complete, `current` stays in force, too. */
  let snapshot: { readonly revocations: typeof current; readonly restored: boolean } | undefined
  /** Size from which the revocations are read anew, to drop those whose tokens have expired. */
  let renewal = minRenewal
  let anchor: { readonly asOf: number; readonly lag: number; readonly at: Moment } | undefined
  let settle: { resolve(): void; reject(error: Error): void }
  const ready = new Promise<void>((resolve, reject) => {
    settle = { resolve, reject }
  })
  ready.catch(() => {})

  function onPage(page: Page): string {
    if (page.snapshot) {
      snapshot = { revocations: new Map(), restored: page.snapshot === 'CURSOR_LOST' }
      if (snapshot.restored) keys.restart()
    }
    for (const { sub, minGeneration } of page.revocations) {
      for (const each of snapshot ? [current, snapshot.revocations] : [current])
        each.set(sub, Math.max(minGeneration, each.get(sub) ?? 0))
    }
    for (const kid of page.retiredKeys) keys.retire(kid)
    const { asOf, now } = page
    if (asOf === undefined || now === undefined) return page.cursor
    // Not of an earlier time: a server may be slower than another one was. But a restored database may be behind the former.
    if (!anchor || snapshot?.restored || asOf >= anchor.asOf)
      anchor = { asOf, lag: Math.max(0, now - asOf), at: present() }
    if (snapshot) {
      current = snapshot.revocations
      snapshot = undefined
      renewal = Math.max(minRenewal, 2 * current.size)
    }
    settle.resolve()
    return current.size > renewal ? '' : page.cursor
  }

  void follow({
    changes,
    kind: ChangeKind.REVOCATIONS,
    cursor: '',
    signal,
    onWarning,
    onPage,
    onFailure(error) {
      if (isRefused(error)) settle.reject(error)
    },
  })

  return {
    state: () => anchor && { asOf: anchor.asOf, ageMs: anchor.lag + elapsedSince(anchor.at) },
    isRevoked: (sub, ver) => ver < (current.get(sub) ?? 0) || ver < (snapshot?.revocations.get(sub) ?? 0),
    ready,
  }
}
