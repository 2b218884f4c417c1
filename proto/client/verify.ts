/**
 * Verifies tokens without a call: signature, type, issuer, audience and times by the published keys, revocation by the feed of
 * changes. When what it knows is too old, it asks the registry.
 */
import { setMaxListeners } from 'node:events'
import { decodeJwt, decodeProtectedHeader, type JWTPayload, jwtVerify } from 'jose'
import { Changes } from '../gen/auth/v1/changes_pb.js'
import { Users } from '../gen/auth/v1/users_pb.js'
import { createCache } from './cache.js'
import { elapsedSince } from './clock.js'
import { createIntrospection } from './introspection.js'
import { createKeys } from './keys.js'
import { clientOf, completed, type RegistryOptions } from './registry.js'
import { followRevocations, type State } from './revocations.js'
import { invalid, notActivated, unavailable, type VerifyError } from './verify-error.js'

export type { RegistryOptions } from './registry.js'
export { VerifyError } from './verify-error.js'
export type { Warning } from './warning.js'

/** Claims of a token (RFC 9068), as they were when it was issued. */
export interface Claims {
  /** Issuer. */
  readonly iss: string
  /** Audience. */
  readonly aud: string
  /** The client to which it was issued: `registry`. */
  readonly client_id: string
  /** Id of the user: a whole number in decimal. It never changes; usernames do. */
  readonly sub: string
  /** Time of issue, seconds since 1970. */
  readonly iat: number
  /** Expiration time, seconds since 1970. */
  readonly exp: number
  /** Unique id of the token. */
  readonly jti: string
  /** Start of the session, seconds since 1970. */
  readonly auth_time: number
  /** How the user signed in (RFC 8176): `pwd` password, `kba` answers, `otp` mailed key. */
  readonly amr: readonly string[]
  /** The role of the user, one value: `ROLE_CLIENT`, `ROLE_INSTITUTION` or `ROLE_ADMIN`. */
  readonly roles: readonly string[]
  readonly username: string
  /** Whether the user was activated: always, in a token that is accepted. */
  readonly active: boolean
  /** Id of the user’s organization, if any. */
  readonly org?: number
  /** Generation of the user’s tokens. */
  readonly ver: number
}

/** A token that was accepted. */
export interface Verified {
  readonly claims: Claims
  /**
   * The time up to which revocations are known: of the registry’s database, or by this machine’s clock where `source` is
   * `registry`.
   */
  readonly asOf: Date
  /** ms since `asOf`. */
  readonly ageMs: number
  /**
   * How it was verified:
   * - `cache`: its signature was verified before;
   * - `signature`: its signature was verified now;
   * - `registry`: the registry said so, at most 10 s ago.
   */
  readonly source: 'cache' | 'signature' | 'registry'
}

/** Options of a verifier. */
export interface VerifierOptions extends RegistryOptions {
  /** The registry’s `AUTH_ISSUER`. Tokens of another issuer are invalid. */
  readonly issuer: string
  /** The registry’s `AUTH_AUDIENCE`. Tokens for another audience are invalid; those for the issuer are of inactive users. */
  readonly audience: string
  /**
   * Maximum age of what is known, in ms, before the registry is asked about each token. Default 60,000. Usually the age is
   * below 11,000. More lets a longer outage of the registry go unnoticed, during which tokens stay valid that were revoked in
   * it.
   */
  readonly maxStaleMs?: number
}

/** How many tokens were verified, by how that ended; for metrics. */
export interface Counts {
  /** Accepted: the signature was verified before. */
  cache: number
  /** Accepted: the signature was verified then. */
  signature: number
  /** Accepted: the registry said so. */
  registry: number
  /** Refused with `INVALID_TOKEN` or `NOT_ACTIVATED`. */
  invalid: number
  /** Refused with `UNAVAILABLE`. */
  unavailable: number
}

/** Verifies tokens of one registry. */
export interface Verifier {
  /**
   * Resolves with the claims of a valid token; rejects with a `VerifyError` otherwise. Calls the registry only when what is
   * known is older than `maxStaleMs`, or the key of the token is unknown.
   */
  verify(token: string): Promise<Verified>
  /** Resolves once revocations are known. Rejects if the registry refuses the key, or the key lacks `tokens.watch`. */
  ready(): Promise<void>
  /** Age of what is known, in ms, for a metric; infinite until `ready`. Alert when it exceeds 30,000. */
  readonly ageMs: number
  readonly counts: Readonly<Counts>
  /** Stops following revocations. From then on, `verify` rejects with `UNAVAILABLE`. */
  close(): void
}

/** Maximum verified tokens in the cache. */
const maxCached = 10_000

/** Maximum decoded headers in the cache. */
const maxHeaders = 100

/** Maximum characters of a token. */
const maxLength = 4_096

/** The algorithm of all signatures. */
const algorithm = 'ES256'

/** A verified token. */
interface CachedToken {
  readonly claims: Claims
  readonly kid: string
}

/** Creates a verifier, which begins to follow revocations at once. Create one for each process, and close it at the end. */
export function createVerifier(options: VerifierOptions): Verifier {
  const { issuer, audience, maxStaleMs = 60_000 } = options
  const registry = completed(options)
  if (!issuer || !audience) throw new TypeError('`issuer` and `audience` are required.')
  if (issuer === audience) throw new TypeError('`audience` must differ from `issuer`.')
  if (!(maxStaleMs >= 0)) throw new TypeError('`maxStaleMs` must be a number of milliseconds, 0 or more.')
  const closing = new AbortController()
  const { signal } = closing
  // Each call in progress listens to it.
  setMaxListeners(0, signal)
  const keys = createKeys(registry, { maxStaleMs, signal })
  keys.restart()
  const { onWarning } = registry
  const revocations = followRevocations({ changes: clientOf(Changes, registry), keys, onWarning, signal })
  const introspect = createIntrospection(clientOf(Users, registry), { issuer, audience, signal })
  const cache = createCache<CachedToken>(maxCached)
  const kids = createCache<string>(maxHeaders)
  const counts: Counts = { cache: 0, signature: 0, registry: 0, invalid: 0, unavailable: 0 }

  /** What is known, if it is recent enough. */
  function recent(): State | undefined {
    const state = revocations.state()
    return state && state.ageMs <= maxStaleMs ? state : undefined
  }

  /** The id of a token’s key. All tokens of a key have the same header: it is decoded once. */
  function kidOf(token: string): string {
    const header = token.slice(0, token.indexOf('.'))
    const known = kids.get(header)
    if (known !== undefined) return known
    const { alg, kid } = decodeProtectedHeader(token)
    if (alg !== algorithm || typeof kid !== 'string') throw invalid()
    kids.set(header, kid)
    return kid
  }

  /** Verifies the signature; undefined if it is unknown whether its key exists. */
  async function verifySignature(token: string): Promise<CachedToken | undefined> {
    try {
      const kid = kidOf(token)
      const key = keys.known(kid) ?? (await keys.find(kid).catch(() => 'unavailable' as const))
      if (key === 'unavailable') return undefined
      if (!key) throw invalid()
      const state = revocations.state()
      const time = state ? state.asOf + (recent() ? state.ageMs : 0) : 0
      const { payload } = await jwtVerify(token, key, {
        algorithms: [algorithm],
        typ: 'at+jwt',
        issuer,
        audience: [audience, issuer],
        requiredClaims: ['iat', 'exp'],
        // Of old knowledge only its own time counts: nothing is expired that wasn’t then.
        currentDate: new Date(time),
      })
      return { claims: claimsOf(payload), kid }
    } catch (error) {
      throw invalid(error)
    }
  }

  async function ask(token: string, claims: Claims): Promise<Verified> {
    const { active, at } = introspect(token)
    const isActive = await active.catch(error => {
      throw unavailable(error)
    })
    if (!isActive) throw invalid()
    const ageMs = elapsedSince(at)
    return { claims, asOf: new Date(Date.now() - ageMs), ageMs, source: 'registry' }
  }

  async function verify(token: string): Promise<Verified> {
    if (typeof token !== 'string' || token.length > maxLength) throw invalid()
    if (signal.aborted) throw unavailable(signal.reason)
    const cached = cache.get(token)
    const isCached = cached !== undefined && keys.known(cached.kid) !== undefined
    const entry = isCached ? cached : await verifySignature(token)
    // After the wait for the signature, so that a revocation that came meanwhile counts.
    const state = recent()
    // The registry would only say that the token is of no use here.
    if (entry?.claims.aud === issuer && !state) throw notActivated()
    if (!entry || !state || !keys.known(entry.kid)) return ask(token, entry?.claims ?? read(token))
    const { claims } = entry
    const { asOf, ageMs } = state
    if (claims.exp * 1000 <= asOf + ageMs || revocations.isRevoked(claims.sub, claims.ver)) {
      cache.delete(token)
      throw invalid()
    }
    if (claims.aud === issuer) throw notActivated()
    if (!isCached) cache.set(token, entry)
    return { claims, asOf: new Date(asOf), ageMs, source: isCached ? 'cache' : 'signature' }
  }

  return {
    async verify(token) {
      try {
        const verified = await verify(token)
        counts[verified.source]++
        return verified
      } catch (error) {
        counts[(error as VerifyError).code === 'UNAVAILABLE' ? 'unavailable' : 'invalid']++
        throw error
      }
    },
    ready: () => revocations.ready,
    get ageMs() {
      return revocations.state()?.ageMs ?? Number.POSITIVE_INFINITY
    },
    counts,
    close: () => closing.abort(),
  }
}

/** The claims of a token whose signature isn’t verified here. */
function read(token: string): Claims {
  try {
    return claimsOf(decodeJwt(token))
  } catch (error) {
    throw invalid(error)
  }
}

/** Claims that this module reads have their types; the registry issues no others. */
function claimsOf(payload: JWTPayload): Claims {
  const { sub, exp, ver } = payload
  if (!/^[1-9]\d{0,9}$/.test(sub ?? '') || !Number.isInteger(exp) || !Number.isInteger(ver)) throw invalid()
  return payload as unknown as Claims
}
