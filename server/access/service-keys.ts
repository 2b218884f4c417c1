// Authenticates services, by the key that they send as `Authorization: Bearer` instead of a token.
import { LRUCache } from 'lru-cache'
import { maxEntries } from '../limits/cache-size.js'
import type { Limits } from '../limits/index.js'
import type { Models } from '../models/index.js'
import { type KeyHolder, keyPrefix } from '../models/service.js'
import type { Log } from '../observability/log.js'
import type { Settings } from '../process/settings.js'
import type { CallingService, IncomingCall } from '../requests/call.js'
import { createSenderOf, forwardedEntries } from '../requests/client-address.js'
import { tooLong } from '../rules/sizes.js'

/** Authenticates services by their keys. */
export type ServiceKeys = ReturnType<typeof createServiceKeys>

/** Milliseconds for which a good key is cached: all processes refuse a removed key after this time. */
const cachedFor = 1_000

/** Maximum keys in the cache, good and bad; the least recently used ones leave first. */
const maxCached = 20_000

/** Milliseconds between two warnings about one service. */
const warningInterval = 10 * 60_000

const bearer = new RegExp(`^Bearer +(${keyPrefix}[^\\s]*)\\s*$`, 'i')

/** A cached key. An unknown one never expires: keys are random, so it can't become good later. */
interface Cached {
  /** Undefined for a key of no service. */
  readonly holder: KeyHolder | undefined
  /** In ms. */
  readonly readAt: number
}

/**
 * Authenticates services by the database, with a cache. A key that isn't cached costs one read, and each client address
 * has 300 such reads in 15 minutes. `now` is a clock in ms.
 */
export function createServiceKeys(
  { services }: Models,
  { rateLimits }: Limits,
  { trustedProxies }: Pick<Settings, 'trustedProxies'>,
  log: Pick<Log, 'warn'>,
  now: () => number,
) {
  const senderOf = createSenderOf(trustedProxies)
  const cache = new LRUCache<string, Cached>(maxEntries(maxCached))
  /** Reads in progress, by digest. */
  const reading = new Map<string, Promise<KeyHolder | undefined>>()
  const warnedAt = new Map<string, number>()

  async function holderOf(key: string, address: string): Promise<KeyHolder | undefined> {
    if (tooLong(key, 'key')) return undefined
    const digest = services.digest(key)
    const cacheKey = digest.toString('base64')
    const cached = cache.get(cacheKey)
    if (cached && (!cached.holder || now() - cached.readAt < cachedFor)) return cached.holder
    // The limit is for guesses alone: a key that was good before is read again without it.
    if (!cached && !reading.has(cacheKey)) rateLimits.takeServiceKey(address)
    const read = reading.get(cacheKey) ?? readHolder(digest, cacheKey)
    reading.set(cacheKey, read)
    return read.finally(() => reading.delete(cacheKey))
  }

  async function readHolder(digest: Buffer, cacheKey: string): Promise<KeyHolder | undefined> {
    const readAt = now()
    const holder = await services.holder(digest)
    // The date of use isn't worth a failed call; the next read records it.
    if (holder && !holder.usedToday) await services.touch(holder.keyId).catch(() => {})
    cache.set(cacheKey, { holder, readAt })
    return holder
  }

  /** The client address of a service's call: the forwarded one, or that of the service. */
  function addressOf({ address, forwardedFor }: IncomingCall, { name, scopes }: CallingService): string {
    if (forwardedFor === undefined || !scopes.includes('clients.forward')) return address
    if (forwardedEntries(forwardedFor).length > 0) return senderOf(address, forwardedFor, true).address
    if (now() - (warnedAt.get(name) ?? Number.NEGATIVE_INFINITY) >= warningInterval) {
      warnedAt.set(name, now())
      log.warn(
        { service: name },
        'a service with clients.forward sent no client address: its calls count for its own address',
      )
    }
    return address
  }

  const read = (authorization: string | undefined) =>
    authorization === undefined ? undefined : bearer.exec(authorization)?.[1]

  return {
    /** The service that holds a key, as `authenticate` finds it; undefined for an unknown one. */
    holderOf,
    /** The name of the service whose key an `authorization` header holds, from the cache alone; else undefined. */
    cachedName(authorization: string | undefined): string | undefined {
      const key = read(authorization)
      if (key === undefined || tooLong(key, 'key')) return undefined
      return cache.get(services.digest(key).toString('base64'))?.holder?.name
    },
    /** The service key in a call; undefined when the call has a token or no credentials. */
    read: ({ authorization }: Pick<IncomingCall, 'authorization'>) => read(authorization),
    /**
     * Sets the call's service and, for a service with the scope `clients.forward`, the client address that it forwards.
     * A call with an unknown key stays unchanged: protected RPCs refuse it as a bad token. Beyond the limit of keys that this
     * process hasn't seen it can't tell whether one is good, and refuses with TOO_MANY_ATTEMPTS.
     */
    async authenticate(call: IncomingCall, key: string): Promise<void> {
      const holder = await holderOf(key, call.address)
      if (!holder) return
      call.service = { name: holder.name, scopes: holder.scopes }
      call.address = addressOf(call, call.service)
    },
  }
}
