import { createHash, createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import type { Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  selectList,
  text,
  time,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from './master-key.js'

/** A public key as a JSON Web Key (RFC 7517 and RFC 7518). */
interface PublicJwk {
  readonly kty: 'EC'
  readonly crv: 'P-256'
  readonly x: string
  readonly y: string
}

const shown = {
  /** Thumbprint of the public key (RFC 7638). */
  kid: key(text),
  publicJwk: attribute<PublicJwk>('JSONB'),
  /** Time from which the key signs, until a newer key does. */
  signsAt: time,
  /** Time until which tokens of the key are valid; null until it has a successor. */
  verifiesUntil: hasDefault(nullable(time)),
  /** Maximum lifetime of the tokens that the key signs, in seconds. */
  tokenTtl: integer,
}

const kept = { ...shown, privateSealed: bytes }

const attributes = { ...kept, createdAt: hasDefault(time) }

/** A key that verifies tokens, and signs them from `signsAt` on. */
export interface SigningKey extends Row<typeof shown> {
  readonly publicKey: KeyObject
  readonly privateKey: KeyObject
}

/** Seconds between publication and first use of a key: longer than verifiers cache a key set. */
export const publishLead = 600

/** Lifetime of tokens of administrators, in seconds. */
export const adminTokenTtl = 12 * 3600

/** Seconds after which a key is rotated. */
export const rotateAfter = 90 * 86_400

/** The signing keys of a registry. The database stores private keys sealed. */
export interface SigningKeys {
  /** Returns all keys that verify tokens now, by descending `signsAt`. */
  all(t?: Transaction): Promise<SigningKey[]>
  /**
   * Publishes a new key that signs `lead` seconds from now. The former key verifies until its last token expires. Without
   * `force`, rotates only when no key exists or the newest key is due. Returns the kid of the new key. A new key takes over
   * the token lifetime of the former one; `tokenTtl` applies to the first key.
   */
  rotate(options: { force: boolean; lead: number; tokenTtl: number }, t: Transaction): Promise<string | undefined>
  /** Extends all keys to verify tokens of this lifetime. Call it before issuing such tokens. */
  raiseTtl(tokenTtl: number): Promise<void>
  /** Returns the kid of the key that signs now. */
  signer(t?: Transaction): Promise<string | undefined>
  /** Returns the seconds since the current signing key began to sign; undefined when no key signs. */
  signerAge(): Promise<number | undefined>
  /**
   * Deletes a key, which revokes every token that it signed. Afterwards a key without an expiry signs: if the remaining
   * signing key has an expiry, or none remains, the published successor or a new key signs from now on, and its kid is
   * returned. Returns false when the key doesn't exist.
   */
  retire(kid: string, t: Transaction): Promise<{ successor?: string } | false>
  /** Deletes keys that no longer verify tokens. */
  prune(): Promise<void>
}

// Serializes rotations. Readers of the table don't wait.
const lockTable: Statement = {
  name: 'signing-keys-lock',
  text: 'LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE',
}

const all: Statement = {
  name: 'signing-keys',
  text: `SELECT ${selectList(kept, 'k')} FROM signing_keys k WHERE verifies_until IS NULL OR verifies_until > now()
    ORDER BY signs_at DESC`,
}

const newest: Statement = {
  name: 'signing-key-newest',
  text: `SELECT token_ttl AS "tokenTtl", extract(epoch FROM now() - signs_at)::float8 AS age FROM signing_keys
    ORDER BY signs_at DESC LIMIT 1`,
}

const prune: Statement = { name: 'signing-keys-prune', text: 'DELETE FROM signing_keys WHERE verifies_until < now()' }

const signer: Statement = {
  name: 'signing-key-signer',
  text: `SELECT kid, verifies_until AS "verifiesUntil" FROM signing_keys WHERE signs_at <= now() AND (verifies_until IS NULL OR verifies_until > now())
    ORDER BY signs_at DESC LIMIT 1`,
}

const signerAge: Statement = {
  name: 'signing-key-age',
  text: `SELECT extract(epoch FROM now() - max(signs_at))::float8 AS age FROM signing_keys
    WHERE signs_at <= now() AND (verifies_until IS NULL OR verifies_until > now())`,
}

const raiseTtl: Statement = {
  name: 'signing-keys-raise-ttl',
  text: `UPDATE signing_keys SET token_ttl = $1, verifies_until = verifies_until + make_interval(secs => $1 - token_ttl)
    WHERE token_ttl < $1`,
}

// Moves the keys before their successor. A key with a later `signs_at` would sign until its own expiry, which ends its tokens.
const supersede: Statement = {
  name: 'signing-keys-supersede',
  text: `UPDATE signing_keys
    SET signs_at = least(signs_at, now() + make_interval(secs => $1) - interval '1 millisecond')`,
}

/** The `use` under which a private key is sealed. */
const signingKeyUse = (kid: string) => `signing-key ${kid}`

/** Returns the thumbprint of a public key (RFC 7638). */
function thumbprint({ crv, kty, x, y }: PublicJwk): string {
  return createHash('sha256').update(JSON.stringify({ crv, kty, x, y })).digest('base64url')
}

/** Generates a key pair: the private key in PEM, the public key as a JSON Web Key, and its kid. */
export function newKeyPair(): { pem: string; publicJwk: PublicJwk; kid: string } {
  // Requests encoded keys: Node.js 20 can deadlock when it garbage-collects the generator of a key during the key's export.
  const { privateKey: pem, publicKey } = generateKeyPairSync('ec', {
    namedCurve: 'P-256',
    privateKeyEncoding: { format: 'pem', type: 'pkcs8' },
    publicKeyEncoding: { format: 'pem', type: 'spki' },
  })
  const { kty, crv, x, y } = createPublicKey(publicKey).export({ format: 'jwk' })
  const publicJwk = { kty, crv, x, y } as PublicJwk
  const kid = thumbprint(publicJwk)
  // A command line would read a kid with a leading hyphen as an option.
  return kid.startsWith('-') ? newKeyPair() : { pem, publicJwk, kid }
}

/** Creates the signing keys in a database. */
export function createSigningKeys(database: Database, masterKey: MasterKey): SigningKeys {
  const table = defineTable(database, 'signing_keys', attributes)

  /** Publishes a new key that signs `lead` seconds from now, and sets the expiry of the former keys. */
  async function add(
    before: Pick<SigningKey, 'tokenTtl'> | undefined,
    lead: number,
    ttl: number,
    transaction: Transaction,
  ) {
    const { pem, publicJwk, kid } = newKeyPair()
    // The first key needs no lead: no verifier has cached a key set.
    const wait = before ? lead : 0
    const tokenTtl = before?.tokenTtl ?? ttl
    // Adds a minute for clock skew. Tokens of administrators have a fixed lifetime, which can be longer.
    const verifiesUntil = fromNow(wait + Math.max(tokenTtl, adminTokenTtl) + 60)
    await database.run(supersede, [wait], transaction)
    await table().update({ verifiesUntil }, { where: { verifiesUntil: null }, transaction })
    const privateSealed = masterKey.seal(signingKeyUse(kid), pem)
    await table().create({ kid, publicJwk, privateSealed, signsAt: fromNow(wait), tokenTtl }, { transaction })
    return kid
  }

  return {
    async all(transaction) {
      const rows = await database.run<Row<typeof kept>>(all, [], transaction)
      return rows.map(({ privateSealed, ...shown }) => {
        const publicKey = createPublicKey({ key: { ...shown.publicJwk }, format: 'jwk' })
        return {
          ...shown,
          publicKey,
          privateKey: createPrivateKey(masterKey.open(signingKeyUse(shown.kid), privateSealed)),
        }
      })
    },
    async rotate({ force, lead, tokenTtl }, transaction) {
      await database.run(lockTable, [], transaction)
      const [last] = await database.run<{ tokenTtl: number; age: number }>(newest, [], transaction)
      if (!force && last && last.age < rotateAfter) return undefined
      return add(last, lead, tokenTtl, transaction)
    },
    async raiseTtl(tokenTtl) {
      await database.run(raiseTtl, [tokenTtl])
    },
    async signer(t) {
      const rows = t ? database.run<{ kid: string }>(signer, [], t) : database.read<{ kid: string }>(signer, [])
      return (await rows)[0]?.kid
    },
    signerAge: async () => (await database.read<{ age: number | null }>(signerAge, []))[0]?.age ?? undefined,
    async retire(kid, transaction) {
      await database.run(lockTable, [], transaction)
      const retired = (await table().findByPk(kid, { transaction }))?.get()
      if (!retired) return false
      await table().destroy({ where: { kid }, transaction })
      const [left] = await database.run<{ verifiesUntil: Date | null }>(signer, [], transaction)
      if (left?.verifiesUntil === null) return {}
      // Some verifiers already know a published successor, so it signs at once.
      const published = (await table().findOne({ where: { verifiesUntil: null }, transaction }))?.get()
      if (!published) return { successor: await add(undefined, 0, retired.tokenTtl, transaction) }
      await database.run(supersede, [0], transaction)
      await table().update({ signsAt: fromNow(0) }, { where: { kid: published.kid }, transaction })
      return { successor: published.kid }
    },
    async prune() {
      await database.run(prune, [])
    },
  }
}
