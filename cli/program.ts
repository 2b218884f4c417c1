/**
 * The command line owns its words: commands, questions, output and exit codes. What a command changes, and whether it
 * may, is decided by the models and rules of the server. Nothing imports it but its main.ts.
 */
import { readFileSync } from 'node:fs'
import { Command } from 'commander'
import { addAudit } from './audit.js'
import { type ExitCode, explain } from './failure.js'
import { addInstall } from './install.js'
import { addIssuer } from './issuer.js'
import { addMasterKey } from './masterkey.js'
import { addMigrate } from './migrate.js'
import { addOrganizations } from './organizations.js'
import { printable } from './output.js'
import { addQuestions } from './questions.js'
import { addSigningKeys } from './signingkeys.js'
import { addUsers } from './users.js'

/** Runs a command line (without the program's name), prints why it failed, and returns the exit code. */
export async function run(args: readonly string[]): Promise<ExitCode> {
  try {
    await createProgram().parseAsync(args, { from: 'user' })
    return 0
  } catch (error) {
    const { message, exitCode } = explain(error)
    if (message !== undefined) process.stderr.write(`error: ${message.split('\n').map(printable).join('\n')}\n`)
    if (process.env.AUTH_LOG_LEVEL === 'debug' && exitCode === 1) process.stderr.write(`${(error as Error).stack}\n`)
    return exitCode
  }
}

/** Assembles `auth-admin`. Parsing throws instead of ending the process. */
export function createProgram(): Command {
  const program = new Command('auth-admin')
    .description('Administers the registry: organizations, security questions, users, keys, audit log.')
    .version(version(), '--version', 'print the version')
    .helpOption('-h, --help', 'explain a command')
    .configureOutput({ outputError: (text, print) => print(`${printable(text.trim().replaceAll('\n', ' '))}\n`) })
    .exitOverride()
    .addHelpText(
      'after',
      `
It reads the settings of the service from the environment (DATABASE_URL,
AUTH_DATA_DIR, AUTH_MASTER_KEY, …) and may run while the service runs. What is
missing on the command line is asked for at a terminal, unless --json is given.
Every change leaves an event in the audit log: see \`auth-admin audit list\`.

Exit codes: 0 done, 1 could not be done, 2 wrong command line, 130 stopped by Ctrl-C.

Examples:
  $ auth-admin install
  $ auth-admin organizations add --name 'Escola Azul' --type E
  $ auth-admin users activate '(11)98765-4321' --organization 'Escola Azul'
  $ auth-admin users list --role ROLE_INSTITUTION --json`,
    )
  addInstall(program)
  addMigrate(program)
  addOrganizations(program)
  addQuestions(program)
  addUsers(program)
  addSigningKeys(program)
  addIssuer(program)
  addAudit(program)
  addMasterKey(program)
  return program
}

function version(): string {
  return JSON.parse(readFileSync(new URL(import.meta.resolve('#package')), 'utf8')).version
}
