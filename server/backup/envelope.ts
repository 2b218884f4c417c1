// The encryption of a backup, in the format of age (https://age-encryption.org/v1). The program `age` can also decrypt it.
import { randomBytes } from 'node:crypto'
import { open } from 'node:fs/promises'
import { ReadableStream } from 'node:stream/web'
import { Decrypter, Encrypter } from 'age-encryption'
import { damaged } from './format.js'

/** The encryption key of a backup: public keys (`age1…`), or a passphrase. */
export type Lock = { readonly recipients: readonly string[] } | { readonly passphrase: string }

/** The decryption key of a backup: the text of an identity file, or a passphrase. */
export type Key = { readonly identities: string } | { readonly passphrase: string }

/** Generates a passphrase of 128 random bits. */
export function newPassphrase(): string {
  return randomBytes(16).toString('hex').match(/.{4}/g)!.join('-')
}

/** Returns an error message if a text isn't a valid recipient; else undefined. */
export function recipientProblem(text: string): string | undefined {
  try {
    new Encrypter().addRecipient(text)
    return undefined
  } catch {
    return 'Pass an age public key, as `age-keygen` prints it: age1….'
  }
}

/** Encrypts a stream chunk by chunk. */
export async function* encrypt(source: AsyncIterable<Uint8Array>, lock: Lock): AsyncGenerator<Uint8Array> {
  const encrypter = new Encrypter()
  if ('passphrase' in lock) encrypter.setPassphrase(lock.passphrase)
  else for (const recipient of lock.recipients) encrypter.addRecipient(recipient)
  yield* await throughAge(source, stream => encrypter.encrypt(stream))
}

/**
 * Decrypts a file, and passes its content to `read` chunk by chunk. Each chunk is authenticated, but only the end proves that
 * the file is complete. Throws an Error with the cause; if the key doesn't decrypt the file, before it calls `read`.
 */
export async function decrypt<T>(
  file: string,
  key: Key,
  read: (pieces: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  const decrypter = createDecrypter(key)
  const handle = await openBackup(file)
  try {
    const stream = handle.createReadStream({ autoClose: false })
    const opened = await throughAge(stream, given => decrypter.decrypt(given)).catch(error => {
      if (!error.message.startsWith('no identity matched')) throw damaged(error)
      throw new Error(`The ${'passphrase' in key ? 'passphrase' : 'identity'} doesn’t open the backup.`)
    })
    return await read(withDamageErrors(opened))
  } finally {
    await handle.close()
  }
}

async function* withDamageErrors(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  try {
    yield* pieces
  } catch (error) {
    throw damaged(error)
  }
}

/** Returns the kind of key that a backup is encrypted with. Throws an Error when the file can't be read, or isn't a backup. */
export async function lockOf(file: string): Promise<'passphrase' | 'recipients'> {
  const handle = await openBackup(file)
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(64), 0, 64, 0)
    const [first, second = ''] = buffer.toString('latin1', 0, bytesRead).split('\n')
    if (first !== 'age-encryption.org/v1') throw new Error('The file is not a backup: it is not encrypted by age.')
    return second.startsWith('-> scrypt ') ? 'passphrase' : 'recipients'
  } finally {
    await handle.close()
  }
}

/** Adapts the library, which accepts and returns web streams with the types of the DOM. */
async function throughAge(
  source: AsyncIterable<Uint8Array>,
  work: (stream: globalThis.ReadableStream<Uint8Array>) => Promise<unknown>,
): Promise<AsyncIterable<Uint8Array>> {
  return (await work(ReadableStream.from(source) as never)) as AsyncIterable<Uint8Array>
}

async function openBackup(file: string) {
  return open(file).catch(({ code }: NodeJS.ErrnoException) => {
    throw new Error(`The backup can’t be read (${code}).`)
  })
}

function createDecrypter(key: Key): Decrypter {
  const decrypter = new Decrypter()
  if ('passphrase' in key) {
    decrypter.addPassphrase(key.passphrase)
    return decrypter
  }
  const lines = key.identities.split(/\r?\n/).filter(line => line.trim() !== '' && !line.startsWith('#'))
  try {
    for (const line of lines) decrypter.addIdentity(line.trim())
  } catch {
    lines.length = 0
  }
  if (lines.length === 0) throw new Error('The identity file has no age identity (AGE-SECRET-KEY-1…).')
  return decrypter
}
