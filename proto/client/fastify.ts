import { admit, type Verify } from './bearer.js'

export { verifiedOf } from './bearer.js'

/** What the hook reads of a `FastifyRequest`. */
export interface Request {
  readonly headers: { readonly authorization?: string | undefined }
}

/** What the hook calls of a `FastifyReply`. */
export interface Reply {
  code(status: number): unknown
  headers(values: Record<string, string>): unknown
  send(body: string): unknown
}

/**
 * Hook for Fastify 4 and 5, for instance `app.addHook('onRequest', requireToken(verifier))`: verifies the bearer token of each
 * request. Handlers get it by `verifiedOf(request)`. Answers 401 with `WWW-Authenticate` (RFC 6750) if there is no valid token,
 * 403 if its user wasn’t activated, 503 with `Retry-After` if that can’t be determined, each with a problem document.
 */
export function requireToken(verifier: Verify): (request: Request, reply: Reply) => Promise<unknown> {
  return async (request, reply) => {
    const refusal = await admit(verifier, request)
    if (!refusal) return undefined
    reply.code(refusal.status)
    reply.headers(refusal.headers)
    return reply.send(refusal.body)
  }
}
