import type { Access } from '../access/index.js'
import { baseOf, endpointsOf } from '../access/provider.js'
import type { UsersRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { required } from '../requests/required-fields.js'

/** The RPCs that check and revoke tokens, and publish what verifies them. */
export function tokenRpcs({ users }: Models, { callers, keyring, tokenIssuer: { issuer, audience } }: Access) {
  const metadata = JSON.stringify(metadataOf(issuer))

  /**
   * Introspects a token (RFC 7662): returns its claims with the user's present role and state; `active: false` for an invalid
   * token, and for one that is for the registry alone.
   */
  async function introspection(token: string | undefined) {
    const found = await callers.introspect(token?.trim() ?? '')
    if (found?.claims.aud !== audience) return { active: false } as const
    const { claims, caller } = found
    const { sub, exp, iat, iss, aud, client_id, jti, auth_time, amr } = claims
    const { username, role, organizationId, active: user_active } = caller.user
    const user = { username, roles: [role], org: organizationId ?? undefined, user_active }
    const of = { sub, exp, iat, iss, aud, client_id, jti, auth_time, amr: [...amr] }
    return { active: true as const, token_type: 'Bearer', ...of, ...user }
  }

  return {
    /** Revokes all tokens of the caller, so that only one of two calls with the same token succeeds. */
    async revokeMyTokens(_request, { caller, transact }) {
      const { id } = caller.user
      await transact(async ({ t, record }) => {
        await users.revokeTokens(id, t)
        await record({ action: 'user.revoke-own-tokens', subject_id: id })
      })
      return {}
    },

    /** Returns the claims of a token, or that it is invalid. */
    async verifyToken({ token }) {
      const found = await introspection(token)
      if (!found.active) return found
      const { token_type: tokenType, client_id, auth_time, user_active: userActive, exp, iat, ...claims } = found
      return { ...claims, tokenType, userActive, exp: BigInt(exp), iat: BigInt(iat), authTime: BigInt(auth_time) }
    },

    /** The same for services, as JSON of RFC 7662. */
    async introspect({ token }) {
      required({ token })
      return { json: JSON.stringify(await introspection(token)) }
    },

    /** Clients find the issuer, the keys and the introspection endpoint by the metadata. */
    getServerMetadata: async () => ({ json: metadata }),

    /** Returns the public keys that verify tokens, as a JWK Set (RFC 7517). */
    getKeys: async () => ({ keys: await keyring.published() }),
  } satisfies Partial<UsersRpcs>
}

/** Metadata of RFC 8414. */
function metadataOf(issuer: string) {
  const base = baseOf(issuer)
  return {
    issuer,
    ...(base !== undefined && {
      jwks_uri: `${base}/.well-known/jwks.json`,
      introspection_endpoint: `${base}/introspect`,
    }),
    introspection_endpoint_auth_methods_supported: ['Bearer', 'client_secret_basic'],
    // Required, even if empty.
    response_types_supported: [],
    grant_types_supported: ['refresh_token'],
    ...endpointsOf(issuer),
  }
}
