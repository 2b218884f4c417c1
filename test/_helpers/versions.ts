/** Other versions of the programs: copies of the build whose migrations differ. */
import { execFile } from 'node:child_process'
import { readdirSync } from 'node:fs'
import { cp, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Run } from './cli.js'
import type { Teardown } from './database.js'
import { temporaryFolder } from './temporary-folder.js'

/** The folder of this version. */
export const root = fileURLToPath(new URL('../../..', import.meta.url))

/** The migrations of this version, in order. */
export const migrations = readdirSync(join(root, 'dist/server/database/migrations')).sort()

/** A folder with the next version: this one, and a migration `9999-next.sql`, or migrations by their names. */
export async function nextVersion(t: Teardown, given: string | Readonly<Record<string, string>>): Promise<string> {
  const more = typeof given === 'string' ? { '9999-next.sql': given } : given
  const folder = await temporaryFolder(t)
  for (const part of ['package.json', 'dist/cli', 'dist/gateway', 'dist/proto', 'dist/server'])
    await cp(join(root, part), join(folder, part), { recursive: true })
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'))
  for (const [name, text] of Object.entries(more))
    await writeFile(join(folder, 'dist/server/database/migrations', name), text)
  return folder
}

/** Runs `auth-admin` of the version in a folder. */
export function runVersion(folder: string, env: Record<string, string>, args: readonly string[]): Promise<Run> {
  const options = { env: { PATH: process.env.PATH, ...env } }
  return new Promise(resolve => {
    const program = [join(folder, 'dist/cli/main.js'), ...args]
    const child = execFile(process.execPath, program, options, (_, stdout, stderr) =>
      resolve({ code: child.exitCode, stdout, stderr }),
    )
  })
}
