/** Starts a proxy with a folder of its files. */
import { spawn } from 'node:child_process'
import { chmod, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import type { Teardown } from './database.js'
import { keepLog } from './logged.js'
import { temporaryFolder } from './temporary-folder.js'
import { waitFor } from './wait.js'

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
