import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto'

/** The keys that protect data, 32 bytes each. The database holds them wrapped by the master key. */
export const dataKeyNames = ['pepper', 'sealing', 'digesting', 'audit'] as const

/** The data keys, each for one task. */
export type DataKeys = Readonly<Record<(typeof dataKeyNames)[number], Buffer>>

/** Everything that is done with the data keys. Each method throws before they are loaded. */
export interface MasterKey {
  /** Keyed into every hash of a password or answer. */
  pepper(): Buffer
  /** Encrypts a secret that must be read again (AES-256-GCM). `use` says what it is, and is needed to open it. */
  seal(use: string, secret: string): Buffer
  /** Decrypts what `seal` made for the same use. Throws when it was altered, or sealed with another key. */
  open(use: string, sealed: Buffer): string
  /** Keyed digest (HMAC-SHA-256) by which a secret is found or compared without being stored. */
  digest(use: string, secret: string): Buffer
  /** MAC (HMAC-SHA-256) that only a holder of the key can make, for the audit log. */
  mac(text: string): Buffer
}

/** Makes the methods from data keys, which must exist at the first use only. */
export function createMasterKey(keys: () => DataKeys): MasterKey {
  return {
    pepper: () => keys().pepper,
    seal: (use, secret) => encrypt(keys().sealing, use, Buffer.from(secret)),
    open: (use, sealed) => decrypt(keys().sealing, use, sealed).toString(),
    digest: (use, secret) => createHmac('sha256', keys().digesting).update(`${use}\0${secret}`).digest(),
    mac: text => createHmac('sha256', keys().audit).update(text).digest(),
  }
}

/** New random data keys. */
export function randomDataKeys(): DataKeys {
  return Object.fromEntries(dataKeyNames.map(name => [name, randomBytes(32)])) as DataKeys
}

/** Wraps a data key by the master key (AES-256-GCM under a key derived from it). It opens under its own name only. */
export function wrapKey(masterKey: Buffer, name: string, key: Buffer): Buffer {
  return encrypt(wrappingKey(masterKey), name, key)
}

/** The data key that was wrapped. Throws when another master key wrapped it, or it was altered. */
export function unwrapKey(masterKey: Buffer, name: string, wrapped: Buffer): Buffer {
  return decrypt(wrappingKey(masterKey), name, wrapped)
}

/** Derived by HKDF (RFC 5869). */
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
