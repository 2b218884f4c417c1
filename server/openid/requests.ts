import type { AuthorizationRequest } from '../../proto/gen/auth/v1/openid_pb.js'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { requireProvider } from '../access/provider.js'
import type { ServiceRow, Services } from '../models/service.js'
import { refuse } from '../requests/refusal.js'
import { isRegistered } from '../rules/return-uri.js'

/** Scopes that clients may ask for; others are ignored (RFC 6749, 3.3). */
export const clientScopes = ['openid', 'profile', 'email', 'roles', 'groups', 'offline_access'] as const

export type ClientScope = (typeof clientScopes)[number]

/**
 * Reads an authentication request, and returns the addresses that answer it. Refuses with RECORD_NOT_FOUND when the client or its
 * redirect URI is unknown.
 */
export async function readRequest(
  services: Pick<Services, 'find'>,
  iss: string,
  given: AuthorizationRequest | undefined,
) {
  requireProvider(iss)
  const request = given ?? refuseClient()
  const { redirectUri: uri = '', scope: asked = '', state } = request
  const client = await findClient(services, request.clientId)
  if (!client || !isRegistered(client.redirectUris, uri)) return refuseClient()
  const named = asked.split(' ')
  const scope = clientScopes.filter(each => named.includes(each))
  const locationOf = (answer: { readonly code: string } | { readonly error: string }) =>
    withParameters(uri, { ...answer, state, iss })
  const error = errorOf(request, client, scope)
  return { request, client, uri, scope, locationOf, errorLocation: error && locationOf({ error }) }
}

/** Refuses a request that no redirect may answer. */
export function refuseClient(): never {
  return refuse(Reason.RECORD_NOT_FOUND, { text: 'The application isn’t registered here, or not with this address.' })
}

/** The service with this name if it is a client. */
export async function findClient(services: Pick<Services, 'find'>, name: string | undefined) {
  const found = name && /^[a-z\d-]{1,63}$/.test(name) ? await services.find(name) : undefined
  return found && found.redirectUris.length > 0 ? found : undefined
}

function errorOf(request: AuthorizationRequest, client: ServiceRow, scope: readonly string[]): string | undefined {
  const { codeChallenge, codeChallengeMethod, responseMode, state = '', nonce = '', maxAge } = request
  if (request.request) return 'request_not_supported'
  if (request.requestUri) return 'request_uri_not_supported'
  if (!request.responseType) return 'invalid_request'
  if (request.responseType !== 'code') return 'unsupported_response_type'
  if (responseMode && responseMode !== 'query') return 'invalid_request'
  if (!scope.includes('openid')) return 'invalid_scope'
  if (state.length > 2000 || nonce.length > 500) return 'invalid_request'
  if (maxAge && !/^\d{1,9}$/.test(maxAge)) return 'invalid_request'
  // Without a method, the challenge would be the verifier itself (RFC 7636, 4.3).
  const isChallenged = codeChallengeMethod === 'S256' && /^[\w-]{43}$/.test(codeChallenge ?? '')
  const isPlain = !codeChallenge && !codeChallengeMethod
  return isChallenged || (isPlain && !client.public) ? undefined : 'invalid_request'
}

/** An address with more parameters in its query. */
export function withParameters(uri: string, parameters: Readonly<Record<string, string | undefined>>): string {
  const given = Object.entries(parameters).filter((entry): entry is [string, string] => Boolean(entry[1]))
  if (given.length === 0) return uri
  return `${uri}${uri.includes('?') ? '&' : '?'}${new URLSearchParams(given)}`
}
