import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto'

/** What the master key does: nothing else touches it. */
export interface MasterKey {
  /** Keyed into every hash of a password or answer. */
  readonly pepper: Buffer
  /** Encrypts a secret that must be read again (AES-256-GCM); `use` says what it is and is needed to open it. */
  seal(use: string, secret: string): Buffer
  /** Decrypts what `seal` made for the same use. Throws when it was altered or sealed with another master key. */
  open(use: string, sealed: Buffer): string
  /** Keyed digest (HMAC-SHA-256) by which a secret is found or compared without being stored. */
  digest(use: string, secret: string): Buffer
}

/** Derives a key for each task from the master key (HKDF, RFC 5869). */
export function createMasterKey(masterKey: Buffer): MasterKey {
  const derive = (task: string) => Buffer.from(hkdfSync('sha256', masterKey, '', `auth ${task}`, 32))
  const sealing = derive('sealing')
  const digesting = derive('digesting')
  return {
    pepper: derive('pepper'),
    seal(use, secret) {
      const nonce = randomBytes(12)
      const cipher = createCipheriv('aes-256-gcm', sealing, nonce).setAAD(Buffer.from(use))
      const body = Buffer.concat([cipher.update(secret, 'utf8'), cipher.final()])
      return Buffer.concat([nonce, cipher.getAuthTag(), body])
    },
    open(use, sealed) {
      const decipher = createDecipheriv('aes-256-gcm', sealing, sealed.subarray(0, 12), { authTagLength: 16 })
      decipher.setAAD(Buffer.from(use)).setAuthTag(sealed.subarray(12, 28))
      return Buffer.concat([decipher.update(sealed.subarray(28)), decipher.final()]).toString('utf8')
    },
    digest: (use, secret) => createHmac('sha256', digesting).update(`${use}\0${secret}`).digest(),
  }
}
