/** Backups from outside: their text, decrypted with the age library, and the contents of a database. */
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Decrypter, Encrypter, generateX25519Identity, identityToRecipient } from 'age-encryption'
import type { Run } from './cli.js'
import { ask } from './database.js'

/** A key pair of age: the public key, and the file of the private key. */
export async function newIdentity(folder: string): Promise<{ recipient: string; identity: string; secret: string }> {
  const secret = await generateX25519Identity()
  const recipient = await identityToRecipient(secret)
  const identity = join(folder, `${recipient.slice(-8)}.key`)
  await writeFile(identity, `# public key: ${recipient}\n${secret}\n`, { mode: 0o600 })
  return { recipient, identity, secret }
}

/** The content of an encrypted file. */
export async function textOf(file: string, secret: string): Promise<string> {
  const decrypter = new Decrypter()
  decrypter.addIdentity(secret)
  return decrypter.decrypt(await readFile(file), 'text')
}

/** Encrypts a text as a backup is, for tests of malformed contents. */
export async function writeText(file: string, text: string, recipient: string): Promise<void> {
  const encrypter = new Encrypter()
  encrypter.addRecipient(recipient)
  await writeFile(file, await encrypter.encrypt(text))
}

/** Every row of a database, as text, by table. */
export async function contents(url: string): Promise<Record<string, string[]>> {
  const tables = await ask(url, "SELECT tablename::text AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
  const all: Record<string, string[]> = {}
  for (const { name } of tables)
    all[String(name)] = (await ask(url, `SELECT t::text AS row FROM ${name} t ORDER BY 1`)).map(({ row }) =>
      String(row),
    )
  return all
}

/** The output of a command that must succeed. */
export function done({ code, stdout, stderr }: Run): string {
  if (code !== 0) throw new Error(`${code}: ${stderr}`)
  return stdout
}
