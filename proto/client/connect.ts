import { Code, ConnectError, type ContextKey, createContextKey, type Interceptor } from '@connectrpc/connect'
import { bearerToken, type Verify } from './bearer.js'
import type { Verified } from './verify.js'
import { VerifyError } from './verify-error.js'

const noToken = undefined as Verified | undefined

const codes = {
  INVALID_TOKEN: Code.Unauthenticated,
  NOT_ACTIVATED: Code.PermissionDenied,
  UNAVAILABLE: Code.Unavailable,
} as const

/** The verified token of a call, for handlers: `context.values.get(verifiedKey)`. */
export const verifiedKey: ContextKey<Verified | undefined> = createContextKey(noToken, {
  description: 'verified token',
})

/**
 * Interceptor for Connect servers, which also serve gRPC and gRPC-Web: verifies the bearer token of each call. Handlers get it
 * by `context.values.get(verifiedKey)`. Refuses with UNAUTHENTICATED if there is no valid token, with PERMISSION_DENIED if its
 * user wasn’t activated, with UNAVAILABLE if that can’t be determined.
 */
export function requireToken(verifier: Verify): Interceptor {
  return next => async request => {
    try {
      request.contextValues.set(verifiedKey, await verifier.verify(bearerToken(request.header.get('authorization'))))
    } catch (error) {
      if (!(error instanceof VerifyError)) throw error
      throw new ConnectError(error.message, codes[error.code], undefined, undefined, error)
    }
    return next(request)
  }
}
