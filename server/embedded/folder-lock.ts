import { createHash, randomBytes } from 'node:crypto'
import { open, readdir, rename, rm } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { platform } from 'node:os'
import { join, relative } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { hasCode, ignoreMissing } from '../process/errno.js'

/** Maximum milliseconds of a wait for the lock. */
const timeout = 120_000

/** Names of listening sockets in the data folder: a claim, of a process that has the lock or wants it, and a draft of one. */
const sockets = /^start-[\da-f]{12}\.(?:lock|draft)$/

/**
 * Runs a task with mutual exclusion between processes that use the same data folder. Throws an Error after 2 minutes without
 * the lock, or when `signal` ends the wait.
 *
 * A claim is a listening socket in the folder, so that only users who can write to the folder can make one. The system ends it
 * with the process, even by SIGKILL. A process that has made a claim, and then finds no other, has the lock; a process that
 * finds another withdraws its own and tries again. Of two processes, the one that looks later always finds the claim of the
 * other, so never both have the lock.
 */
export async function withFolderLock(folder: string, task: () => Promise<void>, signal?: AbortSignal): Promise<void> {
  if (platform() === 'win32') return withPipe(folder, task, signal)
  const end = performance.now() + timeout
  // A path of a socket has at most about 100 bytes; by a descriptor, the path of the folder doesn't count.
  const handle = platform() === 'linux' ? await open(folder) : undefined
  const at = handle ? `/proc/self/fd/${handle.fd}` : relative('', folder)
  try {
    for (;;) {
      if ((await otherClaims(folder, at)).length === 0) {
        const claim = await makeClaim(folder, at)
        try {
          if (claim && (await otherClaims(folder, at, claim.name)).length === 0) return await task()
        } finally {
          await claim?.withdraw()
        }
      }
      if (performance.now() > end) throw tooLong(folder)
      // Random, so that processes that withdrew at once don’t claim at once again.
      await sleep(10 + Math.random() * 50, undefined, { signal })
    }
  } finally {
    await handle?.close()
  }
}

const tooLong = (folder: string) => new Error(`Another process has been starting PostgreSQL in ${folder} for too long`)

/** The same on Windows, where the lock is the name of a pipe. */
async function withPipe(folder: string, task: () => Promise<void>, signal?: AbortSignal): Promise<void> {
  const path = `\\\\.\\pipe\\auth-${createHash('sha256').update(folder).digest('hex').slice(0, 32)}`
  const server = createServer(socket => socket.destroy())
  for (
    const end = performance.now() + timeout;
    !(await listens(server, { path }));
    await sleep(20, undefined, { signal })
  )
    if (performance.now() > end) throw tooLong(folder)
  await task().finally(() => new Promise(done => server.close(done)))
}

/**
 * Makes a claim. It gets its name once it answers, so that a claim that exists and doesn't answer is that of a process that was
 * killed. Returns undefined when another process took its draft for such a claim.
 */
async function makeClaim(folder: string, at: string) {
  const id = randomBytes(6).toString('hex')
  const name = `start-${id}.lock`
  const draft = `start-${id}.draft`
  const server = createServer(socket => socket.destroy())
  const close = () => new Promise(done => server.close(done))
  await listens(server, { path: join(at, draft) }).catch(({ code }) => {
    throw new Error(
      `${folder} can’t be locked by a Unix socket in it (${code}): set AUTH_DATA_DIR to a folder of a local file system.`,
    )
  })
  try {
    await rename(join(folder, draft), join(folder, name))
  } catch (error) {
    await close()
    return ignoreMissing(error)
  }
  return {
    name,
    async withdraw() {
      // In this order, for the same reason.
      await rm(join(folder, name), { force: true })
      await close()
    },
  }
}

/** Returns the claims of other processes, and deletes the sockets of processes that were killed. */
async function otherClaims(folder: string, at: string, own?: string): Promise<string[]> {
  const claims: string[] = []
  for (const name of await readdir(folder)) {
    if (!sockets.test(name) || name === own) continue
    const found = await answers(join(at, name))
    if (found === 'dead') await rm(join(folder, name), { force: true })
    else if (found === 'alive' && name.endsWith('.lock')) claims.push(name)
  }
  return claims
}

/** Starts listening. Returns false when the address is in use. */
export function listens(server: Server, address: { port: number; host: string } | { path: string }): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error) => {
      server.off('listening', succeeded)
      if (hasCode(error, 'EADDRINUSE')) resolve(false)
      else reject(error)
    }
    const succeeded = () => {
      server.off('error', failed)
      resolve(true)
    }
    server.once('error', failed).once('listening', succeeded).listen(address)
  })
}

/** Whether a process listens at a socket. Any other failure than a refusal may be temporary: then one does. */
function answers(path: string): Promise<'alive' | 'dead' | 'gone'> {
  return new Promise(resolve => {
    const socket = connect({ path })
    socket.once('connect', () => {
      socket.destroy()
      resolve('alive')
    })
    socket.once('error', error => {
      resolve(hasCode(error, 'ECONNREFUSED') ? 'dead' : hasCode(error, 'ENOENT') ? 'gone' : 'alive')
    })
  })
}
