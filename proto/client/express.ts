import type { IncomingMessage, ServerResponse } from 'node:http'
import { admit, type Verify } from './bearer.js'

export { verifiedOf } from './bearer.js'

/**
 * Middleware for Express 4 and 5, and for other frameworks with the same middleware: verifies the bearer token of each request.
 * Handlers get it by `verifiedOf(request)`. Answers 401 with `WWW-Authenticate` (RFC 6750) if there is no valid token, 403 if its
 * user wasn’t activated, 503 with `Retry-After` if that can’t be determined, each with a problem document.
 */
export function requireToken(
  verifier: Verify,
): (request: IncomingMessage, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    admit(verifier, request).then(refusal => {
      if (!refusal) return next()
      const { status, headers, body } = refusal
      response.writeHead(status, headers).end(body)
    }, next)
  }
}
