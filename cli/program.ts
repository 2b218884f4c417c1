import { readFileSync } from 'node:fs'
import { Command } from 'commander'
import { addAudit } from './audit.js'
import { addInstall } from './install.js'
import { addOrganizations } from './organizations.js'
import { printable } from './output.js'
import { addQuestions } from './questions.js'
import { addKeys } from './signingkeys.js'
import { addUsers } from './users.js'

/** Assembles `auth-admin`. Parsing throws in place of ending the process. */
export function createProgram(): Command {
  const program = new Command('auth-admin')
    .description('Looks after the registry of users: its organizations, users, keys and record.')
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
Every change is recorded: see \`auth-admin audit list\`.

Exit codes: 0 done, 1 could not be done, 2 wrong command line, 130 stopped by Ctrl-C.

Examples:
  $ auth-admin install
  $ auth-admin organizations add --name 'Escola Azul' --type E
  $ auth-admin users activate '(11)98765-4321' --organization 'Escola Azul'
  $ auth-admin users list --role ROLE_INSTITUTION --json`,
    )
  addInstall(program)
  addOrganizations(program)
  addQuestions(program)
  addUsers(program)
  addKeys(program)
  addAudit(program)
  return program
}

function version(): string {
  return JSON.parse(readFileSync(new URL(import.meta.resolve('#package')), 'utf8')).version
}
