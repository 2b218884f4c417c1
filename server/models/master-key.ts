import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto'

/** Names of the data keys, 32 bytes each. The database stores them wrapped with the master key. */
export const dataKeyNames = ['pepper', 'sealing', 'digesting', 'audit'] as const

/** The data keys, each for one purpose. */
export type DataKeys = Readonly<Record<(typeof dataKeyNames)[number], Buffer>>

/** Operations that use the data keys. Each method throws until the keys are loaded. */
export type MasterKey = ReturnType<typeof createMasterKey>

/** Creates the operations. They call `keys` at each use, so the data keys may be loaded later. */
export function createMasterKey(keys: () => DataKeys) {
  return {
    /** Returns the secret key of all hashes of passwords and answers. */
    pepper: (): Buffer => keys().pepper,
    /** Encrypts a secret (AES-256-GCM). `use` is the associated data, which decryption requires. */
    seal: (use: string, secret: string): Buffer => encrypt(keys().sealing, use, Buffer.from(secret)),
    /** Decrypts a secret that `seal` encrypted for the same use. Throws when it was altered, or encrypted with another key. */
    open: (use: string, sealed: Buffer): string => decrypt(keys().sealing, use, sealed).toString(),
    /** Returns a keyed digest (HMAC-SHA-256), to look up or compare a secret without storing it. */
    digest: (use: string, secret: string): Buffer =>
      createHmac('sha256', keys().digesting).update(`${use}\0${secret}`).digest(),
    /** Returns a MAC (HMAC-SHA-256) for the audit log. */
    mac: (text: string): Buffer => createHmac('sha256', keys().audit).update(text).digest(),
  }
}

/**
 * Returns what tells the files of a registry from those of another in the same data folder. It isn't secret, and stays the same
 * when the master key changes and in a restored registry.
 */
export function registryTag({ digest }: Pick<MasterKey, 'digest'>): string {
  return digest('registry', '').toString('hex', 0, 4)
}

/** Generates random data keys. */
export function randomDataKeys(): DataKeys {
  return Object.fromEntries(dataKeyNames.map(name => [name, randomBytes(32)])) as DataKeys
}

/** Wraps a data key with the master key (AES-256-GCM with a derived key). Unwrapping requires the same name. */
export function wrapKey(masterKey: Buffer, name: string, key: Buffer): Buffer {
  return encrypt(wrappingKey(masterKey), name, key)
}

/** Unwraps a data key. Throws when another master key wrapped it, or it was altered. */
export function unwrapKey(masterKey: Buffer, name: string, wrapped: Buffer): Buffer {
  return decrypt(wrappingKey(masterKey), name, wrapped)
}

/** Derives the wrapping key by HKDF (RFC 5869). */
function wrappingKey(masterKey: Buffer): Buffer {
  return Buffer.from(hkdfSync('sha256', masterKey, '', 'auth wrapping', 32))
}

function encrypt(key: Buffer, use: string, secret: Buffer): Buffer {
  const nonce = randomBytes(12)
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(use))
  const body = Buffer.concat([cipher.update(secret), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), body])
}

function decrypt(key: Buffer, use: string, sealed: Buffer): Buffer {
  const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(0, 12), { authTagLength: 16 })
  decipher.setAAD(Buffer.from(use)).setAuthTag(sealed.subarray(12, 28))
  return Buffer.concat([decipher.update(sealed.subarray(28)), decipher.final()])
}
