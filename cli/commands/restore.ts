// `auth-admin restore` runs on the machine itself, never on a remote service: no service may run meanwhile, and the backup and
// its key are local files.
import { readFile } from 'node:fs/promises'
import type { Key } from '../../server/backup/envelope.js'
import type { Erased } from '../../server/backup/restore.js'
import type { Command } from '../command.js'
import { fail, misuse } from '../exit-codes.js'
import { announce, withRegistry } from '../local.js'
import { askKnownSecret, canAsk, confirm, readSecret } from '../terminal/ask.js'
import { camelCased, printJson, say } from '../terminal/output.js'
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
    .local()
    .description('Restore the registry from a backup, completely or not at all. Stop the service first.')
    .argument('<file>', 'backup, as `auth-admin backup` made it')
    .option('--identity <file>', 'age identity file that opens the backup; - for standard input')
    .option('--passphrase-file <file>', 'file with the passphrase that opens the backup; - for standard input')
    .option(
      '--erasures <file>',
      'receipts that `users erase --json` printed since the backup, or events that `audit list --jsonl` printed before the restore; these users are erased again',
    )
    .option('--replace', 'replace an existing registry that has users')
    .yes()
    .json()
    .remarks(`
It restores into the database of the settings, and creates an embedded one if
needed. It creates and fills the tables as they were, and migrates them. It
refuses backups of newer versions. An incomplete or altered backup changes
nothing.

Afterwards the current AUTH_MASTER_KEY wraps the data keys. Earlier tokens and
mailed keys are invalid, and services have no keys. Passwords, roles,
suspensions and activation keys are as they were in the backup; users who
deleted their accounts since are there again, except those of --erasures.`)
    .examples(
      'restore registry.age',
      `restore registry.age --identity backup.key \\
      --erasures erasures.jsonl --replace --yes`,
    )
    .action(async (file: string, options: Options) => {
      if (options.identity !== undefined && options.passphraseFile !== undefined)
        misuse('Pass --identity or --passphrase-file, not both.')
      const { countUsers, inspectBackup, readErasures, restoreBackup } = await import('../../server/backup/restore.js')
      const { unlock } = await import('../../server/backup/envelope.js')
      const database = await announce('Restoring into', options)
      const key = await chooseKey(file, options)
      const erasures = options.erasures === undefined ? [] : readErasures(await readText(options.erasures))
      // Completely, before anything changes.
      const { backup, madeAt } = await withProgress('Reading the backup', async () => {
        const backup = await unlock(file, key)
        return { backup, ...(await inspectBackup(backup)) }
      })
      const done = await withRegistry(
        async ({ registry, settings, actor }) => {
          const users = await countUsers(registry)
          if (users > 0) await makeSure(users, madeAt, options)
          const how = { replace: options.replace === true, erasures, tokenTtl: settings.tokenTtl, actor }
          return withProgress('Restoring', () => restoreBackup(registry, backup, how))
        },
        { create: true },
      )
      const { madeAt: backupTime, ...rest } = done
      if (options.json) return printJson({ database, backupTime, ...camelCased(rest) })
      say(`The registry is as of ${madeAt}; users: ${done.rows.users}.`)
      if (erasures.length > 0) say(erasedAgain(erasures, done.erased.length))
      else say('Users who deleted their accounts since the backup are there again: see --erasures.')
      say('Check the audit log with `auth-admin audit verify --local`, then start the service.')
      const services = done.rows.services ?? 0
      if (services === 0) return say('All users have to sign in again.')
      say(
        `All users have to sign in again, and services (${services}) get 401 until each has a new key: \`auth-admin services keys add NAME\`.`,
      )
    })
}

async function chooseKey(file: string, options: Options): Promise<Key> {
  const { lockOf } = await import('../../server/backup/envelope.js')
  const lock = await lockOf(file)
  const { identity, passphraseFile } = options
  if (lock === 'recipients') {
    if (identity === undefined)
      return misuse('The backup is encrypted for a recipient: pass the identity file with --identity.')
    return { identities: await readSecret(identity, '--identity') }
  }
  if (passphraseFile !== undefined) return { passphrase: await readSecret(passphraseFile, '--passphrase-file') }
  if (!canAsk(options)) return misuse('Without a terminal, pass --passphrase-file; - is standard input.')
  return { passphrase: (await askKnownSecret('Passphrase of the backup')).trim() }
}

async function readText(file: string): Promise<string> {
  return readFile(file, 'utf8').catch(({ code }) => fail(`The file of --erasures can’t be read (${code}).`))
}

/** Ends the command unless existing users may be replaced. */
async function makeSure(users: number, madeAt: string, options: Options): Promise<void> {
  const held = `The existing registry has ${users} ${users === 1 ? 'user' : 'users'}`
  if (!options.replace) fail(`${held}: to replace it, pass --replace.`)
  if (!options.yes && !canAsk(options)) misuse(`${held}: without a terminal, pass --yes to replace it.`)
  await confirm(`${held}. Replace it with the backup of ${madeAt}?`, options)
}

function erasedAgain(erasures: readonly Erased[], erased: number): string {
  return `${erased} of ${erasures.length} erased users were in the backup, and are erased again.`
}
