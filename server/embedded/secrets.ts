import { randomBytes } from 'node:crypto'
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { openDataFolder } from '../process/data-folder.js'
import { hasCode } from '../process/errno.js'
import { readPrivateFile, writePrivateFile } from '../process/private-file.js'

/**
 * Returns the secrets of an installation with the embedded database. Each is created once, before the database, and stored
 * in a file of the data folder that only its owner can read: `database-password`, and, unless AUTH_MASTER_KEY is `given`,
 * `master-key` (its equivalent, in base64). Creates the folder if needed. Throws an Error that says what to do when another
 * user could have written them, and when one is missing beside its database, or empty.
 */
export async function embeddedSecrets(
  dataDir: string,
  given?: Buffer,
): Promise<{ masterKey: Buffer; databasePassword: string }> {
  const folder = await openDataFolder(dataDir)
  // Before the files are read, because another process may be creating all of them.
  const isNew = !existsSync(join(folder, 'postgres'))
  const read = (name: string, bytes: number, encoding: 'base64' | 'hex') =>
    readOrCreate(join(folder, name), isNew ? () => randomBytes(bytes).toString(encoding) : undefined)
  const masterKey = given ?? Buffer.from(await read('master-key', 32, 'base64'), 'base64')
  return { masterKey, databasePassword: await read('database-password', 24, 'hex') }
}

/** Returns the content of a file. If it may, creates it atomically: all processes read the same complete content. */
async function readOrCreate(path: string, create: (() => string) | undefined): Promise<string> {
  for (;;) {
    try {
      const content = (await readPrivateFile(path)).trim()
      if (content) return content
      throw new Error(`${path} is empty: ${restore}`)
    } catch (error) {
      if (!hasCode(error, 'ENOENT')) throw error
      if (!create) throw new Error(`${path} is missing: ${restore}`)
    }
    await writePrivateFile(path, `${create()}\n`, { isNew: true }).catch(error => {
      if (!hasCode(error, 'EEXIST')) throw error
    })
  }
}

const restore = 'restore it, because the embedded database beside it can’t be used without it.'
