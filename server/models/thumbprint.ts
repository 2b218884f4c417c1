import { createHash } from 'node:crypto'

/**
 * Returns the thumbprint of a public key (RFC 7638), which is its `kid`.
 *
 * @param required the required members of its JSON Web Key, and no others
 */
export function thumbprint(required: object): string {
  const members = JSON.stringify(required, Object.keys(required).sort())
  return createHash('sha256').update(members).digest('base64url')
}
