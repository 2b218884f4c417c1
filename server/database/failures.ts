// What failures of the database mean to whoever asked. It loads no driver: the start of an embedded database needs it first.
/** No connection was to be had; `original` says why. */
export class ConnectionError extends Error {
  override readonly name = 'ConnectionError'
  readonly original: unknown
  constructor(original: unknown) {
    super((original as Error).message)
    this.original = original
  }
}

/** What the driver says of a failure, whoever passed it on. */
export function causeOf(error: unknown): { code?: string; message?: string; constraint?: string } {
  return (error as { original?: object } | undefined)?.original ?? (error as object)
}

/** The unique constraint that a statement broke, if that is why it failed. */
export function brokenConstraint(error: unknown): string | undefined {
  const { code, constraint } = causeOf(error)
  return code === '23505' ? constraint : undefined
}

/**
 * Whether the same call may succeed another time: the database can't be reached, can't do it now, or undid a transaction
 * for the sake of another one.
 */
export function isUnreachable(error: unknown): boolean {
  return error instanceof ConnectionError || isPassing(error)
}

/**
 * Whether what failed may succeed when nobody does anything but wait. Not every database that can't be reached is worth
 * that: a wrong name or certificate stays wrong.
 */
export function isPassing(error: unknown): boolean {
  const { code, message } = causeOf(error)
  // Classes 08 (connection), 40 (rolled back: deadlock, serialization), 53 (resources), 57 (operator intervention, and
  // the statement's own timeout); 25006 (read-only), 25P03 and 25P04 (a transaction's timeouts), 55P03 (lock not available),
  // 58030 (the disk); 26000 and 42P05, which a pooler answers until we know of it; sockets' own codes.
  return (
    /^(08|40|53|57)...$|^(25006|25P0[34]|55P03|58030|26000|42P05)$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|AI_AGAIN|NOENT)/.test(
      String(code),
    ) || /Connection terminated|not queryable|pool is draining|manager was closed|timeout/.test(String(message))
  )
}
