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

/** Maximum bytes of a header: thousands of recipients. */
const maxHeader = 1024 * 1024

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

/** A backup whose key is known. */
export interface Unlocked {
  readonly file: string
  /** The key of the content, which the header of the file holds in encrypted form. */
  readonly fileKey: Uint8Array
}

/** Decrypts the key of the content: once, because a passphrase takes seconds. Throws an Error with the cause. */
export async function unlock(file: string, key: Key): Promise<Unlocked> {
  const decrypter = createDecrypter(key)
  const header = await readHeader(file)
  const fileKey = await decrypter.decryptHeader(header).catch(error => {
    if (!error.message.startsWith('no identity matched')) throw damaged(error)
    throw new Error(`The ${'passphrase' in key ? 'passphrase' : 'identity'} doesn’t open the backup.`)
  })
  return { file, fileKey }
}

/**
 * Decrypts a file, and passes its content to `read` chunk by chunk. Each chunk is authenticated, but only the end proves that
 * the file is complete. Throws an Error with the cause.
 */
export async function decrypt<T>(
  { file, fileKey }: Unlocked,
  read: (pieces: AsyncIterable<Uint8Array>) => Promise<T>,
): Promise<T> {
  const decrypter = new Decrypter()
  decrypter.addIdentity({ unwrapFileKey: () => fileKey })
  const handle = await openBackup(file)
  try {
    const stream = handle.createReadStream({ autoClose: false })
    const opened = await throughAge(stream, given => decrypter.decrypt(given)).catch(error => {
      throw damaged(error)
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
  const header = await readHeader(file)
  return header.includes('\n-> scrypt ') ? 'passphrase' : 'recipients'
}

/** Returns the header of a file: one line or more for each key that opens it, and a line that authenticates them. */
async function readHeader(file: string): Promise<Buffer> {
  const handle = await openBackup(file)
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(maxHeader), 0, maxHeader, 0)
    const start = buffer.subarray(0, bytesRead)
    if (start.indexOf('age-encryption.org/v1\n') !== 0)
      throw new Error('The file is not a backup: it is not encrypted by age.')
    // Without the last line, which begins with three hyphens, the header can't be decrypted.
    return start.subarray(0, start.indexOf('\n', start.indexOf('\n--- ') + 1) + 1)
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
