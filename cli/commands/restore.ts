// `auth-admin restore`: a command of the machine itself and never of a remote service. While it works no service may run, and
// what it takes, a file and what opens it, is where the administrator is.
import { readFile } from 'node:fs/promises'
import type { Command } from 'commander'
import type { Key } from '../../server/backup/envelope.js'
import type { Erased } from '../../server/backup/restore.js'
import { fail, misuse } from '../exit-codes.js'
import { withRegistry } from '../session.js'
import { askChoice, askKnownSecret, canAsk, readSecret } from '../terminal/ask.js'
import { jsonOption, printJson, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly identity?: string
  readonly passphraseFile?: string
  readonly erasures?: string
  readonly replace?: boolean
  readonly yes?: boolean
  readonly json?: boolean
}

/** Adds `auth-admin restore`. */
export function addRestore(program: Command): void {
  program
    .command('restore')
    .description('Put the registry of a backup into the database, whole or not at all. No service may run meanwhile.')
    .argument('<file>', 'backup, as `auth-admin backup` made it')
    .option('--identity <file>', 'identity file of age that opens it; - for standard input')
    .option('--passphrase-file <file>', 'file of the passphrase that opens it; - for standard input')
    .option('--erasures <file>', 'receipts of users erased since, one JSON document a line: they are erased again')
    .option('--replace', 'do away with the registry that is there, if it holds users')
    .option('--yes', 'with --replace, don’t ask whether it is meant')
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
The database is that of the settings; an embedded one is made if need be. Its
tables are made as they were, filled, and brought up to date: a backup of an
earlier version is as good, one of a newer version is refused. A backup that is
cut off or altered changes nothing.

Afterwards AUTH_MASTER_KEY of this place wraps the data keys. Every token from
before is void, as is every mailed key; passwords, roles, suspensions and
activation keys are as they were in the backup.

Examples:
  $ auth-admin restore registry.age
  $ auth-admin restore registry.age --identity backup.key \\
      --erasures erasures.jsonl --replace --yes`,
    )
    .action(async (file: string, options: Options) => {
      if (options.identity !== undefined && options.passphraseFile !== undefined)
        misuse('Give --identity or --passphrase-file, not both.')
      const { countUsers, inspectBackup, readErasures, restoreBackup } = await import('../../server/backup/restore.js')
      const key = await chooseKey(file, options)
      const erasures = options.erasures === undefined ? [] : readErasures(await readText(options.erasures))
      // All of it, before anything is touched or made.
      const { madeAt } = await withProgress('Reading the backup', () => inspectBackup(file, key))
      const done = await withRegistry(
        async ({ registry, settings, actor }) => {
          const users = await countUsers(registry)
          if (users > 0) await makeSure(users, madeAt, options)
          const how = { replace: options.replace === true, erasures, tokenTtl: settings.tokenTtl, actor }
          return withProgress('Restoring', () => restoreBackup(registry, file, key, how))
        },
        { create: true },
      )
      if (options.json) return printJson(done)
      say(`The registry is as of ${madeAt}; users: ${done.rows.users}.`)
      if (erasures.length > 0) say(erasedAgain(erasures, done.erased.length))
      say('Everybody has to log in again. Check the audit log with `auth-admin audit verify`, then start the service.')
    })
}

async function chooseKey(file: string, options: Options): Promise<Key> {
  const { lockOf } = await import('../../server/backup/envelope.js')
  const lock = await lockOf(file)
  const { identity, passphraseFile } = options
  if (lock === 'recipients') {
    if (identity === undefined)
      return misuse('The backup is for the holder of a key: give its identity file with --identity.')
    return { identities: await readSecret(identity, '--identity') }
  }
  if (passphraseFile !== undefined) return { passphrase: await readSecret(passphraseFile, '--passphrase-file') }
  if (!canAsk(options))
    return misuse('Give the file of the passphrase with --passphrase-file, or - for standard input.')
  return { passphrase: (await askKnownSecret('Passphrase of the backup')).trim() }
}

async function readText(file: string): Promise<string> {
  return readFile(file, 'utf8').catch(({ code }) => fail(`The file of --erasures can’t be read (${code}).`))
}

/** Ends the command unless it is meant to do away with users. */
async function makeSure(users: number, madeAt: string, options: Options): Promise<void> {
  const held = `The registry there holds ${users} ${users === 1 ? 'user' : 'users'}`
  if (!options.replace) fail(`${held}: to do away with it, add --replace.`)
  if (options.yes) return
  if (!canAsk(options)) misuse(`${held}: add --yes if it is to go.`)
  const answer = await askChoice(`${held}. Replace it by that of ${madeAt}?`, [
    { name: 'no', value: 'no' },
    { name: 'yes', value: 'yes' },
  ])
  if (answer === 'no') fail('Nothing was changed.')
}

function erasedAgain(erasures: readonly Erased[], erased: number): string {
  return `${erased} of ${erasures.length} users to erase were in the backup, and are erased again.`
}
