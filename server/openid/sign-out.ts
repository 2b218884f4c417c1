import { nameOf, requireProvider } from '../access/provider.js'
import { passwordSessionLength } from '../access/tokens.js'
import type { OpenIdRpcs } from '../calls/context.js'
import { ownLine, type RefreshedSessions } from '../models/refreshed-session.js'
import type { Services } from '../models/service.js'
import type { Settings } from '../process/settings.js'
import type { IdTokens } from './id-tokens.js'
import { findClient, refuseClient, withParameters } from './requests.js'

/** The RPCs by which users sign out at the pages of the registry. */
export function signOutRpcs(deps: {
  readonly services: Services
  readonly refreshedSessions: RefreshedSessions
  readonly idTokens: IdTokens
  readonly issuer: string
  readonly settings: Pick<Settings, 'name' | 'tokenTtl'>
}): Pick<OpenIdRpcs, 'checkSignOut' | 'signOut'> {
  const { services, refreshedSessions, idTokens, issuer, settings } = deps
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
  }
}
