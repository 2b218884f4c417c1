/** Folders and files that tests write. */
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test from 'ava'

/** A folder for the tests of a file, removed after them: `at` is the path of a name in it, `file` writes a file with a new name. */
export function folderForFile() {
  let folder: string
  let files = 0
  test.before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'auth-test-'))
  })
  test.after.always(() => rm(folder, { recursive: true, force: true }))
  const at = (name: string) => join(folder, name)
  return {
    at,
    async file(content: string | Buffer, extension = 'csv'): Promise<string> {
      const path = at(`${++files}.${extension}`)
      await writeFile(path, content)
      return path
    },
  }
}
