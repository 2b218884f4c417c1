import jwt from 'jsonwebtoken'
import type { Access } from '../access/index.js'
import type { Models } from '../models/index.js'
import type { Settings } from '../process/settings.js'

/** Maximum characters of an ID token that a client gives back. */
const maxLength = 8_000

/** Signs and reads ID tokens (OpenID Connect Core, 2). */
export type IdTokens = ReturnType<typeof createIdTokens>

/** Creates the ID tokens of a registry, which are valid for as long as access tokens. */
export function createIdTokens(
  { idTokenKeys }: Models,
  { tokenIssuer: { issuer }, now }: Access,
  { tokenTtl }: Pick<Settings, 'tokenTtl'>,
) {
  return {
    /** Signs claims with RS256, which every client knows. Claims that are undefined are left out. */
    async sign(claims: Readonly<Record<string, unknown>>): Promise<string> {
      const { kid, privateKey } = await idTokenKeys.signer()
      const iat = Math.floor(now() / 1000)
      const all = JSON.parse(JSON.stringify({ iss: issuer, iat, exp: iat + tokenTtl, ...claims }))
      return jwt.sign(all, privateKey, { algorithm: 'RS256', keyid: kid })
    },
    /** Returns user and client of an ID token that this registry issued, expired or not; undefined for any other text. */
    async read(token: string): Promise<{ readonly sub: string; readonly aud: string } | undefined> {
      const kid = token.length <= maxLength ? jwt.decode(token, { complete: true })?.header.kid : undefined
      const key = kid && (await idTokenKeys.all()).find(each => each.kid === kid)
      if (!key) return undefined
      try {
        const pinned = { algorithms: ['RS256' as const], issuer, ignoreExpiration: true }
        return jwt.verify(token, key.publicKey, pinned) as unknown as { readonly sub: string; readonly aud: string }
      } catch {
        return undefined
      }
    },
    /** Returns the public keys that verify ID tokens, as JSON of a JWK Set (RFC 7517). */
    async keySet(): Promise<string> {
      const keys = (await idTokenKeys.all()).map(({ kid, publicJwk }) => ({
        ...publicJwk,
        kid,
        use: 'sig',
        alg: 'RS256',
      }))
      return JSON.stringify({ keys })
    },
  }
}
