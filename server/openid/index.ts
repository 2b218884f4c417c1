// This folder owns OpenID Connect and the tokens of apps that stay signed in: what a client asks for (requests.ts, authorize.ts),
// what it gets (tokens.ts), and how its users sign out (sign-out.ts). A client is a service with redirect URIs, its secret a key of
// the service, a browser's session that of its token, and a grant a line of tokens (models/refreshed-session.ts). What clients and
// apps hold is sealed (grants.ts). Pages, and the errors of OAuth, belong to the gateway.
import type { Parts } from '../calls/parts.js'
import { authorizeRpcs } from './authorize.js'
import { createGrants } from './grants.js'
import { createIdTokens } from './id-tokens.js'
import { metadataRpcs } from './metadata.js'
import { createRefreshToken } from './refresh-token.js'
import { signOutRpcs } from './sign-out.js'
import { tokenRpcs } from './tokens.js'

/** Makes the RPCs of `OpenId`, and the one of `Users` that begins refresh tokens. */
export function createOpenId({ registry, access, outbox, settings }: Parts) {
  const grants = createGrants(registry, access, outbox, settings)
  const idTokens = createIdTokens(registry, access, settings)
  return {
    rpcs: {
      ...authorizeRpcs(registry, access, grants, idTokens, settings),
      ...tokenRpcs(registry, access, grants, idTokens, settings),
      ...signOutRpcs(registry, access, idTokens, settings),
      ...metadataRpcs(registry, access, idTokens),
    },
    ofUsers: { createRefreshToken: createRefreshToken(grants, settings) },
  }
}
