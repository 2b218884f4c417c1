/** Node.js 24, from the package registry. */
import { execFileSync } from 'node:child_process'
import { mkdir } from 'node:fs/promises'
import { join } from 'node:path'

/** Downloads Node.js 24 into a folder, and returns the path of its program. */
export async function node24In(folder: string): Promise<string> {
  const to = join(folder, 'node24')
  await mkdir(to)
  const run = (command: string, ...args: string[]) =>
    execFileSync(command, args, { cwd: to, encoding: 'utf8', stdio: 'pipe' }).trim()
  // Other versions of Node.js come as packages. Their documentation and headers stay packed.
  run('tar', '-xzf', run('npm', 'pack', '--silent', `node-${process.platform}-${process.arch}@24`), 'package/bin/node')
  return join(to, 'package/bin/node')
}
