import { randomBytes } from 'node:crypto'
import { link, mkdir, open, readFile, unlink } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { hasCode } from './errno.js'

/**
 * Returns the secrets of an installation with the embedded database. Each is created once, and stored in a file of the
 * data folder that only its owner can read: `master-key` (for AUTH_MASTER_KEY, in base64) and `database-password`.
 * Creates the folder if needed.
 */
export async function embeddedSecrets(dataDir: string): Promise<{ masterKey: Buffer; databasePassword: string }> {
  const folder = resolve(dataDir)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const masterKey = await readOrCreate(join(folder, 'master-key'), () => randomBytes(32).toString('base64'))
  const databasePassword = await readOrCreate(join(folder, 'database-password'), () => randomBytes(24).toString('hex'))
  return { masterKey: Buffer.from(masterKey, 'base64'), databasePassword }
}

/** Returns the content of a file, which it creates atomically if needed: all processes read the same complete content. */
async function readOrCreate(path: string, create: () => string): Promise<string> {
  for (;;) {
    try {
      return (await readFile(path, 'utf8')).trim()
    } catch (error) {
      if (!hasCode(error, 'ENOENT')) throw error
    }
    const draft = `${path}.${randomBytes(6).toString('hex')}`
    const file = await open(draft, 'wx', 0o600)
    try {
      await file.writeFile(`${create()}\n`)
      await file.sync()
      // Unlike rename, link fails when another process has created the file.
      await link(draft, path)
    } catch (error) {
      if (!hasCode(error, 'EEXIST')) throw error
    } finally {
      await file.close()
      await unlink(draft)
    }
  }
}
