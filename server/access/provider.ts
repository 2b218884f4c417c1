// What the issuer of the registry lets it be: an authorization server of its apps, and a provider of OpenID Connect.
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { refuse } from '../requests/refusal.js'

/** Returns an issuer without its last slash if it is a URL, under which its endpoints are. */
export function baseOf(issuer: string): string | undefined {
  return /^https?:/.test(issuer) && URL.canParse(issuer) ? issuer.replace(/\/$/, '') : undefined
}

/**
 * Whether an issuer can be one of OpenID Connect: a URL with https, or with http on this machine, without query and fragment
 * (OpenID Connect Discovery, 3).
 */
export function isProvider(issuer: string): boolean {
  const base = baseOf(issuer)
  if (base === undefined) return false
  const { protocol, hostname, search, hash } = new URL(base)
  if (search !== '' || hash !== '') return false
  return protocol === 'https:' || /^(localhost|127\.0\.0\.1|\[::1\])$/.test(hostname)
}

/** Why the registry is no provider of OpenID Connect. */
export const noProvider =
  'The issuer of this registry is no URL with https, so other programs can’t sign users in here.'

/** Refuses with WRONG_STATE where the registry is no provider. */
export function requireProvider(issuer: string): void {
  if (!isProvider(issuer)) refuse(Reason.WRONG_STATE, { text: noProvider })
}

/** How people call the registry: by its setting, else by the host of its issuer. */
export function nameOf(issuer: string, name: string | undefined): string {
  return name ?? (baseOf(issuer) ? new URL(issuer).host : issuer)
}

/** The endpoints of OAuth 2.0 and what they take, as metadata names them (RFC 8414). */
export function endpointsOf(issuer: string) {
  const base = baseOf(issuer)
  if (base === undefined) return {}
  const methods = ['client_secret_basic', 'client_secret_post', 'none']
  return {
    token_endpoint: `${base}/oauth/token`,
    token_endpoint_auth_methods_supported: methods,
    revocation_endpoint: `${base}/oauth/revoke`,
    revocation_endpoint_auth_methods_supported: methods,
    ...(isProvider(issuer) && {
      authorization_endpoint: `${base}/oauth/authorize`,
      userinfo_endpoint: `${base}/oauth/userinfo`,
      end_session_endpoint: `${base}/oauth/logout`,
      response_types_supported: ['code'],
      response_modes_supported: ['query'],
      grant_types_supported: ['authorization_code', 'refresh_token'],
      code_challenge_methods_supported: ['S256'],
      authorization_response_iss_parameter_supported: true,
    }),
  }
}
