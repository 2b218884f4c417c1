// The encryption of a backup: a file as age has it (https://age-encryption.org/v1), which the program of that name opens, too.
import { randomBytes } from 'node:crypto'
import { open } from 'node:fs/promises'
import { ReadableStream } from 'node:stream/web'
import { Decrypter, Encrypter } from 'age-encryption'
import { damaged } from './format.js'

/** Who can open a backup: the holders of the identities to some public keys (`age1…`), or whoever has a passphrase. */
export type Lock = { readonly recipients: readonly string[] } | { readonly passphrase: string }

/** What opens a backup: the text of an identity file, or a passphrase. */
export type Key = { readonly identities: string } | { readonly passphrase: string }

/** A new passphrase of 128 random bits. */
export function newPassphrase(): string {
  return randomBytes(16).toString('hex').match(/.{4}/g)!.join('-')
}

/** What is wrong with a text as a recipient, as a sentence; undefined when nothing is. */
export function recipientProblem(text: string): string | undefined {
  try {
    new Encrypter().addRecipient(text)
    return undefined
  } catch {
    return 'Give a public key of age, as `age-keygen` prints it: age1….'
  }
}

/** Encrypts what comes, piece by piece. */
export async function* encrypt(source: AsyncIterable<Uint8Array>, lock: Lock): AsyncGenerator<Uint8Array> {
  const encrypter = new Encrypter()
  if ('passphrase' in lock) encrypter.setPassphrase(lock.passphrase)
  else for (const recipient of lock.recipients) encrypter.addRecipient(recipient)
  yield* await throughAge(source, stream => encrypter.encrypt(stream))
}

/**
 * Opens a file and hands over what is in it, piece by piece: each piece is what was written, but only the end tells whether
 * the file is whole. Throws an Error that says what is wrong, before anything is read when the key doesn't open it.
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

/** How a backup is locked. Throws an Error when the file can't be read, or is none. */
export async function lockOf(file: string): Promise<'passphrase' | 'recipients'> {
  const handle = await openBackup(file)
  try {
    const { buffer, bytesRead } = await handle.read(Buffer.alloc(64), 0, 64, 0)
    const [first, second = ''] = buffer.toString('latin1', 0, bytesRead).split('\n')
    if (first !== 'age-encryption.org/v1') throw new Error('The file is no backup: it is not encrypted by age.')
    return second.startsWith('-> scrypt ') ? 'passphrase' : 'recipients'
  } finally {
    await handle.close()
  }
}

/** The library speaks in streams of the web, as the DOM's types know them. */
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
  if (lines.length === 0) throw new Error('The identity file holds no identity of age (AGE-SECRET-KEY-1…).')
  return decrypter
}
