import type { Access } from '../access/index.js'
import { baseOf, endpointsOf, requireProvider } from '../access/provider.js'
import type { OpenIdRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { isOrigin } from '../rules/return-uri.js'
import type { IdTokens } from './id-tokens.js'
import { clientScopes } from './requests.js'

/** The RPCs by which clients configure themselves. */
export function metadataRpcs({ services }: Models, { tokenIssuer: { issuer } }: Access, idTokens: IdTokens) {
  const json = JSON.stringify({
    issuer,
    ...endpointsOf(issuer),
    jwks_uri: `${baseOf(issuer)}/oauth/keys`,
    scopes_supported: clientScopes,
    subject_types_supported: ['public'],
    id_token_signing_alg_values_supported: ['RS256'],
    claims_supported: [
      ...['iss', 'sub', 'aud', 'exp', 'iat', 'auth_time', 'nonce', 'amr', 'at_hash', 'sid'],
      ...['preferred_username', 'name', 'email', 'email_verified', 'roles', 'groups'],
    ],
    claims_parameter_supported: false,
    request_parameter_supported: false,
    request_uri_parameter_supported: false,
    prompt_values_supported: ['none', 'login'],
    ui_locales_supported: ['pt-BR', 'en'],
  })
  return {
    async getProviderMetadata() {
      requireProvider(issuer)
      return { json }
    },
    checkOrigin: async ({ origin = '' }) => ({ known: isOrigin(await services.redirectUris(), origin) }),
    getIdTokenKeys: async () => ({ json: await idTokens.keySet() }),
  } satisfies Partial<OpenIdRpcs>
}
