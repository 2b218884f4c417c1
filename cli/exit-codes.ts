import { getSystemErrorMap } from 'node:util'
import type { ConnectError } from '@connectrpc/connect'
import { CommanderError } from 'commander'
import type { BadRequest, ErrorInfo, RetryInfo } from '../proto/gen/google/rpc/error_details_pb.js'
import { adviceOn, causeOf, isRefusedConnection, isSchemaError, isUnreachable } from '../server/database/failures.js'
import { flagOf } from './arguments.js'
import { inTerminalLanguage } from './terminal/language.js'

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
  readonly fields?: readonly { readonly field: string; readonly reason: string | undefined; readonly message: string }[]
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

/** What is known of a failure at a server. */
interface Remote {
  /** The server as messages name it. */
  readonly where: string
  /** The commands that sign in to it again, and that sign in anew with another option. */
  readonly login: string
  readonly loginAnew: string
  /** The error of the connection, if it has one. */
  readonly failure?: NodeJS.ErrnoException | undefined
}

/** A refusal, and where it comes from if that isn't this process. */
type RemoteRefusal = ConnectError & { readonly server?: Remote }

const listener = 'AUTH_ADMIN_ADDRESS, by default port 50052'

/**
 * What is wrong with a server that can't be reached, or with what answers in its place: the cause, the exit code, and what to do.
 * The cause is the error of the connection, or the code and message of the answer. First match applies.
 */
const causes: readonly (readonly [
  cause: RegExp,
  exitCode: ExitCode,
  says: (cause: string, server: Remote) => string,
])[] = [
  [
    /^(ECONNREFUSED|EHOST\w*|ENET\w*|ETIMEDOUT|ENOTFOUND|EAI_\w*)/,
    7,
    cause => `can’t be reached (${cause}): check the address, and that the service listens there (${listener}).`,
  ],
  [
    /^(UNABLE_TO_|SELF_SIGNED_|DEPTH_ZERO_|CERT_UNTRUSTED)/,
    1,
    (_, { loginAnew }) =>
      `has a certificate from an unknown authority: pass the PEM file of the authority, \`${loginAnew} --ca FILE\`.`,
  ],
  [
    /^ERR_TLS_CERT_ALTNAME_INVALID/,
    1,
    (_, { loginAnew, failure }) =>
      `has a certificate for ${namesOf(failure)}: use a URL with this name, or pass one, \`${loginAnew} --server-name NAME\`.`,
  ],
  [
    /^(CERT_\w+|ERR_TLS_CERT_\w+)/,
    1,
    cause => `has an invalid certificate (${cause}): renew it, or correct the clock of this machine.`,
  ],
  [/^(Unavailable|DeadlineExceeded).*/, 7, cause => `doesn’t answer now (${cause}): try again later.`],
  [
    /^(ERR_|Unimplemented|\w+: (HTTP|.*content type))/,
    1,
    (_, { loginAnew }) =>
      `doesn’t answer as the administration listener (${listener}): check port and scheme of the URL, then run \`${loginAnew}\`.`,
  ],
  [/^/, 7, () => 'closed the connection: try again later, or check port and scheme of the URL.'],
]

/** The names of the certificate that has another one than the URL. */
function namesOf(failure: unknown): string {
  const { cert } = failure as { cert?: { subjectaltname?: string } }
  return cert?.subjectaltname?.replaceAll(/DNS:|IP Address:/g, '') || 'another name'
}

/** Exit codes of refusals by the name of their gRPC code; 1 for all others. */
const exitCodes: Readonly<Record<string, ExitCode>> = {
  InvalidArgument: 2,
  NotFound: 3,
  Unauthenticated: 4,
  PermissionDenied: 4,
  AlreadyExists: 5,
  Aborted: 5,
  FailedPrecondition: 5,
  ResourceExhausted: 7,
  Unavailable: 7,
  DeadlineExceeded: 7,
}

/** What the service says of its refusal, or what is wrong with the server. */
async function explainRefusal(error: RemoteRefusal): Promise<Explanation> {
  const [{ Code }, { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema }] = await Promise.all([
    import('@connectrpc/connect'),
    import('../proto/gen/google/rpc/error_details_pb.js'),
  ])
  const { server } = error
  const [info] = error.findDetails(ErrorInfoSchema) as ErrorInfo[]
  if (server && !info) {
    const { failure } = server
    const cause = failure ? `${failure.code}` : `${Code[error.code]}: ${error.rawMessage}`
    const [pattern, exitCode, says] = causes.find(([pattern]) => pattern.test(cause))!
    return { message: `${server.where} ${says(pattern.exec(cause)![0], server)}`, exitCode }
  }
  const [wrong] = error.findDetails(BadRequestSchema) as BadRequest[]
  const [retry] = error.findDetails(RetryInfoSchema) as RetryInfo[]
  const fields = wrong?.fieldViolations.map(({ field, reason, description }) => ({
    field,
    reason: reason || undefined,
    message: description,
  }))
  const retryAfter = Number(retry?.retryDelay?.seconds ?? 0)
  return {
    message:
      sentenceOf(error, info, fields) +
      (retryAfter > 0 ? ` ${inTerminalLanguage(`Try again in ${retryAfter} s.`)}` : ''),
    exitCode: exitCodes[Code[error.code]] ?? 1,
    reason: info?.reason,
    fields: fields?.length ? fields : undefined,
    retryAfter: retryAfter || undefined,
  }
}

/** A refusal as a sentence that says what to do here. */
function sentenceOf(
  { server, cause, rawMessage }: RemoteRefusal,
  info: ErrorInfo | undefined,
  fields: Explanation['fields'] = [],
): string {
  const { where, login } = server ?? { where: undefined, login: 'auth-admin login' }
  const database = cause ? databaseFailure(cause) : undefined
  if (database !== undefined) return database
  const reason = info?.reason
  if (where && reason === 'UNAVAILABLE')
    return `${where} can’t answer now; its database may be unreachable. Try again later.`
  if (where && reason === 'INTERNAL')
    return `${where} failed. Its log has the cause, under request ${info!.metadata.requestId}.`
  // The only tokens here are those of sessions.
  if (reason === 'INVALID_TOKEN') return inTerminalLanguage(`Your session has ended: run \`${login}\`.`)
  if (reason === 'JUSTIFICATION_NEEDED')
    return `${inTerminalLanguage(rawMessage)} ${inTerminalLanguage('Pass --reason.')}`
  const flags = fields.map(({ field, message }) => {
    const says = inTerminalLanguage(message)
    return field.startsWith('form.') ? `${flagOf({ field: field.slice('form.'.length) })}: ${says}` : says
  })
  // A sign-in itself is refused with another sentence.
  return flags.join(' ') || inTerminalLanguage(rawMessage.replace(/\. Sign in again\.$/, `: run \`${login}\`.`))
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
