import { createPrivateKey, createPublicKey, generateKeyPair, type KeyObject } from 'node:crypto'
import { promisify } from 'node:util'
import { LRUCache } from 'lru-cache'
import { attribute, bytes, defineTable, key, type Row, text, time } from '../database/attributes.js'
import type { Database, Transaction } from '../database/database.js'
import { sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'
import { thumbprint } from './thumbprint.js'

/** A public key as a JSON Web Key (RFC 7518, 6.3). */
interface RsaJwk {
  readonly kty: 'RSA'
  readonly n: string
  readonly e: string
}

const attributes = {
  /** Thumbprint of the public key (RFC 7638). */
  kid: key(text),
  publicJwk: attribute<RsaJwk>('JSONB'),
  privateSealed: bytes,
  /** Time from which the key signs, until its successor does. */
  signsAt: time,
}

/** A key of ID tokens. */
interface IdTokenKey extends Pick<Row<typeof attributes>, 'kid' | 'publicJwk' | 'signsAt'> {
  readonly privateKey: KeyObject
  readonly publicKey: KeyObject
}

/** Seconds for which a key is published after its last use: clients cache a key set, some for a day. */
const publishedAfter = 86_400

/** Seconds after which a key is replaced. Its successor is published all that time, longer than clients cache a key set. */
export const rotateAfter = 90 * 86_400

const generate = promisify(generateKeyPair)

/** The `use` under which a private key is sealed. */
const sealedFor = (kid: string) => `id-token-key ${kid}`

/** The keys that sign ID tokens. The database stores private keys sealed. */
export type IdTokenKeys = ReturnType<typeof createIdTokenKeys>

/**
 * Creates the keys in a database. A registry without clients has none. One with clients has a key that signs, and its successor,
 * which signs at once when the key is retired.
 */
export function createIdTokenKeys(database: Database, dataKeys: Pick<DataKeys, 'seal' | 'open'>) {
  const table = defineTable(database, 'id_token_keys', attributes)
  const cache = new LRUCache<string, Pick<IdTokenKey, 'privateKey' | 'publicKey'>>({ max: 20 })

  function keysOf({ kid, privateSealed }: Pick<Row<typeof attributes>, 'kid' | 'privateSealed'>) {
    const cached = cache.get(kid)
    if (cached) return cached
    const privateKey = createPrivateKey(dataKeys.open(sealedFor(kid), privateSealed))
    const keys = { privateKey, publicKey: createPublicKey(privateKey) }
    cache.set(kid, keys)
    return keys
  }

  /** Adds a key that signs in `seconds`: now if there is none, else as a successor if there is none. */
  async function add(seconds: number): Promise<void> {
    const { privateKey: pem, publicKey } = await generate('rsa', {
      modulusLength: 2048,
      privateKeyEncoding: { format: 'pem', type: 'pkcs8' },
      publicKeyEncoding: { format: 'pem', type: 'spki' },
    })
    const { kty, n, e } = createPublicKey(publicKey).export({ format: 'jwk' })
    const kid = thumbprint({ kty, n, e })
    // A command line would read a kid with a leading hyphen as an option.
    if (kid.startsWith('-')) return add(seconds)
    await database.transact(async t => {
      await database.run(sql`LOCK TABLE id_token_keys IN SHARE ROW EXCLUSIVE MODE`, t)
      await database.run(
        sql`INSERT INTO id_token_keys (kid, public_jwk, private_sealed, signs_at)
          SELECT ${kid}, ${JSON.stringify({ kty, n, e })}::jsonb, ${dataKeys.seal(sealedFor(kid), pem)},
            now() + make_interval(secs => ${seconds}::int)
          WHERE NOT EXISTS (SELECT FROM id_token_keys WHERE ${seconds}::int = 0 OR signs_at > now())`,
        t,
      )
    })
  }

  /** Makes the keys that a registry with clients lacks. */
  async function make(): Promise<void> {
    const rows = await table.findAll({ attributes: ['signsAt'] })
    if (rows.length === 0) await add(0)
    const [ahead] = await database.run(sql`SELECT FROM id_token_keys WHERE signs_at > now()`)
    if (!ahead) await add(rotateAfter)
  }

  /** Returns the published keys, by `signsAt`, and the one that signs. */
  async function all() {
    const rows = await database.read<Row<typeof attributes> & { readonly signs: boolean }>(sql('id-token-keys')`
      SELECT kid, public_jwk AS "publicJwk", private_sealed AS "privateSealed", signs_at AS "signsAt",
        kid = (SELECT kid FROM id_token_keys ORDER BY signs_at <= now() DESC, abs(extract(epoch FROM now() - signs_at)) LIMIT 1)
          AS signs
      FROM id_token_keys ORDER BY signs_at`)
    return rows.map(({ privateSealed, ...shown }) => ({ ...shown, ...keysOf({ kid: shown.kid, privateSealed }) }))
  }

  return {
    make,
    all,
    /** Returns the key that signs now; makes it if there is none. */
    async signer(): Promise<IdTokenKey> {
      const signing = async () => (await all()).find(({ signs }) => signs)
      const found = await signing()
      if (found) return found
      await make()
      return (await signing()) ?? Promise.reject(new Error('There is no key for ID tokens.'))
    },
    /** Deletes a key at once; its successor signs. Returns whether it existed. Call `make` after the transaction. */
    async retire(kid: string, transaction: Transaction): Promise<boolean> {
      if ((await table.destroy({ where: { kid }, transaction })) === 0) return false
      await database.run(
        sql`UPDATE id_token_keys SET signs_at = now() WHERE signs_at = (SELECT min(signs_at) FROM id_token_keys)
          AND NOT EXISTS (SELECT FROM id_token_keys WHERE signs_at <= now())`,
        transaction,
      )
      return true
    },
    /** Deletes keys a day after their last use, and makes what a registry with clients lacks. */
    async prune() {
      await database.run(sql`DELETE FROM id_token_keys k WHERE EXISTS (SELECT FROM id_token_keys s
        WHERE s.signs_at > k.signs_at AND s.signs_at < now() - make_interval(secs => ${publishedAfter}::int))`)
      const [client] = await database.run(sql`SELECT FROM services WHERE cardinality(redirect_uris) > 0 LIMIT 1`)
      if (client) await make()
    },
  }
}
