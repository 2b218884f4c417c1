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

/** The unique constraint that a statement violated, if that is why it failed. */
export function brokenConstraint(error: unknown): string | undefined {
  const { code, constraint } = causeOf(error)
  return code === '23505' ? constraint : undefined
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
  const { code, message } = causeOf(error)
  // Classes 08 (connection), 40 (rolled back: deadlock, serialization), 53 (resources), 57 (operator intervention, and
  // the statement's own timeout); 25006 (read-only), 25P03 and 25P04 (a transaction's timeouts), 55P03 (lock not available),
  // 58030 (I/O error); 26000 and 42P05, which a pooler returns until it is recognized; codes of sockets.
  return (
    /^(08|40|53|57)...$|^(25006|25P0[34]|55P03|58030|26000|42P05)$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|AI_AGAIN|NOENT)/.test(
      String(code),
    ) || /Connection terminated|not queryable|pool is draining|manager was closed|timeout/.test(String(message))
  )
}
