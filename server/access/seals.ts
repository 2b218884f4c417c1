// Sealed tokens: only the registry reads them. They are no JWTs, and no key set has their keys.
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto'
import { type SealingKeys, sealingKeyIdLength } from '../models/sealing-key.js'

/** What distinguishes a sealed token from others, and lets scanners of secrets find one. */
const prefix = 'sealed_'

const pattern = new RegExp(`^${prefix}([\\da-f]{${sealingKeyIdLength}})([\\w-]+)$`)

/** Bytes of the salt of a token, and of the tag by which an alteration shows. */
const [saltLength, tagLength] = [16, 16]

/** A sealed token that was opened. */
interface Opened {
  /** Id of its key. Who acts on the token also asks, in the statement that reads the user, whether the key still holds. */
  readonly keyId: string
  readonly payload: string
}

/** Seals and opens tokens. */
export type Seals = ReturnType<typeof createSeals>

/**
 * Creates the seals.
 *
 * Each token is encrypted (AES-256-GCM) with a key and a nonce that HKDF (RFC 5869) derives from the sealing key, the use and 128
 * random bits. No derived key encrypts twice, so the limit of 2^32 random nonces under one key (NIST SP 800-38D, 8.3) isn't
 * approached, however many tokens a sealing key seals. Two tokens of 2^48 have the same salt with a probability of 2^-33.
 */
export function createSeals(keys: Pick<SealingKeys, 'current' | 'all'>) {
  let known = new Map<string, Buffer>()
  let last: Promise<void> = Promise.resolve()
  let next: Promise<void> | undefined

  /**
   * Returns a key. Another process may have made it a moment ago: an unknown one isn't refused by a read from before. All that wait
   * share the next read, and reads follow each other, so unknown ids, which any caller can send, use one connection at most.
   */
  async function find(id: string): Promise<Buffer | undefined> {
    if (known.has(id)) return known.get(id)
    next ??= last.then(async () => {
      next = undefined
      known = new Map((await keys.all()).map(({ id, key }) => [id, key]))
    })
    last = next.catch(() => {})
    await next
    return known.get(id)
  }

  function derive(key: Buffer, use: string, salt: Buffer) {
    const bytes = Buffer.from(hkdfSync('sha256', key, salt, `auth sealed token: ${use}`, 44))
    return [bytes.subarray(0, 32), bytes.subarray(32)] as const
  }

  return {
    /** Seals a payload for a use: `sealed_`, the id of the key and the rest in base64url. */
    async seal(use: string, payload: string): Promise<string> {
      const { id, key } = await keys.current()
      known.set(id, key)
      const salt = randomBytes(saltLength)
      const cipher = createCipheriv('aes-256-gcm', ...derive(key, use, salt))
      const body = Buffer.concat([salt, cipher.update(payload), cipher.final(), cipher.getAuthTag()])
      return `${prefix}${id}${body.toString('base64url')}`
    },
    /** Opens a token that was sealed for this use; undefined for any other text, and for an altered token. */
    async open(use: string, token: string): Promise<Opened | undefined> {
      const [, keyId, text] = pattern.exec(token) ?? []
      if (!keyId || !text) return undefined
      const body = Buffer.from(text, 'base64url')
      // Several texts have the same bytes, of which one is the token.
      if (body.length < saltLength + tagLength || body.toString('base64url') !== text) return undefined
      const key = await find(keyId)
      if (!key) return undefined
      const derived = derive(key, use, body.subarray(0, saltLength))
      const decipher = createDecipheriv('aes-256-gcm', ...derived, { authTagLength: tagLength })
      decipher.setAuthTag(body.subarray(-tagLength))
      try {
        const payload = Buffer.concat([decipher.update(body.subarray(saltLength, -tagLength)), decipher.final()])
        return { keyId, payload: payload.toString() }
      } catch {
        return undefined
      }
    },
  }
}
