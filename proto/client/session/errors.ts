const messages = {
  /** The session has lasted its time, or a copy of a token was used: let the user sign in again. */
  ENDED: 'The session has ended. Sign in again.',
  /** An administrator has suspended the user: to sign in again doesn’t help. */
  SUSPENDED: 'The user is suspended.',
  /** No user is signed in: it signed out, here, in another tab or everywhere, or set another password elsewhere. */
  SIGNED_OUT: 'No user is signed in.',
  /** The registry can’t be reached, or can’t answer now. The user stays signed in: try again later. */
  OFFLINE: 'The registry can’t be reached now.',
}

/** Why a session doesn’t go on. */
export type SessionCode = keyof typeof messages

/** The end of a session, or a refusal of the registry, by whose `code` programs decide. */
export class SessionError extends Error {
  /** The HTTP status of the answer, if there was one. */
  declare readonly status?: number | undefined
  /** Every field that was refused, by the name with which it was sent: a text for the user, a code, and a value that is accepted. */
  declare readonly errors?: readonly { field: string; message: string; reason?: string; suggestion?: string }[]
  /** Seconds after which to try again; undefined if the registry didn’t say. */
  declare readonly retryAfter?: number | undefined
  constructor(
    /** A code of sessions, or the `reason` of the registry, such as `INVALID_CREDENTIALS` or `TOO_MANY_ATTEMPTS`. */
    readonly code: SessionCode | (string & {}),
    details: Pick<SessionError, 'status' | 'errors' | 'retryAfter' | 'cause'> = {},
    message = messages[code as SessionCode] ?? code,
  ) {
    super(message)
    Object.assign(this, details, { name: 'SessionError' })
  }
}

/** The code of an error, if it is a `SessionError`. */
export const codeOf = (error: unknown) => (error instanceof SessionError ? error.code : undefined)
