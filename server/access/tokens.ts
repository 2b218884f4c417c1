import { type KeyObject, randomUUID } from 'node:crypto'
import jwt from 'jsonwebtoken'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { maxEntries } from '../limits/cache-size.js'
import { refuse } from '../requests/refusal.js'
import { tooLong } from '../rules/sizes.js'
import type { Keyring } from './keyring.js'

/** Authentication methods (RFC 8176): password, answers to security questions, and mailed key or one-time code. */
type Method = 'pwd' | 'kba' | 'otp'

/** Maximum seconds of a session from its sign-in, over all refreshes of its token. */
const sessionLength: Record<Method, number> = { pwd: 30 * 86_400, kba: 3600, otp: 3600 }

const everyMethod = Object.keys(sessionLength) as Method[]

/** Claims of a token (RFC 9068). */
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
  readonly amr: readonly [Method, ...Method[]]
  readonly roles: readonly [string]
  readonly username: string
  readonly active: boolean
  readonly org?: number
  /** Token generation of the user when it was issued. */
  readonly ver: number
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
}

/** The sign-in that a token and its refreshed successors come from. */
export interface Session {
  /** Absent: a new session. Administration, which refreshes no token, has none. */
  readonly id?: string
  readonly method: Method
  /** The second factor: the one-time code of an administrator. */
  readonly second?: Method
  /** Seconds since 1970. */
  readonly startedAt: number
}

/** Length of the part of a token's id that is the id of its session. */
const sessionIdLength = 18

/**
 * The id of the session of a token: the first half of the token's id, which refreshed tokens keep. Method and time don't suffice:
 * two sessions can begin in the same second.
 */
export function sessionIdOf({ jti }: Pick<Claims, 'jti'>): string {
  return jti.slice(0, sessionIdLength)
}

/** Issues and verifies tokens. */
export type Tokens = ReturnType<typeof createTokens>

/** Maximum verified tokens in the cache, so that most signatures are verified once. */
const maxCached = 20_000

/** Maximum seconds by which the clocks of replicas may differ. */
const clockSkew = 60

/** Creates tokens by RFC 9068; algorithm, type, issuer, audience and key are pinned (RFC 8725). */
export function createTokens(deps: {
  keyring: Keyring
  issuer: string
  audience: string
  /** Lifetime in seconds. */
  ttl: number
  /** Whether `ttl` limits lifetimes instead of the `tokenTtl` of the keys. Default false. */
  ownTtl?: boolean
  /** Methods whose sessions are accepted. Default all. */
  methods?: readonly Method[]
  now?: () => number
}) {
  const { keyring, issuer, audience, ttl, ownTtl = false, methods = everyMethod, now = Date.now } = deps
  const verified = new LRUCache<string, Verified>(maxEntries(maxCached))
  const seconds = () => Math.floor(now() / 1000)

  async function check(token: string, { expired }: { expired: boolean }): Promise<Verified> {
    const decoded = tooLong(token, 'token') ? null : jwt.decode(token, { complete: true })
    const header = decoded?.header as Record<string, unknown> | undefined
    const type = typeof header?.typ === 'string' ? header.typ.toLowerCase() : ''
    const isAccessToken = type === 'at+jwt' || type === 'application/at+jwt'
    // A token with critical extensions that the verifier doesn't implement is invalid (RFC 7515, 4.1.11).
    if (typeof header?.kid !== 'string' || !isAccessToken || header.crit !== undefined) refuse(Reason.INVALID_TOKEN)
    const { iat, exp } = (decoded?.payload ?? {}) as jwt.JwtPayload
    const key = await keyring.find(header.kid, ownTtl ? 0 : Number(exp) - Number(iat))
    if (!key) refuse(Reason.INVALID_TOKEN)
    const claims = verifySignature(token, key.publicKey, expired)
    if (!claims || !isComplete(claims, methods)) refuse(Reason.INVALID_TOKEN)
    if (!isInOrder(claims, ownTtl ? ttl : key.tokenTtl)) refuse(Reason.INVALID_TOKEN)
    return { ...claims, kid: header.kid }
  }

  function verifySignature(token: string, publicKey: KeyObject, ignoreExpiration: boolean): Claims | undefined {
    try {
      const options = { algorithms: ['ES256' as const], issuer, audience, clockTimestamp: seconds(), ignoreExpiration }
      return jwt.verify(token, publicKey, options) as unknown as Claims
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

  return {
    /**
     * Issues a token for the holder, signed with ES256: for a session, or for a new one with the given method. Refuses
     * with INVALID_TOKEN when the session has expired.
     */
    async issue(holder: Holder, session: Session | Method): Promise<string> {
      const iat = seconds()
      const start: Session = typeof session === 'string' ? { method: session, startedAt: iat } : session
      const { method, second, startedAt } = start
      const jti = randomUUID()
      const exp = Math.min(iat + ttl, startedAt + sessionLength[method])
      if (exp <= iat) refuse(Reason.INVALID_TOKEN, { text: 'The session has expired. Log in again.' })
      const { kid, privateKey } = await keyring.signer()
      const claims: Claims = {
        iss: issuer,
        aud: audience,
        sub: String(holder.id),
        iat,
        exp,
        jti: start.id === undefined ? jti : start.id + jti.slice(start.id.length),
        auth_time: startedAt,
        amr: second ? [method, second] : [method],
        roles: [holder.role],
        username: holder.username,
        active: holder.active,
        ...(holder.organizationId === null ? {} : { org: holder.organizationId }),
        ver: holder.tokenGeneration,
      }
      return jwt.sign(claims, privateKey, { algorithm: 'ES256', header: { alg: 'ES256', typ: 'at+jwt', kid } })
    },
    /**
     * Returns the claims of a genuine, unexpired token; refuses any other with INVALID_TOKEN. Doesn't check revocation of
     * the token or, when the token is cached, of its key: the statement that reads the caller checks both.
     */
    async verify(token: string): Promise<Verified> {
      const cached = verified.get(token)
      if (cached && cached.exp > seconds()) return cached
      const claims = await check(token, { expired: false })
      verified.set(token, claims)
      return claims
    },
    /**
     * Returns the claims of a genuine token, which may be expired or revoked, as long as its key is kept; refuses any
     * other with INVALID_TOKEN. Such a token gives no access: it only proves an earlier sign-in. It isn't taken from the cache:
     * tokens of a dropped key don't count as devices.
     */
    recognize: (token: string): Promise<Verified> => check(token, { expired: true }),
  }
}

/** Whether the claims that this service reads are present and well formed; jsonwebtoken doesn't check them. */
function isComplete(claims: Partial<Claims>, methods: readonly Method[]): boolean {
  const numbers = [claims.iat, claims.exp, claims.auth_time, claims.ver]
  return (
    numbers.every(Number.isInteger) &&
    typeof claims.jti === 'string' &&
    /^[1-9]\d{0,9}$/.test(String(claims.sub)) &&
    methods.includes(claims.amr?.[0] as Method)
  )
}
