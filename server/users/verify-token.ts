import type { Callers } from '../access/caller.js'
import type { UsersRpc } from '../access/context.js'
import type { Keyring } from '../access/keyring.js'

/** Introspects a token (RFC 7662): returns its claims with the user's present role and state, or `active: false`. */
export function verifyToken({ callers }: { callers: Pick<Callers, 'introspect'> }): UsersRpc<'verifyToken'> {
  return async request => {
    const found = await callers.introspect(request.token?.trim() ?? '')
    if (!found) return { active: false }
    const { claims, caller } = found
    const { user } = caller
    return {
      active: true,
      sub: claims.sub,
      username: user.username,
      tokenType: 'Bearer',
      exp: BigInt(claims.exp),
      iat: BigInt(claims.iat),
      iss: claims.iss,
      aud: claims.aud,
      jti: claims.jti,
      authTime: BigInt(claims.auth_time),
      amr: [...claims.amr],
      roles: [user.role],
      org: user.organizationId ?? undefined,
      userActive: user.active,
    }
  }
}

/** Returns the public keys that verify tokens, as a JWK Set (RFC 7517). */
export function getKeys({ keyring }: { keyring: Keyring }): UsersRpc<'getKeys'> {
  return async () => ({ keys: await keyring.published() })
}
