/** Tokens assembled part by part, including ones that violate the standard. */
import { createHmac, generateKeyPairSync, type KeyObject, sign } from 'node:crypto'

const part = (value: unknown) => Buffer.from(JSON.stringify(value)).toString('base64url')

/** Makes the signature of a token from its first two parts. */
export type Signer = (data: string) => Buffer

/** A token with any header and claims, as the signer signs it. */
export function assemble(header: unknown, claims: unknown, signer: Signer): string {
  const data = `${part(header)}.${part(claims)}`
  return `${data}.${signer(data).toString('base64url')}`
}

/** ECDSA in the form of JWS, r and s side by side (RFC 7518, 3.4). */
export function ecdsa(key: KeyObject, hash = 'sha256'): Signer {
  return data => sign(hash, Buffer.from(data), { key, dsaEncoding: 'ieee-p1363' })
}

/** ECDSA in DER, as outside of JWS. */
export function ecdsaDer(key: KeyObject): Signer {
  return data => sign('sha256', Buffer.from(data), key)
}

/** RSA with PKCS #1 padding. */
export function rsa(key: KeyObject): Signer {
  return data => sign('sha256', Buffer.from(data), key)
}

/** HMAC-SHA-256. */
export function hmac(secret: string | Buffer): Signer {
  return data => createHmac('sha256', secret).update(data).digest()
}

/** The same bytes for any text to sign. */
export function constant(bytes: Buffer): Signer {
  return () => bytes
}

/** A key pair of an attacker. */
export function ownKeys(namedCurve = 'P-256') {
  return generateKeyPairSync('ec', { namedCurve })
}

/** An RSA key pair of an attacker. */
export function ownRsaKeys() {
  return generateKeyPairSync('rsa', { modulusLength: 2048 })
}
