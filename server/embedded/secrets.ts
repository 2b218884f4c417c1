import { randomBytes } from 'node:crypto'
import { link, mkdir, open, readFile, unlink } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { has } from './errno.js'

/**
 * The secrets of an embedded set-up, each made once and kept in a file of the data folder that only its owner reads:
 * `master-key` (for AUTH_MASTER_KEY, in base64) and `database-password`. Makes the folder when there is none.
 */
export async function embeddedSecrets(dataDir: string): Promise<{ masterKey: Buffer; databasePassword: string }> {
  const folder = resolve(dataDir)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  const masterKey = await keep(join(folder, 'master-key'), () => randomBytes(32).toString('base64'))
  const databasePassword = await keep(join(folder, 'database-password'), () => randomBytes(24).toString('hex'))
  return { masterKey: Buffer.from(masterKey, 'base64'), databasePassword }
}

/** The content of a file, made when there is none. All processes get the same, and never a part of it. */
async function keep(path: string, make: () => string): Promise<string> {
  for (;;) {
    try {
      return (await readFile(path, 'utf8')).trim()
    } catch (error) {
      if (!has(error, 'ENOENT')) throw error
    }
    const draft = `${path}.${randomBytes(6).toString('hex')}`
    const file = await open(draft, 'wx', 0o600)
    try {
      await file.writeFile(`${make()}\n`)
      await file.sync()
      // Unlike rename, link fails when another process was first.
      await link(draft, path)
    } catch (error) {
      if (!has(error, 'EEXIST')) throw error
    } finally {
      await file.close()
      await unlink(draft)
    }
  }
}
