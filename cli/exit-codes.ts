import { getSystemErrorMap } from 'node:util'
import type { ConnectError } from '@connectrpc/connect'
import { CommanderError } from 'commander'
import type { BadRequest, ErrorInfo, RetryInfo } from '../proto/gen/google/rpc/error_details_pb.js'
import { adviceOn, causeOf, isRefusedConnection, isSchemaError, isUnreachable } from '../server/database/failures.js'
import { flagOf } from './arguments.js'

/**
 * Exit codes: 1, failed or declined; 2, usage or a wrong field; 3, not found; 4, not signed in or not allowed; 5, refused
 * by the current state; 6, done in part; 7, try again later; 130, stopped by Ctrl-C.
 */
export type ExitCode = 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 130

/** Why a command ends without having done its work, in a sentence that says what to do. It holds no secret. */
class Failure extends Error {
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

/** Ends a command that has printed everything itself. */
export function end(exitCode: ExitCode): never {
  throw new Failure('', exitCode)
}

/** What is printed of a failure: the message, and with `--json` all of it. */
interface Explanation {
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
  if (error instanceof Failure) return { message: error.message || undefined, exitCode: error.exitCode }
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
  if (name === 'ConnectError') return explainRefusal(error as RemoteRefusal)
  const ofSystem = systemFailure(error)
  if (ofSystem !== undefined) return { message: ofSystem, exitCode: 1 }
  return {
    message: databaseFailure(error) ?? (isOurs(error) ? message : unforeseen(error)),
    // As a server refuses for the same fault: UNAVAILABLE, WRONG_STATE, INTERNAL. But a retry doesn't correct DATABASE_URL.
    exitCode: isUnreachable(error) && !isRefusedConnection(error) ? 7 : isSchemaError(error) ? 5 : 1,
  }
}

/** A refusal, and where it comes from if that isn't this process. */
type RemoteRefusal = ConnectError & {
  /** The server as messages name it, and how to sign in to it. */
  readonly server?: { readonly where: string; readonly login: string }
}

/** What the service says of its refusal. */
async function explainRefusal(error: RemoteRefusal): Promise<Explanation> {
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
  const { where, login } = error.server ?? { where: undefined, login: 'auth-admin login' }
  const refusal = wrongOnes?.length
    ? wrongOnes.join(' ')
    : // The only tokens here are those of sessions.
      info?.reason === 'INVALID_TOKEN'
      ? `Your session has ended: run \`${login}\`.`
      : // A sign-in itself is refused with another sentence.
        error.rawMessage.replace(/\. Sign in again\.$/, `: run \`${login}\`.`)
  const how = info?.reason === 'JUSTIFICATION_NEEDED' ? ' Pass --reason.' : ''
  const ofServer = {
    UNAVAILABLE: `${where} can’t answer now; its database may be unreachable. Try again later.`,
    INTERNAL: `${where} failed. Its log has the cause, under request ${info?.metadata.requestId}.`,
  }[where === undefined ? '' : (info?.reason ?? '')]
  return {
    message: database ?? ofServer ?? refusal + how + later,
    exitCode: exitCodes[error.code] ?? 1,
    reason: info?.reason,
    fields: fields?.length ? fields : undefined,
    retryAfter: retryAfter || undefined,
  }
}

/** Our own errors are plain; others may quote what they were given. */
function isOurs(error: unknown): boolean {
  const { name, code } = error as { name?: string; code?: unknown }
  return name === 'Error' && (code === undefined || typeof code === 'number')
}

/** What the system says of a file or a full disk, as a sentence; undefined for other errors. */
function systemFailure(error: unknown): string | undefined {
  const { code = '', errno, path, syscall } = error as NodeJS.ErrnoException
  const ofFile = path !== undefined && syscall !== 'connect'
  if (errno === undefined || !(ofFile || /^E(NOSPC|DQUOT|FBIG|IO|ROFS|ISDIR|MFILE|NFILE)$/.test(code))) return undefined
  return `${path ?? 'A file'}: ${getSystemErrorMap().get(errno)?.[1]} (${code}).`
}

function unforeseen(error: unknown): string {
  const { name, code } = causeOf(error) as { name?: string; code?: string }
  return `Internal error (${[name, code].filter(Boolean).join(' ')}); AUTH_LOG_LEVEL=debug shows where.`
}

function databaseFailure(error: unknown): string | undefined {
  // Node.js gives no code when a ciphertext fails authentication.
  if (/^Unsupported state or unable to authenticate data$/.test(causeOf(error).message ?? ''))
    return 'Sealed data in the database was altered, or copied there from another registry.'
  return adviceOn(error)
}
