import type { MessageInitShape } from '@bufbuild/protobuf'
import type { Key, KeySchema } from '../../proto/gen/auth/v1/users_pb.js'
import type { SigningKey, SigningKeys } from '../models/signing-key.js'
import { named } from '../rules/remedies.js'

// The cache of signing keys. Which keys exist, and when one signs, belongs to models/signing-key.ts.

/**
 * Milliseconds after which the keys are read again. Less than the time between publication of a key and its first use.
 */
const refreshAfter = 60_000

/** Maximum age of the keys in ms, while they are read again and while the database is unavailable. */
const maxAge = 5 * refreshAfter

/** Maximum age of published keys in ms. */
const maxPublishedAge = 5_000

/** Minimum milliseconds between two reads because of unknown key ids or long lifetimes, which any caller can cause. */
const minForcedInterval = 5_000

/** The signing keys, as this process caches them. */
export type Keyring = ReturnType<typeof createKeyring>

/**
 * Caches the keys of the database; reads them again each minute and for an unknown key id. `now` is the clock of the database, in
 * ms since 1970; `processNow` is the clock of the cache, which can't be set.
 */
export function createKeyring(
  keys: Pick<SigningKeys, 'all' | 'signer'>,
  now: () => number = Date.now,
  processNow: () => number = now,
) {
  let cached: SigningKey[] = []
  let readAt = Number.NEGATIVE_INFINITY
  let last: Promise<void> = Promise.resolve()
  let next: Promise<void> | undefined
  let forced: Promise<void> = Promise.resolve()
  let forcedAt = Number.NEGATIVE_INFINITY

  /** Reads the keys. Callers share the next read: the one in progress may have started before a key was added. */
  function read(): Promise<void> {
    if (!next) {
      next = last.then(async () => {
        next = undefined
        const startedAt = processNow()
        cached = await keys.all()
        readAt = startedAt
      })
      last = next.catch(() => {})
    }
    return next
  }

  const isValid = ({ verifiesUntil }: SigningKey) => verifiesUntil === null || verifiesUntil.getTime() > now()

  async function fresh(): Promise<readonly SigningKey[]> {
    const age = processNow() - readAt
    if (age > refreshAfter) {
      const done = read()
      // Cached keys verify while the read is in progress and while the database is unavailable, up to their maximum
      // age.
      if (age > maxAge) await done
      else done.catch(() => {})
    }
    return cached
  }

  return {
    /** The key that signs now. Queries the database each time, so that a dropped key signs no further token. */
    async signer(): Promise<SigningKey> {
      const kid = await keys.signer()
      const known = cached.find(each => each.kid === kid)
      if (!known) await read()
      const key = known ?? cached.find(each => each.kid === kid)
      if (!key) throw new Error(`No signing key is active: run ${named('install')}.`)
      return key
    },
    /**
     * The key that verifies tokens with this key id; undefined when there is none. `lifetime` is that of the token in
     * seconds: when it exceeds the key's cached `tokenTtl`, which may have been raised, the keys are read again.
     */
    async find(kid: string, lifetime: number): Promise<SigningKey | undefined> {
      const isMeant = (key: SigningKey) => key.kid === kid && isValid(key)
      const known = (await fresh()).find(isMeant)
      if (known && lifetime <= known.tokenTtl) return known
      if (processNow() - forcedAt >= minForcedInterval) {
        forcedAt = processNow()
        forced = read()
      }
      await forced
      return cached.find(isMeant)
    },
    /**
     * The keys that verify tokens, for publication (RFC 7517), at most 5 seconds old; at most 5 minutes while the
     * database is unavailable.
     */
    async published(): Promise<MessageInitShape<typeof KeySchema>[]> {
      if (processNow() - readAt > maxPublishedAge)
        await read().catch(error => {
          if (processNow() - readAt > maxAge) throw error
        })
      return cached
        .filter(isValid)
        .map(({ kid, publicJwk }) => ({ ...publicJwk, kid, use: 'sig', alg: 'ES256' }) satisfies Partial<Key>)
    },
  }
}
