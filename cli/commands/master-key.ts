import { readMasterKey } from '../../server/process/settings.js'
import type { Command } from '../command.js'
import { fail, misuse } from '../exit-codes.js'
import { announce, withRegistry } from '../local.js'
import { askSecret, canAsk, confirm, readSecret } from '../terminal/ask.js'
import { printJson, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

/** Adds `auth-admin master-key`. */
export function addMasterKey(program: Command): void {
  const masterKey = program
    .command('master-key')
    .description('Manage the key that wraps the data keys of the registry.')

  masterKey
    .command('rotate')
    .local()
    .description('Wrap the data keys with a new master key. All users stay signed in; no hash or seal changes.')
    .option('--new-key-file <file>', 'file with the new key; - for standard input')
    .option('--yes', 'don’t ask at a terminal')
    .json()
    .remarks(`
AUTH_MASTER_KEY is the current key. The new key must have at least 32 bytes, in
base64 or hexadecimal. A terminal prompts for it twice, without showing it.
There is no flag for the key itself, because other users of the system could see
it.

Running services continue. Set AUTH_MASTER_KEY to the new key before the next
start, also with an embedded database: its data folder still has the old key.

If both the database and the master key leaked, this command doesn't help: the
data keys don't change.

Examples:
  $ auth-admin master-key rotate --new-key-file /run/secrets/new-master-key
  $ (umask 077; openssl rand -base64 32 > new-key)
  $ auth-admin master-key rotate --new-key-file new-key`)
    .action(async (options: { newKeyFile?: string; yes?: boolean; json?: boolean }) => {
      if (options.newKeyFile === undefined && !canAsk(options)) {
        misuse('Without a terminal, pass --new-key-file; - is standard input.')
      }
      const database = await announce('Rotating the master key of', options)
      await withRegistry(async ({ registry, change }) => {
        // A script that has the new key can rotate back.
        if (canAsk(options)) await confirm('Every process needs the new key from its next start on. Rotate?', options)
        const key = await chooseKey(options.newKeyFile)
        const rotate = () =>
          change(async t => {
            await registry.dataKeys.rotate(key, t)
            return { result: undefined, event: { action: 'master-key.rotate' } }
          })
        await withProgress('Wrapping the data keys', rotate)
      })
      if (options.json) return printJson({ database, rotated: true })
      say('The data keys are wrapped with the new master key: set AUTH_MASTER_KEY to it before the next start.')
    })
}

async function chooseKey(file: string | undefined): Promise<Buffer> {
  const text = file === undefined ? await askSecret('master key', problemOf) : await readSecret(file, '--new-key-file')
  const problem = problemOf(text)
  return problem === undefined ? readMasterKey(text) : fail(problem)
}

/** What is wrong with a text as a master key. */
function problemOf(text: string): string | undefined {
  try {
    readMasterKey(text)
    return undefined
  } catch (error) {
    return `The new master key can’t be used: ${(error as Error).message}.`
  }
}
