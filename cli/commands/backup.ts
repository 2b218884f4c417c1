// `auth-admin backup` runs on the machine itself, never on a remote service: it reads whole tables and the master key, and
// writes a local file.
import { existsSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { extname, join } from 'node:path'
import type { Lock } from '../../server/backup/envelope.js'
import type { Command } from '../command.js'
import { fail, misuse } from '../exit-codes.js'
import { withRegistry } from '../local.js'
import { readNumber, readSecret } from '../terminal/ask.js'
import { camelCased, note, printJson, say, warn } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly recipient?: readonly string[]
  readonly passphraseFile?: string
  readonly keep?: number
  readonly json?: boolean
}

/** Adds `auth-admin backup`. */
export function addBackup(program: Command): void {
  program
    .command('backup')
    .local()
    .description('Write the registry, with its master key, to one encrypted file. The service can keep running.')
    .argument(
      '<file>',
      'file to create, such as registry.age, never overwritten; in an existing folder, its name is the time',
    )
    .option('--recipient <key>', 'public key of age (age1…) that can open it; can be repeated', addRecipient)
    .option(
      '--passphrase-file <file>',
      'file with the passphrase, created with a new one if missing; - for standard input',
    )
    .option('--keep <number>', 'if <file> is a folder, keep only this many of the newest backups', readNumber(1))
    .json()
    .remarks(`
The file has the format of age (https://age-encryption.org). The age command can
also open it. Keep the key or passphrase apart from the file. Without
--recipient and --passphrase-file, a new passphrase of 128 bits is shown once,
at a terminal only. The backup is a consistent snapshot, without signing keys,
mailed keys and queued e-mails.

In a folder, the name of the file is registry-2026-11-22T030000Z.age, in UTC.
--keep deletes only files with such names: use one folder for each registry. It
deletes them only after the new backup is complete.`)
    .examples('backup registry.age', 'backup backups --recipient "$(cat backup.pub)" --keep 30')
    .action(async (target: string, options: Options) => {
      if (options.recipient && options.passphraseFile !== undefined)
        misuse('Pass --recipient or --passphrase-file, not both.')
      const shows = !options.recipient && options.passphraseFile === undefined
      if (shows && (options.json || !process.stderr.isTTY))
        misuse('Without a terminal, pass --recipient or --passphrase-file.')
      const { removeOldest, timedName } = await import('../../server/backup/folder.js')
      const inFolder = await stat(target).then(
        found => found.isDirectory(),
        () => false,
      )
      const { keep } = options
      if (keep !== undefined && !inFolder) misuse('--keep needs an existing folder instead of a file.')
      const file = inFolder ? join(target, timedName()) : target
      // Without an ending, it would be a file where a folder is missing, for example not mounted.
      if (!existsSync(target) && (extname(target) === '' || target.endsWith('/')))
        fail(`There is no folder ${target}: create it, or name a file with an ending, such as registry.age.`)
      if (existsSync(file)) fail(`${file} exists already: choose another file.`)
      const lock = await chooseLock(options)
      const made = await withRegistry(async ({ registry, change }) => {
        const { makeBackup } = await import('../../server/backup/dump.js')
        const record = ({ madeAt }: { madeAt: string }) =>
          change(async () => {
            return { result: undefined, event: { action: 'registry.backup', object: `backup:${madeAt}` } }
          })
        return withProgress('Writing the backup', () => makeBackup(registry, file, lock, record)).catch(explainFile)
      })
      if (!options.json) say(`${file} holds the registry as of ${made.madeAt}; users: ${made.rows.users}.`)
      if (made.newer?.length)
        warn(
          `The tables are of a newer version (${made.newer.join(', ')}): the file lacks what is in its new tables, and is restored with it.`,
        )
      if (shows && 'passphrase' in lock)
        note(`Passphrase, shown only once; the file can’t be opened without it: ${lock.passphrase}`)
      const deleted = keep === undefined ? undefined : await removeOldest(target, keep).catch(explainOld)
      if (options.json) return printJson({ file, backupTime: made.madeAt, rows: camelCased(made.rows), deleted })
      for (const name of deleted ?? []) say(`${join(target, name)} is deleted.`)
    })
}

/** Checked later, without an error that repeats it: it may be the secret half by mistake. */
function addRecipient(value: string, before: readonly string[] = []): readonly string[] {
  return [...before, value]
}

async function chooseLock({ recipient, passphraseFile }: Options): Promise<Lock> {
  const { newPassphrase, recipientProblem } = await import('../../server/backup/envelope.js')
  if (recipient) {
    const problem = recipient.map(recipientProblem).find(Boolean)
    return problem === undefined ? { recipients: recipient } : misuse(`--recipient: ${problem}`)
  }
  if (passphraseFile === undefined) return { passphrase: newPassphrase() }
  if (passphraseFile !== '-' && !existsSync(passphraseFile)) {
    const content = `${newPassphrase()}\n`
    const { writePrivateFile } = await import('../../server/process/private-file.js')
    await writePrivateFile(passphraseFile, content, { isNew: true }).catch(({ code, message }) =>
      fail(code ? `The file of --passphrase-file can’t be made (${code}).` : message),
    )
    note(`${passphraseFile} is created, with a new passphrase: keep it apart from the backup.`)
  }
  const passphrase = await readSecret(passphraseFile, '--passphrase-file')
  if ([...passphrase].length < 16) fail('The passphrase is too short: use 16 characters or more.')
  return { passphrase }
}

/** What the system says of the file, as a sentence. */
function explainFile(error: NodeJS.ErrnoException): never {
  if (error.syscall && /^(open|write|rename|fsync|close|scandir|unlink)$/.test(error.syscall))
    fail(`The backup can’t be written (${error.code}).`)
  throw error
}

/** The backup is complete, and the exit code says that something remains to be done. */
function explainOld({ code }: NodeJS.ErrnoException): never {
  fail(`The backup is complete, but older ones can’t be deleted (${code}).`, 6)
}
