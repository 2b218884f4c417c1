import type { Verified, Verifier } from './verify.js'
import { invalid, VerifyError } from './verify-error.js'

/** What frameworks need of a verifier. */
export type Verify = Pick<Verifier, 'verify'>

const accepted = new WeakMap<object, Verified>()

/**
 * The token of a request, verified by `requireToken`.
 *
 * @throws if `requireToken` didn’t handle the request.
 */
export function verifiedOf(request: object): Verified {
  const verified = accepted.get(request)
  if (!verified) throw new Error('requireToken didn’t handle this request.')
  return verified
}

/** An answer to a request without a valid token. */
export interface Refusal {
  readonly status: 401 | 403 | 503
  readonly headers: Readonly<Record<string, string>>
  /** A problem document (RFC 9457). */
  readonly body: string
}

/** Verifies the token of a request for `verifiedOf`; returns what to answer if it has none that is valid. */
export async function admit(
  { verify }: Verify,
  request: { readonly headers: { readonly authorization?: string | undefined } },
): Promise<Refusal | undefined> {
  try {
    accepted.set(request, await verify(bearerToken(request.headers.authorization)))
    return undefined
  } catch (error) {
    if (error instanceof VerifyError) return refusalOf(error, request.headers.authorization !== undefined)
    throw error
  }
}

/** The token of an `Authorization` header; rejects another scheme, or none, as an invalid token. */
export function bearerToken(authorization: string | null | undefined): string {
  const token = /^bearer +([^ ]+) *$/i.exec(authorization ?? '')?.[1]
  if (token === undefined) throw invalid()
  return token
}

const titles = { 401: 'Unauthorized', 403: 'Forbidden', 503: 'Service Unavailable' } as const

function refusalOf({ code, status, message }: VerifyError, sent: boolean): Refusal {
  // RFC 6750: no error for a request without a token.
  const challenge = status === 403 ? 'Bearer error="insufficient_scope"' : 'Bearer error="invalid_token"'
  return {
    status,
    headers: {
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
      ...(status === 503 ? { 'retry-after': '1' } : { 'www-authenticate': sent ? challenge : 'Bearer' }),
    },
    body: JSON.stringify({ type: 'about:blank', title: titles[status], status, detail: message, reason: code }),
  }
}
