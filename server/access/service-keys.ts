// Which service calls: by the key that it shows instead of a token.
import { LRUCache } from 'lru-cache'
import { type KeyHolder, keyPrefix, type Services } from '../models/service.js'
import type { Log } from '../observability/log.js'
import { maxEntries } from '../process/cache-size.js'
import type { CallingService, IncomingCall } from '../requests/call.js'
import { createSenderOf } from '../requests/client-address.js'
import { tooLong } from '../rules/sizes.js'
import type { Admission } from './admission.js'

/** Finds services by their keys. */
export interface ServiceKeys {
  /** The key that a call shows; undefined when it shows a token, or nothing. */
  read(call: Pick<IncomingCall, 'authorization'>): string | undefined
  /** The name of the service whose good key an `authorization` header shows, as far as this process knows by now. */
  recall(authorization: string | undefined): string | undefined
  /**
   * Gives a call the service whose key it shows and, where that may tell it, the address of the client that it is made for.
   * A call with a key of no service stays as it is: what is protected then refuses it as a bad token.
   */
  introduce(call: IncomingCall, key: string): Promise<void>
}

/** Milliseconds for which a key is believed to be good, so that a removed one is refused everywhere within a second. */
const believed = 1_000

/** Keys that are remembered, good and bad; the longest unused ones are forgotten. */
const remembered = 20_000

/** Milliseconds between two warnings about one service. */
const warnedEvery = 10 * 60_000

const shown = new RegExp(`^Bearer +(${keyPrefix}[^\\s]*)\\s*$`, 'i')

/** What a process knows of a key: nobody's stay nobody's, as keys are made at random and never come back. */
interface Known {
  readonly holder: KeyHolder | undefined
  readonly readAt: number
}

/**
 * Finds services in the database, and believes what it found for a second. A key that isn't known yet costs one small read,
 * of which a client address has 300 in 15 minutes; one that was nobody's costs none. `now` is a clock in milliseconds.
 */
export function createServiceKeys(deps: {
  services: Pick<Services, 'digest' | 'holder' | 'touch'>
  admission: Pick<Admission, 'takeServiceKey'>
  trustedProxies: readonly string[]
  log: Pick<Log, 'warn'>
  now: () => number
}): ServiceKeys {
  const { services, admission, log, now } = deps
  const senderOf = createSenderOf(deps.trustedProxies)
  const known = new LRUCache<string, Known>(maxEntries(remembered))
  /** Reads under way. */
  const reading = new Map<string, Promise<KeyHolder | undefined>>()
  const warnedAt = new Map<string, number>()

  async function holderOf(key: string, address: string): Promise<KeyHolder | undefined> {
    if (tooLong(key, 'key')) return undefined
    const digest = services.digest(key)
    const name = digest.toString('base64')
    const last = known.get(name)
    // A clock that was set back makes nothing last longer.
    if (last && (!last.holder || Math.abs(now() - last.readAt) < believed)) return last.holder
    // Who guesses is stopped, and nobody whose key was good before.
    if (!last && !reading.has(name) && !admission.takeServiceKey(address)) return undefined
    const read = reading.get(name) ?? readHolder(digest, name)
    reading.set(name, read)
    return read.finally(() => reading.delete(name))
  }

  async function readHolder(digest: Buffer, name: string): Promise<KeyHolder | undefined> {
    const readAt = now()
    const holder = await services.holder(digest)
    // What isn't recorded now is by the next read.
    if (holder && !holder.usedToday) await services.touch(holder.keyId).catch(() => {})
    known.set(name, { holder, readAt })
    return holder
  }

  /** The address that a service's call is made for. */
  function addressOf({ address, forwardedFor }: IncomingCall, { name, scopes }: CallingService): string {
    if (forwardedFor === undefined || !scopes.includes('clients.forward')) return address
    if (forwardedFor !== '') return senderOf(address, forwardedFor, true).address
    if (now() - (warnedAt.get(name) ?? Number.NEGATIVE_INFINITY) >= warnedEvery) {
      warnedAt.set(name, now())
      log.warn({ service: name }, 'a service that may forward addresses sent none: what it asks counts as its own')
    }
    return address
  }

  const read = (authorization: string | undefined) =>
    authorization === undefined ? undefined : shown.exec(authorization)?.[1]

  return {
    recall(authorization) {
      const key = read(authorization)
      if (key === undefined || tooLong(key, 'key')) return undefined
      return known.get(services.digest(key).toString('base64'))?.holder?.name
    },
    read: ({ authorization }) => read(authorization),
    async introduce(call, key) {
      const holder = await holderOf(key, call.address)
      if (!holder) return
      call.service = { name: holder.name, scopes: holder.scopes }
      call.address = addressOf(call, call.service)
    },
  }
}
