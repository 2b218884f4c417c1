// What a failure of the database means to the caller. It loads no driver, since the start of an embedded database needs it first.

/** No connection was available; `original` says why. */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError'
  readonly original: unknown
  constructor(original: unknown) {
    super((original as Error).message)
    this.original = original
  }
}

/** The driver's own error. */
export function causeOf(error: unknown): { code?: string; message?: string; constraint?: string } {
  return (error as { original?: object } | undefined)?.original ?? (error as object)
}

/** What a failure means to a caller. */
export type Meaning =
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

/** Codes of PostgreSQL (SQLSTATE) and of sockets, and whether the same call may succeed after a wait. The first match counts. */
const failures: readonly { readonly code: RegExp; readonly meaning?: Meaning; readonly passing?: true }[] = [
  // Connection exceptions, and operator intervention, which includes the statement timeout.
  { code: /^(08|57)...$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|AI_AGAIN)/, meaning: 'unreachable', passing: true },
  { code: /^E(NOTFOUND|AI_)/, meaning: 'unreachable' },
  { code: /^53300$/, meaning: 'no connection left', passing: true },
  { code: /^25006$/, meaning: 'read-only', passing: true },
  { code: /^55P03$/, meaning: 'locked', passing: true },
  // Rollbacks (deadlock, serialization), resources, timeouts of transactions, I/O errors; 26000 and 42P05, which a pooler
  // returns until it is recognized; a missing socket.
  { code: /^(40|53)...$|^(25P0[34]|58030|26000|42P05)$|^ENOENT/, passing: true },
  { code: /^23505$/, meaning: 'taken' },
  { code: /^(42P01|42883)$/, meaning: 'not installed' },
  { code: /^42703$/, meaning: 'outdated' },
  { code: /^3D000$/, meaning: 'no database' },
  { code: /^28...$/, meaning: 'wrong credentials' },
  { code: /^42501$/, meaning: 'no rights' },
]

function failureOf(error: unknown) {
  const code = String(causeOf(error).code)
  return failures.find(each => each.code.test(code))
}

/** What a failure means; undefined when its code isn't known. */
export function meaningOf(error: unknown): Meaning | undefined {
  return failureOf(error)?.meaning
}

/** The unique constraint that a statement violated, if that is why it failed. */
export function brokenConstraint(error: unknown): string | undefined {
  return meaningOf(error) === 'taken' ? causeOf(error).constraint : undefined
}

/**
 * Whether the same call can succeed later: the database is unreachable, is unable to do it now, or rolled back a transaction in
 * favor of another.
 */
export function isUnreachable(error: unknown): boolean {
  return error instanceof ConnectionError || isPassing(error)
}

/**
 * Whether waiting alone can help. It doesn't with every unreachable database: a wrong name or certificate stays wrong.
 */
export function isPassing(error: unknown): boolean {
  if (failureOf(error)?.passing) return true
  return /Connection terminated|not queryable|pool is draining|manager was closed|timeout/.test(
    String(causeOf(error).message),
  )
}
