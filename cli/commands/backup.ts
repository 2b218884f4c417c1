// `auth-admin backup`: a command of the machine itself and never of a remote service. It reads whole tables and the master
// key, which no caller may ask for over a network, and leaves a file where the administrator is.
import { existsSync } from 'node:fs'
import { writeFile } from 'node:fs/promises'
import { type Command, Option } from 'commander'
import type { Lock } from '../../server/backup/envelope.js'
import { fail, misuse } from '../exit-codes.js'
import { withRegistry } from '../session.js'
import { readSecret } from '../terminal/ask.js'
import { jsonOption, printJson, say } from '../terminal/output.js'
import { withProgress } from '../terminal/progress.js'

interface Options {
  readonly recipient?: readonly string[]
  readonly passphraseFile?: string
  readonly json?: boolean
}

/** Adds `auth-admin backup`. */
export function addBackup(program: Command): void {
  program
    .command('backup')
    .description('Write the whole registry, with its master key, into one encrypted file, while the service runs.')
    .argument('<file>', 'file to make; one that is there already is left as it is')
    .addOption(
      new Option('--recipient <key>', 'public key of age (age1…) whose holder may open it; may be repeated').argParser(
        addRecipient,
      ),
    )
    .option(
      '--passphrase-file <file>',
      'file of the passphrase, made with a new one when it isn’t there; - for standard input',
    )
    .addOption(jsonOption())
    .addHelpText(
      'after',
      `
The file is in the format of age (https://age-encryption.org), which opens it,
too. Whoever opens it has everything, so keep what opens it apart from it.
Without --recipient and --passphrase-file a new passphrase of 128 bits is shown
once, at a terminal only. Everything in the file is as it was at one moment;
signing keys, mailed keys and e-mails that wait are left out.

Examples:
  $ auth-admin backup registry.age
  $ auth-admin backup "registry-$(date +%F).age" --recipient "$(cat backup.pub)"`,
    )
    .action(async (file: string, options: Options) => {
      if (options.recipient && options.passphraseFile !== undefined)
        misuse('Give --recipient or --passphrase-file, not both.')
      const shows = !options.recipient && options.passphraseFile === undefined
      if (shows && (options.json || !process.stderr.isTTY))
        misuse('Give --recipient or --passphrase-file: a passphrase is shown at a terminal only, not to a log.')
      if (existsSync(file)) fail(`${file} is there already: name another file.`)
      const lock = await chooseLock(options)
      const made = await withRegistry(async ({ registry, change }) => {
        const { makeBackup } = await import('../../server/backup/dump.js')
        const record = ({ madeAt }: { madeAt: string }) =>
          change(async () => {
            return { result: undefined, event: { action: 'registry.backup', object: `backup:${madeAt}` } }
          })
        return withProgress('Writing the backup', () => makeBackup(registry, file, lock, record)).catch(explainFile)
      })
      if (options.json) return printJson({ file, ...made })
      say(`${file} holds the registry as of ${made.madeAt}; users: ${made.rows.users}.`)
      if (shows && 'passphrase' in lock)
        process.stderr.write(`Passphrase, shown this once; without it nobody opens the file: ${lock.passphrase}\n`)
    })
}

/** What is wrong with it is said later, without repeating it: it may be the secret half, given by mistake. */
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
    await writeFile(passphraseFile, content, { flag: 'wx', mode: 0o600 }).catch(({ code }) =>
      fail(`The file of --passphrase-file can’t be made (${code}).`),
    )
  }
  const passphrase = await readSecret(passphraseFile, '--passphrase-file')
  if ([...passphrase].length < 16)
    fail('The passphrase is too short for a file that others may copy: use 16 characters or more.')
  return { passphrase }
}

/** What the system says of the file, as a sentence. */
function explainFile(error: NodeJS.ErrnoException): never {
  if (error.syscall && /^(open|write|rename|fsync|close)$/.test(error.syscall))
    fail(`The backup can’t be written (${error.code}).`)
  throw error
}
