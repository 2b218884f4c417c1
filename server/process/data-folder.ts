// The data folder, AUTH_DATA_DIR: used only where this process's user or root owns it, and no other user can write to it.
import { constants } from 'node:fs'
import { access, lstat, realpath, stat } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { accessProblem, makeFolder } from './private-file.js'

/** Creates the data folder if needed, and returns its real path. Throws an Error that says what to do if it can't be used. */
export async function openDataFolder(dataDir: string): Promise<string> {
  await checkDataFolder(dataDir)
  await makeFolder(resolve(dataDir)).catch(error => {
    throw unusable(dataDir, `can’t be created (${error.code})`)
  })
  await access(dataDir, constants.W_OK | constants.X_OK).catch(({ code }) => {
    throw unusable(dataDir, `isn’t writable (${code})`)
  })
  return realpath(dataDir)
}

/** Throws an Error that says what to do if something exists at the path of the data folder that can't be used as one. */
export async function checkDataFolder(dataDir: string): Promise<void> {
  const path = absolute(dataDir)
  const see = (error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined
    throw unusable(dataDir, error.code === 'ENOTDIR' ? 'is below a file' : `can’t be read (${error.code})`)
  }
  const entry = await lstat(path).catch(see)
  if (!entry) return
  const found = entry.isSymbolicLink() ? await stat(path).catch(see) : entry
  if (!found) throw unusable(dataDir, 'is a link to a folder that doesn’t exist')
  if (!found.isDirectory()) throw unusable(dataDir, 'isn’t a folder')
  // A link that another user made could lead to any folder of root. The mode of a link means nothing.
  const problem = accessProblem(path, found) ?? accessProblem(path, { ...entry, mode: entry.mode & ~0o022 })
  if (problem) throw new Error(`AUTH_DATA_DIR: ${problem}`)
}

function absolute(dataDir: string): string {
  try {
    return resolve(dataDir)
  } catch {
    throw new Error(
      `AUTH_DATA_DIR: ${dataDir} is relative to the current folder, which no longer exists. Go to another folder, or set it to an absolute path.`,
    )
  }
}

function unusable(dataDir: string, what: string): Error {
  return new Error(
    `AUTH_DATA_DIR: ${resolve(dataDir)} ${what}. Set it to a folder that this user can create and write to, not shared with other users.`,
  )
}

/**
 * Returns the paths at which a registry can have the generated password of its first administrator: the usual one, and its own
 * one, where another registry took the usual one first.
 */
export function adminPasswordFiles(dataDir: string, registry: string): [usual: string, own: string] {
  const usual = join(dataDir, 'initial-admin-password')
  return [usual, `${usual}-${registry}`]
}
