import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
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
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'
import { thumbprint } from './thumbprint.js'

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

/** The longest time from now for which a key with a successor verifies, in seconds as SQL: see `add`. */
export const longestVerification = `${publishLead} + token_ttl + 60`

/** Seconds after which a key is rotated. */
export const rotateAfter = 90 * 86_400

/** SQL condition: a row of `signing_keys` is published. Tokens of other keys are invalid, even if a process caches the key. */
export const verifies = sql`(verifies_until IS NULL OR verifies_until > now())`

/** The signing keys of a registry. The database stores private keys sealed. */
export type SigningKeys = ReturnType<typeof createSigningKeys>

/** The `use` under which a private key is sealed. */
const signingKeyUse = (kid: string) => `signing-key ${kid}`

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
export function createSigningKeys(database: Database, dataKeys: DataKeys) {
  const table = defineTable(database, 'signing_keys', attributes)

  // The newest that signs by now. If all lie ahead, because the clock was set back, the first of them signs.
  const signing = sql`${verifies} ORDER BY signs_at <= now() DESC, abs(extract(epoch FROM now() - signs_at)) LIMIT 1`

  /** Returns the key that signs now. */
  function findSigner(t?: Transaction) {
    const query = sql(
      'signing-key-signer',
    )`SELECT kid, verifies_until AS "verifiesUntil" FROM signing_keys WHERE ${signing}`
    return first<Pick<SigningKey, 'kid' | 'verifiesUntil'>>(t ? database.run(query, t) : database.read(query))
  }

  // Serializes rotations. Readers of the table don't wait.
  const lockTable = (t: Transaction) => database.run(sql`LOCK TABLE signing_keys IN SHARE ROW EXCLUSIVE MODE`, t)

  // Moves the keys before their successor. A key with a later `signs_at` would sign until its own expiry, which ends its tokens.
  const supersede = async (wait: number, transaction: Transaction) => {
    const signsAt = fromNow(wait - 0.001)
    await table.update({ signsAt }, { where: { signsAt: { [Op.gt]: signsAt } }, transaction })
  }

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
    // Adds a minute for clock skew.
    const verifiesUntil = fromNow(wait + tokenTtl + 60)
    await supersede(wait, transaction)
    await table.update({ verifiesUntil }, { where: { verifiesUntil: null }, transaction })
    const privateSealed = dataKeys.seal(signingKeyUse(kid), pem)
    await table.create({ kid, publicJwk, privateSealed, signsAt: fromNow(wait), tokenTtl }, { transaction })
    return kid
  }

  return {
    /** Returns all keys, by descending `signsAt`. */
    async all(transaction?: Transaction) {
      const options = { attributes: Object.keys(kept), transaction }
      const rows = await table.findAll({ ...options, order: [['signsAt', 'DESC']] })
      return rows
        .map(row => row.get())
        .map(({ privateSealed, ...shown }) => ({
          ...shown,
          publicKey: createPublicKey({ key: { ...shown.publicJwk }, format: 'jwk' }),
          privateKey: createPrivateKey(dataKeys.open(signingKeyUse(shown.kid), privateSealed)),
        }))
    },
    /**
     * Publishes a new key that signs `lead` seconds from now. The former key verifies until its last token expires. Without
     * `force`, rotates only when no key exists or the newest key is due. Returns the kid of the new key. A new key takes over
     * the token lifetime of the former one; `tokenTtl` applies to the first key.
     */
    async rotate(
      { force, lead, tokenTtl }: { force: boolean; lead: number; tokenTtl: number },
      transaction: Transaction,
    ) {
      await lockTable(transaction)
      const recent = { signsAt: { [Op.gt]: fromNow(-rotateAfter) } }
      if (!force && (await table.count({ where: recent, transaction })) > 0) return undefined
      const last = await table.findOne({ attributes: ['tokenTtl'], order: [['signsAt', 'DESC']], transaction })
      return add(last?.get(), lead, tokenTtl, transaction)
    },
    /** Extends all keys to verify tokens of this lifetime. Call it before issuing such tokens. */
    async raiseTtl(tokenTtl: number) {
      await database.run(sql('signing-keys-raise-ttl')`
        UPDATE signing_keys SET token_ttl = ${tokenTtl},
          verifies_until = verifies_until + make_interval(secs => ${tokenTtl} - token_ttl)
        WHERE token_ttl < ${tokenTtl} AND ${verifies}`)
    },
    /** Returns the kid of the key that signs now. */
    async signer(t?: Transaction) {
      return (await findSigner(t))?.kid
    },
    /** Returns the seconds since the current signing key began to sign; undefined when no key signs. */
    async signerAge() {
      const read = sql('signing-key-age')`
        SELECT greatest(0, extract(epoch FROM now() - signs_at))::float8 AS age FROM signing_keys WHERE ${signing}`
      return (await first(database.read<{ age: number }>(read)))?.age
    },
    /**
     * Deletes a key, which revokes every token that it signed. Afterwards a key without an expiry signs: if the signing key
     * was deleted or has an expiry, the published successor or a new key signs from now on, and its kid is returned. Returns
     * false when the key doesn't exist.
     */
    async retire(kid: string, transaction: Transaction) {
      await lockTable(transaction)
      const retired = (await table.findByPk(kid, { transaction }))?.get()
      if (!retired) return false
      const signer = await findSigner(transaction)
      await table.destroy({ where: { kid }, transaction })
      if (signer?.kid !== kid && signer?.verifiesUntil === null) return {}
      // Some verifiers already know a published successor, so it signs at once.
      const published = (await table.findOne({ where: { verifiesUntil: null }, transaction }))?.get()
      if (!published) return { successor: await add(undefined, 0, retired.tokenTtl, transaction) }
      await supersede(0, transaction)
      await table.update({ signsAt: fromNow(0) }, { where: { kid: published.kid }, transaction })
      return { successor: published.kid }
    },
    /** Deletes keys whose tokens have all expired. */
    async prune() {
      await table.destroy({ where: { verifiesUntil: { [Op.lt]: fromNow(0) } } })
    },
  }
}
