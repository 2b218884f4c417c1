import { type KeyObject, randomUUID } from 'node:crypto'
import jwt from 'jsonwebtoken'
import { LRUCache } from 'lru-cache'
import { Reason } from '../../proto/gen/auth/v1/reason_pb.js'
import { maxEntries } from '../process/cache-size.js'
import { refuse } from '../requests/refusal.js'
import { tooLong } from '../rules/sizes.js'
import type { Keyring } from './keyring.js'

/** How somebody signed in (RFC 8176): password, answers to questions, mailed key. */
export type Method = 'pwd' | 'kba' | 'otp'

/** Seconds that a session lasts from its sign-in, however often its token is refreshed. */
export const sessionLength: Record<Method, number> = { pwd: 30 * 86_400, kba: 3600, otp: 3600 }

const everyMethod = Object.keys(sessionLength) as Method[]

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
  readonly amr: readonly [Method, ...Method[]]
  readonly roles: readonly [string]
  readonly username: string
  readonly active: boolean
  readonly org?: number
  /** Token generation of the user when it was issued. */
  readonly ver: number
}

/** What a token says, and the id of the key that it was signed with. */
export interface Verified extends Claims {
  readonly kid: string
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
  /** Another way besides: the one-time code of an administrator. */
  readonly second?: Method
  /** Seconds since 1970. */
  readonly startedAt: number
}

/** Issues and verifies tokens. */
export interface Tokens {
  /**
   * A token for the holder, signed ES256: of a session, or of one that starts now with a way to sign in. Refuses with
   * INVALID_TOKEN when the session is over.
   */
  issue(holder: Holder, session: Session | Method): Promise<string>
  /**
   * The claims of a genuine token within its time, and the key that signed it; refuses any other with INVALID_TOKEN.
   * Knows no revocation, neither of the token nor of a key that it has seen before: the caller's statement asks those.
   */
  verify(token: string): Promise<Verified>
  /**
   * The claims of a token that was genuine when it was issued, expired and revoked ones included, as long as its key is
   * kept; refuses any other with INVALID_TOKEN. It opens nothing: it shows that its holder has signed in before.
   */
  recognize(token: string): Promise<Claims>
}

/** Verified tokens that are remembered, so that a signature is verified once in its life. */
const remembered = 20_000

/** Seconds by which the clocks of replicas may differ. */
const clockSkew = 60

/** Issues and verifies tokens by RFC 9068, with what RFC 8725 asks: algorithm, type, issuer, audience and key pinned. */
export function createTokens(deps: {
  keyring: Keyring
  issuer: string
  audience: string
  /** Lifetime in seconds. */
  ttl: number
  /** Whether the lifetime is that of this audience alone, and not the one that is kept with the keys. */
  ownTtl?: boolean
  /** How the sessions of tokens may have begun; any way unless said. */
  methods?: readonly Method[]
  now?: () => number
}): Tokens {
  const { keyring, issuer, audience, ttl, ownTtl = false, methods = everyMethod, now = Date.now } = deps
  const verified = new LRUCache<string, Verified>(maxEntries(remembered))
  const seconds = () => Math.floor(now() / 1000)

  async function check(token: string, { expired }: { expired: boolean }): Promise<Verified> {
    const decoded = tooLong(token, 'token') ? null : jwt.decode(token, { complete: true })
    const header = decoded?.header as Record<string, unknown> | undefined
    const type = typeof header?.typ === 'string' ? header.typ.toLowerCase() : ''
    const typed = type === 'at+jwt' || type === 'application/at+jwt'
    // Extensions that we don't know must not be passed over (RFC 7515, 4.1.11).
    if (typeof header?.kid !== 'string' || !typed || header.crit !== undefined) refuse(Reason.INVALID_TOKEN)
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

  /** Whether the times make sense: a token that we issued began in a session, and lasts no longer than its key allows. */
  function isInOrder({ auth_time, iat, exp }: Claims, longest: number): boolean {
    return auth_time <= iat && iat <= seconds() + clockSkew && exp - iat <= longest
  }

  return {
    async issue(holder, session) {
      const iat = seconds()
      const start: Session = typeof session === 'string' ? { method: session, startedAt: iat } : session
      const { method, second, startedAt } = start
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
        amr: second ? [method, second] : [method],
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
      const claims = await check(token, { expired: false })
      verified.set(token, claims)
      return claims
    },
    // From no memory: a key that was dropped vouches for no device.
    recognize: token => check(token, { expired: true }),
  }
}

/** Whether all claims that we rest on are there and of their type; jsonwebtoken asks for none of them. */
function isComplete(claims: Partial<Claims>, methods: readonly Method[]): boolean {
  const numbers = [claims.iat, claims.exp, claims.auth_time, claims.ver]
  return (
    numbers.every(Number.isInteger) &&
    /^[1-9]\d{0,9}$/.test(String(claims.sub)) &&
    methods.includes(claims.amr?.[0] as Method)
  )
}
