/**
 * The command line owns its words: commands, questions, output and exit codes. What a command changes, and whether it
 * may, is decided by the models and rules of the server. Nothing imports it but its main.ts.
 */
import { Option } from 'commander'
import { version } from '../server/process/version.js'
import { Command } from './command.js'
import { addApi } from './commands/api.js'
import { addAudit } from './commands/audit.js'
import { addBackup } from './commands/backup.js'
import { addCompletion } from './commands/completion.js'
import { addConfig } from './commands/config.js'
import { addContexts } from './commands/contexts.js'
import { addDoctor } from './commands/doctor.js'
import { addHelp } from './commands/help.js'
import { addImports } from './commands/imports.js'
import { addInstall } from './commands/install.js'
import { addKeys } from './commands/keys.js'
import { addLogin } from './commands/login.js'
import { addMail } from './commands/mail.js'
import { addMasterKey } from './commands/master-key.js'
import { addMigrate } from './commands/migrate.js'
import { addOrganizations } from './commands/organizations.js'
import { addQuestions } from './commands/questions.js'
import { addRestore } from './commands/restore.js'
import { addServices } from './commands/services.js'
import { addTotp } from './commands/totp.js'
import { addUsers } from './commands/users.js'
import { addVerbs } from './commands/verbs.js'
import { type ExitCode, explain } from './exit-codes.js'
import { readText } from './terminal/ask.js'
import { inTerminalLanguage } from './terminal/language.js'
import { printable, printJson } from './terminal/output.js'

/** Runs a command line (without the program's name), prints why it failed, and returns the exit code. */
export async function run(args: readonly string[]): Promise<ExitCode> {
  try {
    await createProgram().parseAsync(args, { from: 'user' })
    return 0
  } catch (error) {
    return report(error, args)
  }
}

/** Prints why a command line failed, and returns the exit code. */
export async function report(error: unknown, args: readonly string[]): Promise<ExitCode> {
  const { exitCode, message: english, ...details } = await explain(error)
  const message = english === undefined ? undefined : inTerminalLanguage(english)
  if (message !== undefined) {
    process.stderr.write(`${inTerminalLanguage('error')}: ${message.split('\n').map(printable).join('\n')}\n`)
    if (args.includes('--json')) printJson({ error: { message, ...details, exitCode } })
  }
  if (process.env.AUTH_LOG_LEVEL === 'debug' && message !== undefined)
    process.stderr.write(`${(error as Error).stack}\n`)
  return exitCode
}

/** Assembles `auth-admin`. Parsing throws instead of ending the process. */
export function createProgram(): Command {
  const program = new Command('auth-admin')
    .description('Administer the registry: users, organizations, security questions, services, keys, audit log.')
    .version(version, '--version', 'print the version')
    .helpOption('-h, --help', 'print help for a command')
    .configureHelp({
      showGlobalOptions: true,
      subcommandTerm: command => command.name(),
      styleTitle: inTerminalLanguage,
      styleDescriptionText: inTerminalLanguage,
      styleUsage: usage => usage.replace(/\[(options|command)\]/g, inTerminalLanguage),
    })
    // `help` of every depth is below.
    .helpCommand(false)
    .option('--local', 'connect directly to the database, with the settings of the service')
    .addOption(
      new Option(
        '--context <name>',
        'use the server of this context; overrides AUTH_CONTEXT and the current context',
      ).conflicts('local'),
    )
    .option(
      '--reason <text>',
      'reason for the audit log; required on the database itself to change administrators or passwords',
      readText,
    )
    // `run` prints it, as any failure.
    .configureOutput({ outputError() {} })
    .exitOverride()
    .remarks(`
It reads the settings of the service from the environment (DATABASE_URL,
AUTH_DATA_DIR, AUTH_MASTER_KEY, …) and may run while the service runs. After
\`auth-admin login\` it works on that server instead: in the context of --context,
else of the variable AUTH_CONTEXT, else in the current one. --local takes
precedence. At a terminal it prompts for missing arguments, unless you pass
--json. Every change adds an event to the audit log: see
\`auth-admin audit list\`.

Exit codes: 0 done, 1 failed or declined, 2 usage or a wrong field, 3 not found,
4 not signed in or not allowed, 5 refused by the current state, 6 done in part,
7 try again later, 130 stopped by Ctrl-C.`)
    .examples(
      'install',
      "organizations create 'Escola Azul' --type E",
      "users activate '(11)98765-4321' --organization 'Escola Azul'",
      'users list --role ROLE_INSTITUTION --json',
    )
  program.commandsGroup('Session:')
  addLogin(program)
  addContexts(program)
  addTotp(program)
  program.commandsGroup('Registry:')
  addUsers(program)
  addOrganizations(program)
  addQuestions(program)
  addServices(program)
  addMail(program)
  addKeys(program)
  addImports(program)
  addAudit(program)
  addApi(program)
  addVerbs(program)
  program.commandsGroup('Operation:')
  addInstall(program)
  addMigrate(program)
  addMasterKey(program)
  addBackup(program)
  addRestore(program)
  addConfig(program)
  addDoctor(program)
  program.commandsGroup('Help:')
  addHelp(program)
  addCompletion(program)
  return program
}
