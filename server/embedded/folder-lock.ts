import { createHash } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { platform, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { hasCode } from './errno.js'

/** Maximum milliseconds of a wait for the lock. */
const timeout = 120_000

/**
 * Runs a task with mutual exclusion between processes that use the same folder. The lock is the name of a listening
 * socket, which the system releases when the process ends, even by a signal. Throws an Error after 2 minutes without
 * the lock.
 */
export async function withProcessLock(folder: string, task: () => Promise<void>): Promise<void> {
  const name = `auth-${createHash('sha256').update(folder).digest('hex').slice(0, 32)}`
  const path =
    { linux: `\0${name}`, win32: `\\\\.\\pipe\\${name}` }[platform() as string] ?? join(tmpdir(), `${name}.sock`)
  const server = createServer(socket => socket.destroy())
  const end = Date.now() + timeout
  while (!(await listens(server, { path }))) {
    // On macOS the name is a file, which remains after a process is killed.
    if (path.endsWith('.sock') && !(await answers(path))) await rm(path, { force: true })
    if (Date.now() > end) throw new Error(`Another process has been starting PostgreSQL in ${folder} for too long`)
    await sleep(20)
  }
  try {
    await task()
  } finally {
    await new Promise(done => server.close(done))
  }
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

function answers(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect({ path })
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
