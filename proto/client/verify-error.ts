const statuses = { INVALID_TOKEN: 401, NOT_ACTIVATED: 403, UNAVAILABLE: 503 } as const

/** Why a token isn’t accepted. */
export class VerifyError extends Error {
  override readonly name = 'VerifyError'

  constructor(
    /**
     * - `INVALID_TOKEN`: the token is missing, malformed, wrongly signed, expired, revoked, or for another audience. The client
     *   must log in again.
     * - `NOT_ACTIVATED`: the token is valid at the registry alone, because its user wasn't activated when it was issued. After
     *   activation, the client must log in again or refresh.
     * - `UNAVAILABLE`: it can’t be determined whether the token is valid, because the registry can’t be asked. The client can
     *   retry.
     */
    readonly code: keyof typeof statuses,
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options)
  }

  /** The HTTP status to answer with: 401 for `INVALID_TOKEN`, 403 for `NOT_ACTIVATED`, 503 for `UNAVAILABLE`. */
  get status(): 401 | 403 | 503 {
    return statuses[this.code]
  }
}

/** Refuses a token without saying more about why than a client may know. */
export function invalid(cause?: unknown): VerifyError {
  return new VerifyError('INVALID_TOKEN', 'The token is invalid, expired or revoked.', { cause })
}

/** Refuses a valid token of a user who wasn’t activated when it was issued. */
export function notActivated(): VerifyError {
  return new VerifyError('NOT_ACTIVATED', 'Activate your account, then log in again or refresh.')
}

/** Says that the registry can’t be asked about a token. */
export function unavailable(cause: unknown): VerifyError {
  return new VerifyError('UNAVAILABLE', 'The token can’t be verified at present. Try again.', { cause })
}
