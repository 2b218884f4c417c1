// The encryption of a backup: a file in the format of age (https://age-encryption.org/v1), which the program `age` opens too.
import { randomBytes } from 'node:crypto'
import { open } from 'node:fs/promises'
import { ReadableStream } from 'node:stream/web'
import { Decrypter, Encrypter } from 'age-encryption'
import { damaged } from './format.js'

/** What a backup is encrypted to: public keys (`age1…`), or a passphrase. */
export type Lock = { readonly recipients: readonly string[] } | { readonly passphrase: string }

/** What opens a backup: the text of an identity file, or a passphrase. */
export type Key = { readonly identities: string } | { readonly passphrase: string }

/** A new passphrase of 128 random bits. */
export function newPassphrase(): string {
  return randomBytes(16).toString('hex').match(/.{4}/g)!.join('-')
}

/** Says in a sentence why a text isn't a recipient; undefined if it is one. */
export function recipientProblem(text: string): string | undefined {
  try {
    new Encrypter().addRecipient(text)
    return undefined
  } catch {
    return 'Pass an age public key, as `age-keygen` prints it: age1….'
  }
}

/** Encrypts a stream, piece by piece. */
export async function* encrypt(source: AsyncIterable<Uint8Array>, lock: Lock): AsyncGenerator<Uint8Array> {
  const encrypter = new Encrypter()
  if ('passphrase' in lock) encrypter.setPassphrase(lock.passphrase)
  else for (const recipient of lock.recipients) encrypter.addRecipient(recipient)
  yield* await throughAge(source, stream => encrypter.encrypt(stream))
}

/**
 * Decrypts a file, and passes its content on piece by piece. Each piece is authentic, but only the end shows that the file is
 * complete. Throws an Error that says what is wrong; if the key doesn't open the file, before `read` is called.
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
    return await read(tellDamage(opened))
  } finally {
    await handle.close()
  }
}

async function* tellDamage(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  try {
    yield* pieces
  } catch (error) {
    throw damaged(error)
  }
}

/** What a backup is encrypted to. Throws an Error when the file can't be read, or isn't a backup. */
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

/** The library takes and returns web streams, in the types of the DOM. */
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
