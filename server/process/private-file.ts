/**
 * Files that only their owner can read: secrets of an installation, sessions, exports, backups. Other users of the machine
 * can neither read them nor have them written elsewhere: no function here follows a symbolic link, and each file is new,
 * and takes its name only when it is complete.
 */
import { randomBytes } from 'node:crypto'
import { createWriteStream, rmSync, type Stats } from 'node:fs'
import { constants, type FileHandle, link, lstat, mkdir, open, rename, stat } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import type { Writable } from 'node:stream'
import { finished } from 'node:stream/promises'
import { hasCode, ignoreMissing } from './errno.js'

/** A file that is being written. */
interface PrivateFile {
  readonly stream: Writable
  /**
   * Ends the stream, flushes the file to the disk, and gives it its name. Throws an Error with code EEXIST where the file
   * must be new and another process has created it meanwhile.
   */
  commit(): Promise<void>
  /** Deletes the incomplete file. Does nothing after `commit`. */
  discard(): Promise<void>
}

/** Whether a path is an open file of this process, such as `/dev/stdout`. No other process can have made it. */
function isDescriptor(path: string): boolean {
  return /^\/(dev\/(std(out|err)|fd\/\d+)|proc\/self\/fd\/\d+)$/.test(resolve(path))
}

/**
 * Creates a file with mode 0600 beside `path`, which replaces a file there when it is complete. `draft` is its path until
 * then. With `isNew`, no file is replaced. The incomplete file is deleted when this process exits, except by SIGKILL.
 * Throws an Error that says what to do when something stands at `path` that isn't a regular file of this user.
 */
export async function openPrivateFile(
  path: string,
  { isNew = false, draft = `${path}.${randomBytes(6).toString('hex')}.partial` } = {},
): Promise<PrivateFile> {
  if (isDescriptor(path)) {
    const stream = createWriteStream(path)
    return { stream, commit: () => end(stream), discard: async () => void stream.destroy() }
  }
  await checkReplaceable(path)
  const file = await open(draft, 'wx', 0o600)
  const stream = file.createWriteStream({ flush: true })
  const remove = () => rmSync(draft, { force: true })
  process.once('exit', remove)
  const settle = () => {
    process.off('exit', remove)
    remove()
  }
  // A failed write is reported by `commit`.
  stream.on('error', () => {})
  return {
    stream,
    async commit() {
      try {
        await end(stream)
        await (isNew ? renameToNew(draft, path) : rename(draft, path))
      } finally {
        settle()
      }
    },
    async discard() {
      stream.destroy()
      settle()
    },
  }
}

async function end(stream: Writable): Promise<void> {
  const done = finished(stream)
  stream.end()
  await done
}

/** Unlike rename, link fails when the file exists; some file systems, such as FAT, have no links. */
async function renameToNew(from: string, to: string): Promise<void> {
  try {
    await link(from, to)
  } catch (error) {
    if (hasCode(error, 'EEXIST') || (await lstat(to).catch(ignoreMissing))) throw error
    await rename(from, to)
  }
}

/** Writes a file of `openPrivateFile`. */
export async function writePrivateFile(
  path: string,
  content: string | Buffer,
  options?: { isNew: boolean },
): Promise<void> {
  const file = await openPrivateFile(path, options)
  file.stream.write(content)
  await file.commit()
}

/** Reads a text file. Throws an Error that says what to do when another user owns it or can write to it. */
export async function readPrivateFile(path: string): Promise<string> {
  const file = await open(path, constants.O_RDONLY | noFollow).catch(error => {
    throw hasCode(error, 'ELOOP') ? new Error(`${path} is a symbolic link: replace it by the file itself.`) : error
  })
  try {
    await checkOwner(path, file)
    return await file.readFile('utf8')
  } finally {
    await file.close()
  }
}

// Windows has neither.
const noFollow = constants.O_NOFOLLOW ?? 0

async function checkOwner(path: string, file: FileHandle): Promise<void> {
  const found = await file.stat()
  if (!found.isFile()) throw new Error(`${path} is not a regular file: move it away.`)
  const problem = accessProblem(path, found)
  if (problem) throw new Error(problem)
}

async function checkReplaceable(path: string): Promise<void> {
  const found = await lstat(path).catch(ignoreMissing)
  if (!found) return
  if (found.isSymbolicLink())
    throw new Error(`${path} is a symbolic link, and what it points to is not overwritten: name the file itself.`)
  if (!found.isFile()) throw new Error(`${path} exists and is not a regular file: choose another file.`)
  if (!isOwn(found)) throw new Error(`${path} belongs to another user: choose another file, or remove it.`)
}

/** Whether this process's user or root owns a file. Windows has no such owners. */
function isOwn({ uid }: Pick<Stats, 'uid'>): boolean {
  const self = process.geteuid?.()
  return self === undefined || uid === self || uid === 0
}

/**
 * What is wrong with the owner or the mode of a file or folder that only this user and root may change, as a sentence that
 * says what to do. The members of a group may have write permission where root gave it, or where this process is a member:
 * Kubernetes makes volumes writable for a group (fsGroup).
 */
export function accessProblem(path: string, found: Pick<Stats, 'uid' | 'gid' | 'mode'>): string | undefined {
  const self = process.geteuid?.()
  if (self === undefined) return undefined
  if (!isOwn(found))
    return `${path} belongs to user ${found.uid}, but this process runs as user ${self}: run it as user ${found.uid}, or \`chown ${self}\` it if you trust what is in it.`
  if (found.mode & 0o002) return `${path} is writable by every user: \`chmod o-w\` it if you trust what is in it.`
  const trusted = found.uid === 0 || found.gid === process.getegid!() || process.getgroups!().includes(found.gid)
  if (found.mode & 0o020 && !trusted)
    return `${path} is writable by group ${found.gid}: \`chmod g-w\` it if you trust what is in it.`
  return undefined
}

const isFolder = async (path: string) => (await stat(path).catch(ignoreMissing))?.isDirectory() === true

/**
 * Creates a folder and its parents, for its owner only, unless it exists. mkdir's own `recursive` never returns below a folder
 * such as /proc, in which nothing can be created.
 */
export async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path, 0o700)
  } catch (error) {
    if (hasCode(error, 'EEXIST') && (await isFolder(path))) return
    if (!hasCode(error, 'ENOENT') || dirname(path) === path) throw error
    await makeFolder(dirname(path))
    await mkdir(path, 0o700).catch(async again => {
      if (!hasCode(again, 'EEXIST') || !(await isFolder(path))) throw again
    })
  }
}
