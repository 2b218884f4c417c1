import { CommanderError } from 'commander'

/** Exit codes: 1, it couldn't be done; 2, the command line is wrong; 130, stopped by Ctrl-C. */
export type ExitCode = 0 | 1 | 2 | 130

/** Why a command ends without having done its work, in a sentence that says what to do. It holds no secret. */
export class Failure extends Error {
  constructor(
    message: string,
    readonly exitCode: ExitCode = 1,
  ) {
    super(message)
  }
}

/** Throws a failure. */
export function fail(message: string): never {
  throw new Failure(message)
}

/** Throws the failure of a command line that lacks something or makes no sense. */
export function misuse(message: string): never {
  throw new Failure(message, 2)
}

/** What to print of anything that was thrown, and the exit code. There is no message when nothing needs saying. */
export function explain(error: unknown): { message?: string; exitCode: ExitCode } {
  if (error instanceof Failure) return { message: error.message, exitCode: error.exitCode }
  // Commander has printed it.
  if (error instanceof CommanderError) return { exitCode: error.exitCode === 0 ? 0 : 2 }
  const { name, message } = error as Error
  if (name === 'ExitPromptError') return { exitCode: 130 }
  return { message: databaseFailure(error) ?? (isOurs(error) ? message : unforeseen(error)), exitCode: 1 }
}

/** Our own errors are plain; others may quote what they were given. */
function isOurs(error: unknown): boolean {
  const { name, code } = error as { name?: string; code?: unknown }
  return name === 'Error' && (code === undefined || typeof code === 'number')
}

function unforeseen(error: unknown): string {
  const { name, code } = cause(error)
  return `This is a fault of the program (${[name, code].filter(Boolean).join(' ')}); AUTH_LOG_LEVEL=debug shows where.`
}

function cause(error: unknown): { name?: string; code?: string; message?: string } {
  return (error as { original?: object })?.original ?? (error as object)
}

/** A sentence for what PostgreSQL and its driver report, by SQLSTATE or socket code. */
function databaseFailure(error: unknown): string | undefined {
  const { code = '', message = '' } = cause(error)
  const name = String((error as Error)?.name)
  if (code === '42P01' || code === '42883') return 'The registry is not installed yet: run `auth-admin install` first.'
  if (code === '42703') return 'The database is of an older version: run `auth-admin install` to bring it up to date.'
  if (code === '3D000')
    return 'The database that DATABASE_URL names does not exist: create it, then run `auth-admin install`.'
  if (/^28/.test(code)) return 'The database refuses the user or password of DATABASE_URL.'
  if (code === '42501') return 'The user of DATABASE_URL lacks the rights for this in the database: grant them.'
  if (code === '53300') return 'The database has no connection left: try again, or raise max_connections.'
  if (code === '25006')
    return 'The database takes no writes: DATABASE_URL leads to a standby, or it was made read-only.'
  if (code === '55P03') return 'Somebody else holds a lock on what is to be changed: try again.'
  const unreachable = /^(E(CONN|PIPE|TIMEDOUT|HOST|NETUNREACH|NOTFOUND|AI_)|(08|57)...$)/.test(code)
  if (
    unreachable ||
    /^Sequelize(Connection|Host)/.test(name) ||
    /^Connection terminated|timeout exceeded when/.test(message)
  ) {
    return 'The database can’t be reached: check DATABASE_URL, and that PostgreSQL runs there.'
  }
  // Node.js gives no code when a ciphertext fails authentication.
  if (/^Unsupported state or unable to authenticate data$/.test(message)) {
    return 'What is sealed in the database was altered, or copied there from another registry.'
  }
  return undefined
}
