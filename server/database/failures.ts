// Classifies errors of the database. This module loads no driver, because an embedded database needs it before it starts.
import { named } from '../rules/remedies.js'

/**
 * No connection was available; `original` says why. `advice` is a sentence for the operator, where waiting can't help; it
 * says what to do and calls the URL DATABASE_URL.
 */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError'
  readonly original: unknown
  readonly advice: string | undefined
  /** Whether the next connection does without the TLS that failed this one. */
  readonly withoutTls: boolean
  constructor(original: unknown, advice?: string, withoutTls = false) {
    super((original as Error).message)
    this.original = original
    this.advice = advice
    this.withoutTls = withoutTls
  }
}

/** The tables aren't those of this version, or aren't there; the message says what to do. */
export class SchemaError extends Error {}

/** Returns the error of the driver. */
export function causeOf(error: unknown): { code?: string; message?: string; constraint?: string } {
  const { original } = (error ?? {}) as { original?: object }
  return original ? causeOf(original) : (error as object)
}

/** Whether a code is a SQLSTATE. */
export function isSqlState(code: string | undefined): code is string {
  return /^[\dA-Z]{5}$/.test(code ?? '')
}

/** The class of an error. */
type Meaning =
  | 'too slow'
  | 'unreachable'
  | 'no connection left'
  | 'read-only'
  | 'locked'
  | 'taken'
  | 'not installed'
  | 'outdated'
  | 'no database'
  | 'wrong credentials'
  | 'no rights'

/** What a failure is, and what to do about it. */
interface Failure {
  readonly code: RegExp
  readonly meaning?: Meaning
  /** Set where the failure is transient: a retry may succeed. */
  readonly passing?: true
  /** A sentence for the operator, which a start, `auth-admin` and its doctor say alike. */
  readonly advice?: string
}

/** Codes of PostgreSQL (SQLSTATE) and of sockets. First match applies. */
const failures: readonly Failure[] = [
  {
    // Canceled, in general by `statement_timeout`.
    code: /^57014$/,
    meaning: 'too slow',
    passing: true,
    advice: 'The database didn’t complete a statement within its time limit: try again when it is less busy.',
  },
  // Connection exceptions, and operator intervention.
  { code: /^(08|57)...$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|AI_AGAIN)/, meaning: 'unreachable', passing: true },
  {
    code: /^ENOTFOUND$/,
    meaning: 'unreachable',
    advice: 'The database can’t be reached (ENOTFOUND): the host of DATABASE_URL doesn’t exist.',
  },
  { code: /^EAI_/, meaning: 'unreachable' },
  {
    code: /^53300$/,
    meaning: 'no connection left',
    passing: true,
    advice: 'The database has no connection left: try again, or raise max_connections.',
  },
  {
    code: /^25006$/,
    meaning: 'read-only',
    passing: true,
    advice: 'The database is read-only: point DATABASE_URL to the primary.',
  },
  {
    code: /^55P03$/,
    meaning: 'locked',
    passing: true,
    advice: 'Another transaction holds a lock on this record: try again.',
  },
  // Rollbacks (deadlock, serialization), insufficient resources, transaction timeouts, I/O errors; 26000 and 42P05, which a
  // pooler can cause; a missing socket.
  { code: /^(40|53)...$|^(25P0[34]|58030|26000|42P05)$|^ENOENT/, passing: true },
  { code: /^23505$/, meaning: 'taken' },
  {
    code: /^(42P01|42883)$/,
    meaning: 'not installed',
    advice: `The registry is not installed yet: run ${named('install')} first.`,
  },
  {
    code: /^42703$/,
    meaning: 'outdated',
    advice: `The database is of an older version: run ${named('install')} to update it.`,
  },
  {
    code: /^3D000$/,
    meaning: 'no database',
    advice: `The database of DATABASE_URL doesn’t exist: create it, then run ${named('install')}.`,
  },
  {
    code: /^28...$/,
    meaning: 'wrong credentials',
    advice: 'The database refuses the user or password of DATABASE_URL.',
  },
  {
    code: /^42501$/,
    meaning: 'no rights',
    advice: 'The user of DATABASE_URL lacks the rights for this in the database: grant them.',
  },
]

function failureOf(error: unknown) {
  const code = String(causeOf(error).code)
  return failures.find(each => each.code.test(code))
}

/** Returns a sentence that says what to do about an error of the database, without a secret; undefined for other errors. */
export function adviceOn(error: unknown): string | undefined {
  if (error instanceof ConnectionError && error.advice) return error.advice
  const failure = failureOf(error)
  if (failure?.advice) return failure.advice
  if (error instanceof SchemaError) return error.message
  const { code, message = '' } = causeOf(error)
  const isLost = message.startsWith('Connection terminated')
  if (failure?.meaning !== 'unreachable' && !(error instanceof ConnectionError) && !isLost) return undefined
  const why = code ?? (isLost ? 'connection lost' : 'no answer')
  return `The database can’t be reached (${why}): check DATABASE_URL, and that PostgreSQL runs there.`
}

/** Returns the class of an error; undefined for an unknown code. */
export function meaningOf(error: unknown): Meaning | undefined {
  return failureOf(error)?.meaning
}

/** Returns the unique constraint that a statement violated; undefined for other errors. */
export function brokenConstraint(error: unknown): string | undefined {
  return meaningOf(error) === 'taken' ? causeOf(error).constraint : undefined
}

/** Whether the tables aren't those of this version, or aren't there. */
export function isSchemaError(error: unknown): boolean {
  return error instanceof SchemaError || ['not installed', 'outdated'].includes(meaningOf(error) ?? '')
}

/**
 * Whether a retry of the same call can succeed: the database is unreachable, temporarily unable to execute it, or rolled the
 * transaction back because of a conflict.
 */
export function isUnreachable(error: unknown): boolean {
  return error instanceof ConnectionError || isPassing(error)
}

/**
 * Whether the server, or a parameter of the URL, refuses a connection until an operator changes something. A database that takes
 * no connections (55000) doesn't do so for long.
 */
export function isRefusedConnection(error: unknown): boolean {
  const { code } = causeOf(error)
  return error instanceof ConnectionError && code !== '55000' && (error.advice !== undefined || code === '3D000')
}

/** Whether PostgreSQL rolled back a transaction because of others at the same time (serialization failure, deadlock). */
export function isConflict(error: unknown): boolean {
  return ['40001', '40P01'].includes(String(causeOf(error).code))
}

/** Whether an error is transient. Not every unreachable database is: a wrong host name or certificate needs a correction. */
export function isPassing(error: unknown): boolean {
  if (failureOf(error)?.passing) return true
  return /Connection terminated|not queryable|pool is draining|manager was closed|\btimeout\b/.test(
    String(causeOf(error).message),
  )
}
