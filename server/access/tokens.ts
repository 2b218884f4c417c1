import { type KeyObject, randomBytes, randomUUID } from 'node:crypto'
import jwt from 'jsonwebtoken'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { maxEntries } from '../limits/cache-size.js'
import { refuse } from '../requests/refusal.js'
import { tooLong } from '../rules/sizes.js'
import type { Passed } from './gate.js'
import type { Keyring } from './keyring.js'

/** Authentication methods (RFC 8176): password, answers to security questions, and mailed key. */
type Method = 'pwd' | 'kba' | 'otp'

/** Seconds of a session from its sign-in, over all refreshes of its token. The first token by password may last longer. */
const sessionLength: Record<Method, number> = { pwd: 86_400, kba: 3600, otp: 3600 }

/** The client of OAuth 2.0 to which all tokens are issued: the registry itself, at whose endpoints users sign in. */
export const ownClient = 'registry'

/** Seconds of a session by password. */
export const passwordSessionLength = sessionLength.pwd

const everyMethod = Object.keys(sessionLength) as Method[]

/** Claims of a token (RFC 9068). */
export interface Claims {
  readonly iss: string
  /** The audience of the registry; the issuer while the user isn't activated, so that no other service takes the token. */
  readonly aud: string
  readonly client_id: typeof ownClient
  /** Id of the user. */
  readonly sub: string
  readonly iat: number
  readonly exp: number
  /** Id of the token, which no other has: the id of the session, and a random part (`newTokenId`). */
  readonly jti: string
  /** Start of the session, seconds since 1970. */
  readonly auth_time: number
  readonly amr: readonly [Method, ...Method[]]
  /** The role of the user; none while it isn't activated. */
  readonly roles: readonly [string] | readonly []
  readonly username: string
  readonly active: boolean
  readonly org?: number
  /** Token generation of the user when it was issued. */
  readonly ver: number
  /** Whether the token is for the registry alone, at which its session stays signed in. */
  readonly stay?: true
}

/** Claims of a verified token, and the id of its signing key. */
export interface Verified extends Claims {
  readonly kid: string
}

/** The user that a token is for. */
interface Holder {
  readonly id: number
  readonly username: string
  readonly role: string
  readonly active: boolean
  readonly organizationId: number | null
  readonly tokenGeneration: number
  /** As in models/user.ts; absent for a new user. */
  readonly recoveryFrom?: Date | null
}

/** The sign-in that a token and its refreshed successors come from. */
export interface Session {
  /** Absent: a new session. */
  readonly id?: string
  readonly method: Method
  /** The second factor of an administrator at the pages of the registry. */
  readonly second?: Method | undefined
  /** Seconds since 1970. */
  readonly startedAt: number
  /** When the session ends, in seconds since 1970; absent: by its method. */
  readonly endsAt?: number
}

/** Length of the id of a session, a UUID. */
const sessionIdLength = 36

/** Returns a new id for a token of a session. In 1.0.0 the part behind the session is a number: this one never is. */
const newTokenId = (sessionId: string) => `${sessionId}-t${randomBytes(9).toString('base64url')}`

/** The session of a token. Its id is in the token's own: method and time don't suffice, as two can begin in the same second. */
export function sessionOf({ jti, amr, auth_time, stay }: Verified) {
  return {
    id: jti.slice(0, sessionIdLength),
    method: amr[0],
    second: amr[1],
    startedAt: auth_time,
    stay: stay === true,
  }
}

/** Whether a change of the e-mail address has ended a session: it is a recovery from before, and not the one that confirmed it. */
export function endedWithAddress(
  { id, method, startedAt }: Session,
  { recoveryFrom, recoveryKept }: { readonly recoveryFrom: Date | null; readonly recoveryKept: string | null },
): boolean {
  return method !== 'pwd' && startedAt * 1000 < (recoveryFrom?.getTime() ?? 0) && id !== recoveryKept
}

/** Issues and verifies tokens. */
export type Tokens = ReturnType<typeof createTokens>

/** Why a token isn't refreshed. */
const sessionEnded = 'The sign-in was too long ago to refresh its token. Log in again.'

/** Maximum verified tokens in the cache, so that most signatures are verified once. */
const maxCached = 20_000

/** Maximum seconds by which the clocks of replicas may differ. */
const clockSkew = 60

/** Creates tokens by RFC 9068; algorithm, type, issuer, audience and key are pinned (RFC 8725). */
export function createTokens(deps: {
  keyring: Keyring
  issuer: string
  /** The audience of tokens of activated users. */
  audience: string
  /** Lifetime in seconds. */
  ttl: number
  now?: () => number
}) {
  const { keyring, issuer, audience, ttl, now = Date.now } = deps
  const audiences: [string, ...string[]] = [audience, issuer]
  const verified = new LRUCache<string, Verified>(maxEntries(maxCached))
  const seconds = () => Math.floor(now() / 1000)

  async function check(token: string, { expired = false } = {}): Promise<Verified> {
    const decoded = tooLong(token, 'token') ? null : jwt.decode(token, { complete: true })
    const header = decoded?.header as Record<string, unknown> | undefined
    const type = typeof header?.typ === 'string' ? header.typ.toLowerCase() : ''
    const isAccessToken = type === 'at+jwt' || type === 'application/at+jwt'
    // A token with critical extensions that the verifier doesn't implement is invalid (RFC 7515, 4.1.11).
    if (typeof header?.kid !== 'string' || !isAccessToken || header.crit !== undefined) refuse(Reason.INVALID_TOKEN)
    const { iat, exp } = (decoded?.payload ?? {}) as jwt.JwtPayload
    const key = await keyring.find(header.kid, Number(exp) - Number(iat))
    if (!key) refuse(Reason.INVALID_TOKEN)
    const claims = verifySignature(token, key.publicKey, expired)
    if (!claims || !isComplete(claims)) refuse(Reason.INVALID_TOKEN)
    if (!isInOrder(claims, key.tokenTtl)) refuse(Reason.INVALID_TOKEN)
    return { ...claims, kid: header.kid }
  }

  function verifySignature(token: string, publicKey: KeyObject, ignoreExpiration: boolean): Claims | undefined {
    try {
      const pinned = { algorithms: ['ES256' as const], issuer, audience: audiences }
      return jwt.verify(token, publicKey, {
        ...pinned,
        clockTimestamp: seconds(),
        ignoreExpiration,
      }) as unknown as Claims
    } catch {
      return undefined
    }
  }

  /**
   * Whether the times are consistent: sign-in before issue, issue in the past, lifetime at most `maxLifetime` seconds.
   */
  function isInOrder({ auth_time, iat, exp }: Claims, maxLifetime: number): boolean {
    return auth_time <= iat && iat <= seconds() + clockSkew && exp - iat <= maxLifetime
  }

  /** A new session: not ended by a change of the e-mail address in the same second. */
  function begin({ recoveryFrom }: Holder, method: Method): Session {
    const recovered = method === 'pwd' || !recoveryFrom ? 0 : recoveryFrom.getTime() / 1000
    return { method, startedAt: Math.max(seconds(), recovered) }
  }

  return {
    /**
     * Issues a token for a holder that passed the gate, signed with ES256: for a session, or for a new one with the given
     * method. It expires after `ttl`, or when the session ends. With `stay` it is for the registry alone. Refuses with
     * INVALID_TOKEN when the session has ended.
     */
    async issue(holder: Passed<Holder>, session: Session | Method, { stay = false } = {}): Promise<string> {
      const start: Session = typeof session === 'string' ? begin(holder, session) : session
      const { id = randomUUID(), method, second, startedAt } = start
      // In the second of a change of the address, a recovery begins with the next one.
      const iat = Math.max(seconds(), startedAt)
      const ends = start.endsAt ?? startedAt + sessionLength[method]
      if (iat >= ends) refuse(Reason.INVALID_TOKEN, { text: sessionEnded })
      const exp = Math.min(iat + ttl, method === 'pwd' ? Math.max(ends, startedAt + ttl) : ends)
      const { kid, privateKey } = await keyring.signer()
      const claims: Claims = {
        iss: issuer,
        aud: holder.active && !stay ? audience : issuer,
        client_id: ownClient,
        sub: String(holder.id),
        iat,
        exp,
        jti: newTokenId(id),
        auth_time: startedAt,
        amr: second ? [method, second] : [method],
        roles: holder.active ? [holder.role] : [],
        username: holder.username,
        active: holder.active,
        ...(holder.organizationId === null ? {} : { org: holder.organizationId }),
        ver: holder.tokenGeneration,
        ...(stay && { stay }),
      }
      return jwt.sign(claims, privateKey, { algorithm: 'ES256', header: { alg: 'ES256', typ: 'at+jwt', kid } })
    },
    /**
     * Returns the claims of a genuine token that has not expired; refuses any other with INVALID_TOKEN. Doesn't check
     * revocation of the token or, when the token is cached, of its key: the statement that reads the caller checks both.
     */
    async verify(token: string): Promise<Verified> {
      const cached = verified.get(token)
      if (cached && cached.exp > seconds()) return cached
      const claims = await check(token)
      verified.set(token, claims)
      return claims
    },
    /**
     * Returns the claims of a genuine token, which may have expired or be revoked, as long as its key is published; refuses any
     * other with INVALID_TOKEN. Such a token gives no access: it only proves an earlier sign-in.
     */
    recognize: (token: string): Promise<Verified> => check(token, { expired: true }),
  }
}

/** Whether the claims that this service reads are present and well formed; jsonwebtoken doesn't check them. */
function isComplete(claims: Partial<Claims>): boolean {
  const numbers = [claims.iat, claims.exp, claims.auth_time, claims.ver]
  return (
    numbers.every(Number.isInteger) &&
    typeof claims.jti === 'string' &&
    /^[1-9]\d{0,9}$/.test(String(claims.sub)) &&
    everyMethod.includes(claims.amr?.[0] as Method)
  )
}
