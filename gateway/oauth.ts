/** The endpoints of OAuth 2.0 that clients call: their credentials, and their errors (RFC 6749, 5.2; RFC 6750, 3). */

import type { IncomingHttpHeaders } from 'node:http'
import type { Message } from '@bufbuild/protobuf'
import type { ExchangeTokenRequest, GetUserInfoRequest } from '../proto/gen/auth/v1/openid_pb.js'
import type { Answer } from './exchange.js'
import { HttpError, type Problem } from './problem.js'

/** How clients of a route authenticate: by their secret, or by the access token of a user. */
export type Credentials = 'client' | 'access token'

/** Moves the credentials from the header to the message, where clients may send them instead. */
export function moveCredentials(kind: Credentials, { authorization }: IncomingHttpHeaders, message: Message): void {
  if (authorization === undefined) return
  const read = kind === 'client' ? readBasic : readBearer
  const given = read(authorization)
  if (!given) throw new HttpError('MALFORMED_REQUEST', 'The Authorization header is malformed.')
  const { clientId, clientSecret, accessToken } = message as Partial<ExchangeTokenRequest & GetUserInfoRequest>
  const isTwofold = clientSecret || accessToken || (clientId && 'clientId' in given && clientId !== given.clientId)
  if (isTwofold) throw new HttpError('MALFORMED_REQUEST', 'Authenticate in one way.')
  Object.assign(message, given)
}

const readBearer = (authorization: string) => {
  const accessToken = /^Bearer +(\S+)\s*$/i.exec(authorization)?.[1]
  return accessToken && { accessToken }
}

/** Reads a name and a secret, which are encoded as in a form (RFC 6749, 2.3.1). */
const readBasic = (authorization: string) => {
  const encoded = /^Basic +([A-Za-z0-9+/]+={0,2})\s*$/i.exec(authorization)?.[1]
  const [id, ...rest] = Buffer.from(encoded ?? '', 'base64')
    .toString()
    .split(':')
  const decode = (text: string) => new URLSearchParams(`s=${text.replaceAll('&', '%26')}`).get('s') ?? ''
  return id ? { clientId: decode(id), clientSecret: decode(rest.join(':')) } : undefined
}

const errors: Readonly<Record<string, readonly [error: string, status: number]>> = {
  INVALID_GRANT: ['invalid_grant', 400],
  SUSPENDED: ['invalid_grant', 400],
  SIGNED_OUT: ['invalid_grant', 400],
  INVALID_CLIENT: ['invalid_client', 401],
  INVALID_TOKEN: ['invalid_token', 401],
}

/** The error of OAuth 2.0 for a reason, and its status; `usual` is the status of the reason elsewhere. */
export function errorOf(kind: Credentials, reason: string, usual: number): { error?: string; status: number } {
  // A request without a token learns how to send one, and no error (RFC 6750, 3.1).
  if (kind === 'access token' && reason === 'MISSING_PARAMETER') return { status: 401 }
  const known = errors[reason]
  if (known) return { error: known[0], status: known[1] }
  // The only field of clients with a fixed set of values.
  if (kind === 'client' && reason === 'INVALID_ARGUMENT') return { error: 'unsupported_grant_type', status: 400 }
  if (usual === 429 || usual === 503) return { error: 'temporarily_unavailable', status: usual }
  return usual < 500 ? { error: 'invalid_request', status: 400 } : { error: 'server_error', status: usual }
}

/** Whether an error has a challenge: of a token any that RFC 6750 (3) defines but the one of scopes, of a client a wrong secret. */
export const isChallenge = (kind: Credentials, status: number) =>
  kind === 'access token' ? status === 400 || status === 401 : status === 401

/** The answer to a refused client. */
export function oauthError(kind: Credentials, { reason, status: usual, detail, headers: more }: Problem): Answer {
  const { error, status } = errorOf(kind, reason, usual)
  const description = error && detail.replace(/’/g, "'").replace(/[^\x20\x21\x23-\x5b\x5d-\x7e]/g, '?')
  const headers: Record<string, string> = { 'content-type': 'application/json', 'cache-control': 'no-store', ...more }
  const bearer = `Bearer${error ? ` error="${error}", error_description="${description}"` : ''}`
  if (isChallenge(kind, status))
    headers['www-authenticate'] = kind === 'access token' ? bearer : 'Basic realm="clients"'
  return { status, headers, body: JSON.stringify({ error, error_description: description, reason: error && reason }) }
}
