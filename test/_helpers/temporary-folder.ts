import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Teardown } from './database.js'

/** A folder that is deleted when the test ends. */
export async function temporaryFolder(t: Teardown): Promise<string> {
  const path = await mkdtemp(join(tmpdir(), 'auth-test-'))
  t.teardown(() => rm(path, { recursive: true, force: true }))
  return path
}
