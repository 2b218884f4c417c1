import { randomUUID } from 'node:crypto'
import jwt from 'jsonwebtoken'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { refuse } from '../refusal.js'
import type { Keyring } from './keyring.js'

/** How somebody signed in (RFC 8176): password, answers to questions, mailed key. */
export type Method = 'pwd' | 'kba' | 'otp'

/** Seconds that a session lasts from its sign-in, however often its token is refreshed. */
export const sessionLength: Record<Method, number> = { pwd: 30 * 86_400, kba: 3600, otp: 3600 }

/** Claims of a token (RFC 9068), besides those that jsonwebtoken checks. */
export interface Claims {
  readonly iss: string
  readonly aud: string
  /** Id of the user. */
  readonly sub: string
  readonly iat: number
  readonly exp: number
  readonly jti: string
  /** Start of the session, seconds since 1970. */
  readonly auth_time: number
  readonly amr: readonly [Method]
  readonly roles: readonly [string]
  readonly username: string
  readonly active: boolean
  readonly org?: number
  /** Token generation of the user when it was issued. */
  readonly ver: number
}

/** Whom a token is for. */
export interface Holder {
  readonly id: number
  readonly username: string
  readonly role: string
  readonly active: boolean
  readonly organizationId: number | null
  readonly tokenGeneration: number
}

/** A sign-in that tokens go back to. */
export interface Session {
  readonly method: Method
  /** Seconds since 1970. */
  readonly startedAt: number
}

/** Issues and verifies tokens. */
export interface Tokens {
  /** A token for the holder, signed ES256. Refuses with INVALID_TOKEN when the session is over. */
  issue(holder: Holder, session: Session): Promise<string>
  /** The claims of a genuine token within its time; refuses any other with INVALID_TOKEN. Knows no revocation. */
  verify(token: string): Promise<Claims>
}

/** Verified tokens that are remembered, so that a signature is verified once in its life. */
const remembered = 20_000

/** Seconds by which the clocks of replicas may differ. */
const clockSkew = 60

/** Longest token that is looked at, in characters. */
const longest = 4096

/** Issues and verifies tokens by RFC 9068, with what RFC 8725 asks: algorithm, type, issuer, audience and key pinned. */
export function createTokens(deps: {
  keyring: Keyring
  issuer: string
  audience: string
  /** Lifetime in seconds. */
  ttl: number
  now?: () => number
}): Tokens {
  const { keyring, issuer, audience, ttl, now = Date.now } = deps
  const verified = new LRUCache<string, Claims>({ max: remembered })
  const seconds = () => Math.floor(now() / 1000)

  async function check(token: string): Promise<Claims> {
    const decoded = token.length <= longest ? jwt.decode(token, { complete: true }) : null
    const header = decoded?.header as Record<string, unknown> | undefined
    const type = typeof header?.typ === 'string' ? header.typ.toLowerCase() : ''
    const typed = type === 'at+jwt' || type === 'application/at+jwt'
    // Extensions that we don't know must not be passed over (RFC 7515, 4.1.11).
    if (typeof header?.kid !== 'string' || !typed || header.crit !== undefined) refuse(Reason.INVALID_TOKEN)
    const key = await keyring.find(header.kid)
    if (!key) refuse(Reason.INVALID_TOKEN)
    try {
      const options = { algorithms: ['ES256' as const], issuer, audience, clockTimestamp: seconds() }
      const claims = jwt.verify(token, key.publicKey, options) as unknown as Claims
      const early = claims.iat > seconds() + clockSkew
      return isComplete(claims) && !early ? claims : refuse(Reason.INVALID_TOKEN)
    } catch {
      refuse(Reason.INVALID_TOKEN)
    }
  }

  return {
    async issue(holder, { method, startedAt }) {
      const iat = seconds()
      const exp = Math.min(iat + ttl, startedAt + sessionLength[method])
      if (exp <= iat) refuse(Reason.INVALID_TOKEN, { text: 'The session is over. Log in again.' })
      const { kid, privateKey } = await keyring.signer()
      const claims: Claims = {
        iss: issuer,
        aud: audience,
        sub: String(holder.id),
        iat,
        exp,
        jti: randomUUID(),
        auth_time: startedAt,
        amr: [method],
        roles: [holder.role],
        username: holder.username,
        active: holder.active,
        ...(holder.organizationId === null ? {} : { org: holder.organizationId }),
        ver: holder.tokenGeneration,
      }
      return jwt.sign(claims, privateKey, { algorithm: 'ES256', header: { alg: 'ES256', typ: 'at+jwt', kid } })
    },
    async verify(token) {
      const known = verified.get(token)
      if (known && known.exp > seconds()) return known
      const claims = await check(token)
      verified.set(token, claims)
      return claims
    },
  }
}

/** Whether all claims that we rest on are there and of their type; jsonwebtoken asks for none of them. */
function isComplete(claims: Partial<Claims>): boolean {
  const numbers = [claims.iat, claims.exp, claims.auth_time, claims.ver]
  const method = claims.amr?.[0]
  return (
    numbers.every(Number.isInteger) &&
    /^[1-9]\d{0,9}$/.test(String(claims.sub)) &&
    method !== undefined &&
    Object.hasOwn(sessionLength, method)
  )
}
