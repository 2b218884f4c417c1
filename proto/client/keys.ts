import { importJWK, type JWK } from 'jose'
import { backOff, elapsedSince, type Moment, pause, present } from './clock.js'
import type { RegistryOptions } from './registry.js'

/** Minimum ms between two requests for keys because of unknown key ids, which any caller can cause. */
const minInterval = 1_000

/** ms after which a request for keys has failed. */
const timeout = 5_000

/** Seconds that keys are current if the registry doesn’t say. */
const defaultMaxAge = 300

/** ms after a key was retired at once in which the registry may not yet publish the key that replaces it. */
const settlingTime = 10_000

/** The verification keys, as this process caches them. */
export interface Keys {
  /**
   * The key with this id if it is known and not retired. Reads the keys again in the background when they are older than
   * `max-age` of the registry; they stay in use for `maxStaleMs` more while that fails.
   */
  known(kid: string): CryptoKey | undefined
  /**
   * Reads the keys once more and returns the one with this id: an unknown key may be new. Reads at most once a second, for
   * all callers together. Rejects if it can’t be determined whether there is such a key.
   */
  find(kid: string): Promise<CryptoKey | undefined>
  /** Stops using a key at once, and reads the keys again. */
  retire(kid: string): void
  /**
   * Reads the keys, at the start and after the registry was restored: what was retired since its backup is retired no more,
   * and may sign again.
   */
  restart(): void
}

/** Creates the cache of the keys, empty. */
export function createKeys(
  { url, fetch, onWarning }: Required<RegistryOptions>,
  { maxStaleMs, signal }: { maxStaleMs: number; signal: AbortSignal },
): Keys {
  let keys = new Map<string, CryptoKey>()
  const retired = new Set<string>()
  let retiredAt: Moment | undefined
  let readAt: Moment | undefined
  let maxAge = 0
  let failures = 0
  /** When the last request began, and ms from then to the next one. */
  let begun: { readonly at: Moment; readonly pauseMs: number } | undefined
  let last: Promise<void> | undefined
  let next: Promise<void> | undefined

  /** ms until the next request may begin. */
  const remaining = () => (begun ? Math.max(0, begun.pauseMs - elapsedSince(begun.at)) : 0)

  /** Reads the keys. Callers share the next request: the one in progress may have begun before a key was published. */
  function read(): Promise<void> {
    next ??= (async () => {
      await last?.catch(() => {})
      await pause(remaining(), signal)
      next = undefined
      last = request().finally(() => {
        last = undefined
      })
      await last
    })()
    return next
  }

  async function request(): Promise<void> {
    signal.throwIfAborted()
    const startedAt = present()
    begun = { at: startedAt, pauseMs: minInterval }
    try {
      const response = await fetch(`${url}/.well-known/jwks.json`, {
        headers: { accept: 'application/jwk-set+json, application/json', 'cache-control': 'no-cache' },
        signal: AbortSignal.any([signal, AbortSignal.timeout(timeout)]),
      })
      if (!response.ok) throw new Error(`status ${response.status}`)
      const { keys: published } = (await response.json()) as { keys: JWK[] }
      keys = await importAll(published)
      maxAge =
        1000 *
        Number(/(?:^|[\s,])max-age=(\d+)/.exec(response.headers.get('cache-control') ?? '')?.[1] ?? defaultMaxAge)
      readAt = startedAt
      failures = 0
    } catch (cause) {
      begun = { at: present(), pauseMs: backOff(failures) }
      if (failures++ === 0 && !signal.aborted)
        onWarning({
          code: 'KEYS_FAILED',
          message: `The verification keys can’t be read: ${(cause as Error).message}`,
          cause,
        })
      throw cause
    }
  }

  const inBackground = () => void read().catch(() => {})

  return {
    known(kid) {
      if (!readAt) return undefined
      const age = elapsedSince(readAt)
      if (age > maxAge && !next && !last) inBackground()
      if (age > maxAge + maxStaleMs || retired.has(kid)) return undefined
      return keys.get(kid)
    },
    async find(kid) {
      if (retired.has(kid)) return undefined
      // While the registry is away, callers get their answer at once.
      if (failures > 0 && remaining() > 0) throw new Error('The verification keys can’t be read.')
      // The request in progress may bring it.
      await last?.catch(() => {})
      if (!keys.has(kid)) await read()
      const key = keys.get(kid)
      if (!key && retiredAt && elapsedSince(retiredAt) < settlingTime)
        throw new Error('The new key may not be published yet.')
      return key
    },
    retire(kid) {
      if (retired.has(kid)) return
      retired.add(kid)
      retiredAt = present()
      inBackground()
    },
    restart() {
      retired.clear()
      retiredAt = undefined
      inBackground()
    },
  }
}

/** The keys that verify tokens; others are left out. */
async function importAll(published: readonly JWK[]): Promise<Map<string, CryptoKey>> {
  const keys = new Map<string, CryptoKey>()
  for (const jwk of published) {
    if (jwk.kid && jwk.kty === 'EC' && jwk.crv === 'P-256')
      keys.set(jwk.kid, (await importJWK(jwk, 'ES256')) as CryptoKey)
  }
  return keys
}
