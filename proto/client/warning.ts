/** Something that an operator should know. Verification goes on. */
export interface Warning {
  /**
   * - `CURSOR_LOST`: the registry doesn’t know its own past any more: its database was restored from a backup, lost its latest
   *   changes in a failover, or its audit log was rewritten. Raise an alarm.
   * - `FEED_FAILED`: the feed of changes doesn’t answer, or refuses the key; the package tries again. Once for each outage.
   * - `KEYS_FAILED`: the verification keys can’t be read; the package tries again. Once for each outage.
   * - `CHANGE_FAILED`: `onChange` of `watchUsers` failed; it gets the same change again.
   */
  readonly code: 'CURSOR_LOST' | 'FEED_FAILED' | 'KEYS_FAILED' | 'CHANGE_FAILED'
  /** What happened, in one sentence, without secrets. */
  readonly message: string
  /** The error behind it, if there is one. */
  readonly cause?: unknown
}

/** Passes a warning to `process.emitWarning`, as Node.js does for its own. */
export function emitWarning({ code, message }: Warning): void {
  process.emitWarning(message, { type: 'AuthRegistryWarning', code })
}
