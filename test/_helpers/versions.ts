/** Other versions of the programs: copies of the bundle whose migrations differ. */
import { spawnSync } from 'node:child_process'
import { cp, mkdir, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { temporaryFolder } from './backups.js'
import type { Run } from './cli.js'
import type { Teardown } from './database.js'

/** The folder of this version. */
export const root = fileURLToPath(new URL('../../..', import.meta.url))

/** A folder with the next version: this one, and a migration `9999-next.sql`. */
export async function nextVersion(t: Teardown, migration: string): Promise<string> {
  const folder = await temporaryFolder(t)
  await mkdir(join(folder, 'server/database'), { recursive: true })
  for (const part of ['package.json', 'dist/cli', 'dist/server', 'dist/chunks', 'server/database/migrations'])
    await cp(join(root, part), join(folder, part), { recursive: true })
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'))
  await writeFile(join(folder, 'server/database/migrations/9999-next.sql'), migration)
  return folder
}

/** Runs `auth-admin` of the version in a folder. */
export function runVersion(folder: string, env: Record<string, string>, args: readonly string[]): Run {
  const { status, stdout, stderr } = spawnSync(process.execPath, [join(folder, 'dist/cli/main.js'), ...args], {
    env: { PATH: process.env.PATH, ...env },
    encoding: 'utf8',
  })
  return { code: status, stdout, stderr }
}
