import type { ConnectError } from '@connectrpc/connect'
import { CommanderError } from 'commander'
import type { BadRequest, ErrorInfo, RetryInfo } from '../proto/gen/google/rpc/error_details_pb.js'
import { flagOf } from './references.js'

/**
 * Exit codes: 1, it couldn't be done; 2, the command line is wrong; 3, what it names isn't there; 4, not signed in, or not
 * allowed; 5, something stands in the way; 6, done in part; 7, it may be done later; 130, stopped by Ctrl-C.
 */
export type ExitCode = 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 130

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
export function fail(message: string, exitCode?: ExitCode): never {
  throw new Failure(message, exitCode)
}

/** Throws the failure of a command line that lacks something or makes no sense. */
export function misuse(message: string): never {
  throw new Failure(message, 2)
}

/** Ends a command that has told everything itself. */
export function end(exitCode: ExitCode): never {
  throw new Failure('', exitCode)
}

/** What is told of a failure: to users the message, to programs all of it. */
export interface Explanation {
  /** Absent when nothing needs saying. */
  readonly message?: string
  readonly exitCode: ExitCode
  /** A name of auth.v1.Reason, where the service refused. */
  readonly reason?: string
  /** Every wrong field. */
  readonly fields?: readonly { readonly field: string; readonly message: string }[]
  /** Seconds after which another attempt can succeed. */
  readonly retryAfter?: number
}

/** What to print of anything that was thrown, and the exit code. */
export async function explain(error: unknown): Promise<Explanation> {
  if (error instanceof Failure) return { ...(error.message && { message: error.message }), exitCode: error.exitCode }
  if (error instanceof CommanderError) {
    if (error.exitCode === 0) return { exitCode: 0 }
    const { code, message } = error
    // Help is printed already.
    if (code === 'commander.help') return { exitCode: 2 }
    return {
      message: message
        .trim()
        .replaceAll('\n', ' ')
        .replace(/^error: /, ''),
      exitCode: 2,
    }
  }
  const { name, message } = error as Error
  if (name === 'ExitPromptError') return { exitCode: 130 }
  if (name === 'ConnectError') return explainRefusal(error as ConnectError)
  return { message: databaseFailure(error) ?? (isOurs(error) ? message : unforeseen(error)), exitCode: 1 }
}

/** What the service says of its refusal. */
async function explainRefusal(error: ConnectError): Promise<Explanation> {
  const [{ Code }, { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema }] = await Promise.all([
    import('@connectrpc/connect'),
    import('../proto/gen/google/rpc/error_details_pb.js'),
  ])
  const exitCodes: Partial<Record<number, ExitCode>> = {
    [Code.InvalidArgument]: 2,
    [Code.NotFound]: 3,
    [Code.Unauthenticated]: 4,
    [Code.PermissionDenied]: 4,
    [Code.AlreadyExists]: 5,
    [Code.Aborted]: 5,
    [Code.FailedPrecondition]: 5,
    [Code.ResourceExhausted]: 7,
    [Code.Unavailable]: 7,
    [Code.DeadlineExceeded]: 7,
  }
  const [info] = error.findDetails(ErrorInfoSchema) as ErrorInfo[]
  const [wrong] = error.findDetails(BadRequestSchema) as BadRequest[]
  const [retry] = error.findDetails(RetryInfoSchema) as RetryInfo[]
  const fields = wrong?.fieldViolations.map(({ field, description }) => ({ field, message: description }))
  const database = error.cause ? databaseFailure(error.cause) : undefined
  const retryAfter = Number(retry?.retryDelay?.seconds ?? 0)
  const later = retryAfter > 0 ? ` Try again in ${retryAfter} s.` : ''
  const wrongOnes = fields?.map(({ field, message }) =>
    field.startsWith('form.') ? `${flagOf({ field: field.slice('form.'.length) })}: ${message}` : message,
  )
  const refusal = wrongOnes?.length
    ? wrongOnes.join(' ')
    : // The only tokens here are those of sessions.
      info?.reason === 'INVALID_TOKEN'
      ? 'Your session has ended: run `auth-admin login`.'
      : error.rawMessage
  const how =
    { JUSTIFICATION_NEEDED: ' Give --reason.', SIGN_IN_AGAIN: ' Run `auth-admin login`.' }[info?.reason ?? ''] ?? ''
  return {
    message: database ?? (info ? refusal + how + later : unreachable(error)),
    exitCode: exitCodes[error.code] ?? 1,
    ...(info && { reason: info.reason }),
    ...(fields?.length && { fields }),
    ...(retryAfter > 0 && { retryAfter }),
  }
}

/** Nobody of ours said this: the way there is broken. */
function unreachable({ rawMessage }: ConnectError): string {
  return `The server can’t be reached: ${rawMessage}`
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
  if (unreachable || name === 'ConnectionError' || /^Connection terminated|timeout exceeded when/.test(message)) {
    return 'The database can’t be reached: check DATABASE_URL, and that PostgreSQL runs there.'
  }
  // Node.js gives no code when a ciphertext fails authentication.
  if (/^Unsupported state or unable to authenticate data$/.test(message)) {
    return 'What is sealed in the database was altered, or copied there from another registry.'
  }
  return undefined
}
