// Client authentication of OAuth 2.0, for the introspection endpoint (RFC 7662, 2.1): the key of a service as bearer token
// (RFC 6750) or as client secret (RFC 6749, 2.3.1). All other routes answer as the contract says.
import type { Problem } from './problem.js'

const basic = /^Basic +([A-Za-z0-9+/]+={0,2})\s*$/i

/**
 * The `authorization` header of a request, with a client secret as bearer token. The client id is ignored. The secret is encoded
 * as in a form (RFC 6749, 2.3.1); a key that isn't encoded stays as it is, for it holds no `%` and no `+`.
 */
export function asBearer(authorization: string | undefined): string | undefined {
  const encoded = authorization && basic.exec(authorization)?.[1]
  if (!encoded) return authorization
  const credentials = Buffer.from(encoded, 'base64').toString()
  const [secret = ''] = new URLSearchParams(`s=${credentials.slice(credentials.indexOf(':') + 1)}`).values()
  return `Bearer ${secret}`
}

/** The problem of a refused client, with a challenge (RFC 9110, 11.6.1; RFC 6750, 3.1). */
export function challenged(problem: Problem, authorization: string | undefined): Problem {
  const isBasic = authorization !== undefined && basic.test(authorization)
  const challenge = (status: number, error?: string) => {
    const scheme = isBasic ? 'Basic realm="services"' : `Bearer realm="services"${error ? `, error="${error}"` : ''}`
    return { ...problem, status, headers: { ...problem.headers, 'www-authenticate': scheme } }
  }
  if (problem.reason === 'INVALID_TOKEN') return challenge(401, 'invalid_token')
  if (problem.reason !== 'ACCESS_DENIED') return problem
  return authorization === undefined ? challenge(401) : challenge(403, 'insufficient_scope')
}
