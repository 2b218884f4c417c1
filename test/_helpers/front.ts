/** The configuration of the proxies in deploy/, with paths and ports of this machine. */
import { spawn } from 'node:child_process'
import { chmod, readFile, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { createAuthority } from './certificates.js'
import type { Teardown } from './database.js'
import type { Place } from './http2.js'
import { keepLog } from './logged.js'
import type { Spawned } from './spawned.js'
import { temporaryFolder } from './temporary-folder.js'
import { waitFor } from './wait.js'

/** A proxy in front of a service. */
export interface Front {
  /** For the public. */
  readonly https: Place
  /** For internal networks. */
  readonly grpc: Place
  readonly service: Spawned
}

/** Issues the certificates of one front and of the service behind it. */
export const authority = createAuthority('Authority')

/** Name in the certificate that clients see. */
export const servername = 'auth.example.org'

/** A file of deploy/ with each text replaced by another; throws if a text is missing. */
export async function adapted(path: string, replacements: Readonly<Record<string, string>>): Promise<string> {
  let text = await readFile(new URL(`../../../deploy/${path}`, import.meta.url), 'utf8')
  for (const [from, to] of Object.entries(replacements)) {
    if (!text.includes(from)) throw new Error(`${path} lacks ${from}`)
    text = text.replaceAll(from, to)
  }
  return text
}

/** A folder with files of these names and contents, which any user can read; deleted when the test ends. */
export async function folderOf(t: Teardown, files: Record<string, string | Buffer>): Promise<string> {
  const folder = await temporaryFolder(t)
  await chmod(folder, 0o755)
  for (const [name, content] of Object.entries(files)) await writeFile(join(folder, name), content)
  return folder
}

/** Starts a proxy and waits until it listens at a port; it is stopped when the test ends. */
export async function startProxy(t: Teardown, command: string, args: readonly string[], port: number): Promise<void> {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', chunk => {
      output += chunk
      keepLog(String(chunk))
    })
  }
  const ended = new Promise<void>(resolve => child.once('close', () => resolve()))
  t.teardown(async () => {
    child.kill('SIGTERM')
    await ended
  })
  await waitFor(
    () => {
      if (child.exitCode !== null) throw new Error(`${command} ended: ${output}`)
      return listens(port)
    },
    () => output,
  )
}

function listens(port: number): Promise<boolean> {
  return new Promise(resolve => {
    const socket = connect(port, '127.0.0.1', () => resolve(true)).on('error', () => resolve(false))
    socket.on('connect', () => socket.destroy())
  })
}
