import { createHash, createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import type { Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'

/** A public key as it is published, in the fields of RFC 7517 and RFC 7518. */
export interface PublicJwk {
  readonly kty: 'EC'
  readonly crv: 'P-256'
  readonly x: string
  readonly y: string
}

/** A key that may verify tokens, and sign them in its time. */
export interface SigningKey {
  /** Thumbprint of the public key (RFC 7638). */
  readonly kid: string
  readonly publicJwk: PublicJwk
  readonly publicKey: KeyObject
  readonly privateKey: KeyObject
  readonly signsAt: Date
  readonly verifiesUntil: Date | null
}

/** Seconds between publishing a key and signing with it: longer than anyone holds a key set. */
export const publishLead = 600

/** Days after which a key is succeeded. */
const rotateAfterDays = 90

/** The signing keys in the database, sealed with the master key. */
export interface SigningKeys {
  /** All keys that may verify a token now, the newest signer first. */
  all(): Promise<SigningKey[]>
  /**
   * Publishes a new key that signs `lead` seconds from now; the one before verifies until its last token is over.
   * Without `force`, does so only when there is no key yet or the newest is of age. Returns the kid of a new key.
   */
  rotate(options: { force: boolean; lead: number; tokenTtl: number }, t: Transaction): Promise<string | undefined>
  /** Deletes keys that verify nothing any more, and returns how many. */
  prune(): Promise<number>
}

const all: Statement = {
  name: 'signing-keys',
  text: `SELECT kid, public_jwk AS "publicJwk", private_sealed AS "privateSealed", signs_at AS "signsAt",
    verifies_until AS "verifiesUntil" FROM signing_keys
    WHERE verifies_until IS NULL OR verifies_until > now() ORDER BY signs_at DESC`,
}

const newest: Statement = {
  name: 'signing-keys-newest',
  text: `SELECT signs_at < now() - interval '${rotateAfterDays} days' AS old FROM signing_keys
    ORDER BY signs_at DESC LIMIT 1`,
}

const lockTable: Statement = {
  name: 'signing-keys-lock',
  text: 'LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE',
}

// A minute more for clocks that differ.
const succeed: Statement = {
  name: 'signing-keys-succeed',
  text: `UPDATE signing_keys SET verifies_until = now() + make_interval(secs => $1) WHERE verifies_until IS NULL`,
}

const add: Statement = {
  name: 'signing-keys-add',
  text: `INSERT INTO signing_keys (kid, public_jwk, private_sealed, signs_at)
    VALUES ($1, $2, $3, now() + make_interval(secs => $4))`,
}

const prune: Statement = {
  name: 'signing-keys-prune',
  text: 'DELETE FROM signing_keys WHERE verifies_until < now() RETURNING kid',
}

const keyUse = (kid: string) => `signing-key ${kid}`

/** Thumbprint of a public key (RFC 7638). */
function thumbprint({ crv, kty, x, y }: PublicJwk): string {
  return createHash('sha256').update(JSON.stringify({ crv, kty, x, y })).digest('base64url')
}

/** The signing keys in a database. */
export function createSigningKeys(database: Database, masterKey: MasterKey): SigningKeys {
  return {
    async all() {
      type Row = Omit<SigningKey, 'publicKey' | 'privateKey'> & { privateSealed: Buffer }
      return (await database.run<Row>(all, [])).map(({ privateSealed, ...row }) => ({
        ...row,
        publicKey: createPublicKey({ key: { ...row.publicJwk }, format: 'jwk' }),
        privateKey: createPrivateKey(masterKey.open(keyUse(row.kid), privateSealed)),
      }))
    },
    async rotate({ force, lead, tokenTtl }, transaction) {
      await database.run(lockTable, [], transaction)
      const [last] = await database.run<{ old: boolean }>(newest, [], transaction)
      if (last && !last.old && !force) return undefined
      const { privateKey, publicKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' })
      const { kty, crv, x, y } = publicKey.export({ format: 'jwk' })
      const jwk = { kty, crv, x, y } as PublicJwk
      const kid = thumbprint(jwk)
      const pem = privateKey.export({ format: 'pem', type: 'pkcs8' }) as string
      // The first key has nobody to wait for.
      const wait = last ? lead : 0
      await database.run(succeed, [wait + tokenTtl + 60], transaction)
      await database.run(add, [kid, JSON.stringify(jwk), masterKey.seal(keyUse(kid), pem), wait], transaction)
      return kid
    },
    prune: async () => (await database.run(prune, [])).length,
  }
}
