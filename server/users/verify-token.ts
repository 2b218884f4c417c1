import type { Callers } from '../access/caller.js'
import type { UsersRpc } from '../access/context.js'
import type { Keyring } from '../access/keyring.js'
import { required } from '../requests/required-fields.js'

type Introspecting = Pick<Callers, 'introspect'>

/** Introspects a token (RFC 7662): returns its claims with the user's present role and state, or `active: false`. */
async function introspection(callers: Introspecting, token: string | undefined) {
  const found = await callers.introspect(token?.trim() ?? '')
  if (!found) return { active: false } as const
  const { claims, caller } = found
  const { sub, exp, iat, iss, aud, jti, auth_time, amr } = claims
  const { username, role, organizationId, active: user_active } = caller.user
  const user = { username, roles: [role], org: organizationId ?? undefined, user_active }
  const of = { sub, exp, iat, iss, aud, jti, auth_time, amr: [...amr] }
  return { active: true as const, token_type: 'Bearer', ...of, ...user }
}

/** Returns the claims of a token, or that it is invalid. */
export function verifyToken({ callers }: { callers: Introspecting }): UsersRpc<'verifyToken'> {
  return async ({ token }) => {
    const found = await introspection(callers, token)
    if (!found.active) return found
    const { token_type: tokenType, auth_time, user_active: userActive, exp, iat, ...claims } = found
    return { ...claims, tokenType, userActive, exp: BigInt(exp), iat: BigInt(iat), authTime: BigInt(auth_time) }
  }
}

/** The same for services, as JSON of RFC 7662. */
export function introspect({ callers }: { callers: Introspecting }): UsersRpc<'introspect'> {
  return async ({ token }) => {
    required({ token })
    return { json: JSON.stringify(await introspection(callers, token)) }
  }
}

/** Returns the metadata of RFC 8414. Clients find the issuer, the keys and the introspection endpoint by it. */
export function getServerMetadata({ issuer }: { issuer: string }): UsersRpc<'getServerMetadata'> {
  const base = /^https?:/.test(issuer) && URL.canParse(issuer) ? issuer.replace(/\/$/, '') : undefined
  const json = JSON.stringify({
    issuer,
    ...(base !== undefined && {
      jwks_uri: `${base}/.well-known/jwks.json`,
      introspection_endpoint: `${base}/introspect`,
    }),
    introspection_endpoint_auth_methods_supported: ['Bearer', 'client_secret_basic'],
    // Required, even if empty.
    response_types_supported: [],
    grant_types_supported: [],
  })
  return async () => ({ json })
}

/** Returns the public keys that verify tokens, as a JWK Set (RFC 7517). */
export function getKeys({ keyring }: { keyring: Keyring }): UsersRpc<'getKeys'> {
  return async () => ({ keys: await keyring.published() })
}
