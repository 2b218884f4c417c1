import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { openDataFolder } from '../process/data-folder.js'
import { hasCode } from '../process/errno.js'
import { readPrivateFile, writePrivateFile } from '../process/private-file.js'

/**
 * Returns the secrets of an installation with the embedded database. Each is created once, and stored in a file of the
 * data folder that only its owner can read: `master-key` (for AUTH_MASTER_KEY, in base64) and `database-password`.
 * Creates the folder if needed. Throws an Error that says what to do when another user could have written them.
 */
export async function embeddedSecrets(dataDir: string): Promise<{ masterKey: Buffer; databasePassword: string }> {
  const folder = await openDataFolder(dataDir)
  const masterKey = await readOrCreate(join(folder, 'master-key'), () => randomBytes(32).toString('base64'))
  const databasePassword = await readOrCreate(join(folder, 'database-password'), () => randomBytes(24).toString('hex'))
  return { masterKey: Buffer.from(masterKey, 'base64'), databasePassword }
}

/** Returns the content of a file, which it creates atomically if needed: all processes read the same complete content. */
async function readOrCreate(path: string, create: () => string): Promise<string> {
  for (;;) {
    try {
      return (await readPrivateFile(path)).trim()
    } catch (error) {
      if (!hasCode(error, 'ENOENT')) throw error
    }
    await writePrivateFile(path, `${create()}\n`, { isNew: true }).catch(error => {
      if (!hasCode(error, 'EEXIST')) throw error
    })
  }
}
