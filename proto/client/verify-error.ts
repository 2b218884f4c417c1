/** Why a token isn’t accepted. */
export class VerifyError extends Error {
  override readonly name = 'VerifyError'

  constructor(
    /**
     * - `INVALID_TOKEN`: the token is missing, malformed, wrongly signed, expired, revoked, or for another audience. The client
     *   must log in again.
     * - `UNAVAILABLE`: it can’t be determined whether the token is valid, because the registry can’t be asked. The client can
     *   retry.
     */
    readonly code: 'INVALID_TOKEN' | 'UNAVAILABLE',
    message: string,
    options?: ErrorOptions,
  ) {
    super(message, options)
  }

  /** The HTTP status to answer with: 401 for `INVALID_TOKEN`, 503 for `UNAVAILABLE`. */
  get status(): 401 | 503 {
    return this.code === 'INVALID_TOKEN' ? 401 : 503
  }
}

/** Refuses a token without saying more about why than a client may know. */
export function invalid(cause?: unknown): VerifyError {
  return new VerifyError('INVALID_TOKEN', 'The token is invalid, expired or revoked.', { cause })
}

/** Says that the registry can’t be asked about a token. */
export function unavailable(cause: unknown): VerifyError {
  return new VerifyError('UNAVAILABLE', 'The token can’t be verified at present. Try again.', { cause })
}
