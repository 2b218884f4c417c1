import type { MessageInitShape } from '@bufbuild/protobuf'
import type { Key, KeySchema } from '../../proto/gen/auth/v1/users_pb.js'
import type { SigningKey, SigningKeys } from '../models/signing-key.js'

/** Milliseconds after which the keys are read again. Less than the lead with which keys are published. */
const refreshAfter = 60_000

/** Milliseconds for which keys serve at most, while new ones are read and while the database is away. */
const heldAtMost = 5 * refreshAfter

/** Milliseconds for which a set of keys is published. */
const publishedAtMost = 5_000

/** Least milliseconds between two readings that unknown key ids and long lifetimes provoke. */
const provokedAtMost = 5_000

/** The signing keys as this process holds them. */
export interface Keyring {
  /** The key that signs now: the database is asked each time, so that a key dropped there signs nothing more. */
  signer(): Promise<SigningKey>
  /**
   * The key that verifies tokens with this key id, if there is one. Its `tokenTtl` may have risen since it was read:
   * for tokens that last longer, in seconds, it is read again.
   */
  find(kid: string, lifetime: number): Promise<SigningKey | undefined>
  /**
   * The keys that may verify a token, for publication (RFC 7517), as the database had them within the last 5 seconds; within
   * the last 5 minutes where they can't be read now.
   */
  published(): Promise<MessageInitShape<typeof KeySchema>[]>
}

/** Holds the keys of the database, reading them again each minute and when an unknown key id turns up. */
export function createKeyring(keys: Pick<SigningKeys, 'all' | 'signer'>, now: () => number = Date.now): Keyring {
  let held: SigningKey[] = []
  let readAt = Number.NEGATIVE_INFINITY
  let last: Promise<void> = Promise.resolve()
  let next: Promise<void> | undefined
  let provoked: Promise<void> = Promise.resolve()
  let provokedAt = Number.NEGATIVE_INFINITY

  /** Reads the keys. A read in progress may have begun before a key was there: the next one serves all who ask meanwhile. */
  function read(): Promise<void> {
    if (!next) {
      next = last.then(async () => {
        next = undefined
        const startedAt = now()
        held = await keys.all()
        readAt = startedAt
      })
      last = next.catch(() => {})
    }
    return next
  }

  const valid = () => held.filter(key => key.verifiesUntil === null || key.verifiesUntil.getTime() > now())

  async function fresh(): Promise<SigningKey[]> {
    const age = now() - readAt
    if (age > refreshAfter) {
      const done = read()
      // Old keys serve while new ones are read, and while the database is away; but not for ever.
      if (age > heldAtMost) await done
      else done.catch(() => {})
    }
    return valid()
  }

  return {
    async signer() {
      const kid = await keys.signer()
      const known = held.find(each => each.kid === kid)
      if (!known) await read()
      const key = known ?? held.find(each => each.kid === kid)
      if (!key) throw new Error('No key signs now: run `auth-admin install`.')
      return key
    },
    async find(kid, lifetime) {
      const known = (await fresh()).find(key => key.kid === kid)
      if (known && lifetime <= known.tokenTtl) return known
      if (now() - provokedAt >= provokedAtMost) {
        provokedAt = now()
        provoked = read()
      }
      await provoked
      return held.find(key => key.kid === kid)
    },
    async published() {
      if (now() - readAt > publishedAtMost)
        await read().catch(error => {
          if (now() - readAt > heldAtMost) throw error
        })
      return valid().map(
        ({ kid, publicJwk }) => ({ ...publicJwk, kid, use: 'sig', alg: 'ES256' }) satisfies Partial<Key>,
      )
    },
  }
}
