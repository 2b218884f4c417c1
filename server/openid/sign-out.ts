import type { Access } from '../access/index.js'
import { nameOf, requireProvider } from '../access/provider.js'
import { passwordSessionLength } from '../access/tokens.js'
import type { OpenIdRpcs } from '../calls/context.js'
import type { Models } from '../models/index.js'
import { ownLine } from '../models/refreshed-session.js'
import type { Settings } from '../process/settings.js'
import type { IdTokens } from './id-tokens.js'
import { findClient, refuseClient, withParameters } from './requests.js'

/** The RPCs by which users sign out at the pages of the registry. */
export function signOutRpcs(
  { services, refreshedSessions }: Models,
  { tokenIssuer: { issuer } }: Access,
  idTokens: IdTokens,
  settings: Pick<Settings, 'name' | 'tokenTtl'>,
) {
  return {
    async checkSignOut({ idTokenHint, clientId, postLogoutRedirectUri: uri, state }) {
      requireProvider(issuer)
      const hint = idTokenHint ? await idTokens.read(idTokenHint) : undefined
      if (hint && clientId && clientId !== hint.aud) refuseClient()
      const client = uri ? await findClient(services, hint?.aud ?? clientId) : undefined
      if (uri && !client?.postLogoutUris.includes(uri)) refuseClient()
      return {
        issuer,
        registry: nameOf(issuer, settings.name),
        location: uri && withParameters(uri, { state }),
        sub: hint?.sub,
      }
    },

    async signOut(_request, { caller: { user, session } }) {
      const endsAt = new Date((session.startedAt + Math.max(passwordSessionLength, settings.tokenTtl)) * 1000)
      await refreshedSessions.end({ userId: user.id, id: ownLine(session), endsAt })
      return {}
    },
  } satisfies Partial<OpenIdRpcs>
}
