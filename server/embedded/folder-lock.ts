import { createHash } from 'node:crypto'
import { rm } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import { platform, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { has } from './errno.js'

/** Milliseconds after which another process must have done its task. */
const timeout = 120_000

/**
 * Runs a task while no other process runs one for the same folder. The lock is a socket name, which the system frees
 * however a process ends.
 */
export async function withProcessLock(folder: string, task: () => Promise<void>): Promise<void> {
  const name = `auth-${createHash('sha256').update(folder).digest('hex').slice(0, 32)}`
  const path =
    { linux: `\0${name}`, win32: `\\\\.\\pipe\\${name}` }[platform() as string] ?? join(tmpdir(), `${name}.sock`)
  const server = createServer(socket => socket.destroy())
  const end = Date.now() + timeout
  while (!(await listens(server, { path }))) {
    // Elsewhere the name is a file, which a process that was killed leaves behind.
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

/** Whether the server got the place; false when another has it. */
export function listens(server: Server, where: { port: number; host: string } | { path: string }): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const failed = (error: Error) => {
      server.off('listening', succeeded)
      if (has(error, 'EADDRINUSE')) resolve(false)
      else reject(error)
    }
    const succeeded = () => {
      server.off('error', failed)
      resolve(true)
    }
    server.once('error', failed).once('listening', succeeded).listen(where)
  })
}

function answers(path: string): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect({ path })
    socket.once('connect', () => resolve(true)).once('error', () => resolve(false))
    socket.once('connect', () => socket.destroy())
  })
}
