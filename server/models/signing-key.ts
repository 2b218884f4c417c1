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

/** A public key as it is published, in the fields of RFC 7517 and RFC 7518. */
export interface PublicJwk {
  readonly kty: 'EC'
  readonly crv: 'P-256'
  readonly x: string
  readonly y: string
}

const shown = {
  /** Thumbprint of the public key (RFC 7638). */
  kid: key(text),
  publicJwk: attribute<PublicJwk>('JSONB'),
  /** When it begins to sign, unless a newer one does. */
  signsAt: time,
  /** Null while no successor is planned. */
  verifiesUntil: hasDefault(nullable(time)),
  /** Longest lifetime of a token that it may have signed, in seconds. */
  tokenTtl: integer,
}

const kept = { ...shown, privateSealed: bytes }

const attributes = { ...kept, createdAt: hasDefault(time) }

/** A key that may verify tokens, and sign them in its time. */
export interface SigningKey extends Row<typeof shown> {
  readonly publicKey: KeyObject
  readonly privateKey: KeyObject
}

/** Seconds between publishing a key and signing with it: longer than anyone holds a key set. */
export const publishLead = 600

/** Seconds for which a token of an administrator is good, whatever the lifetime of others. */
export const adminTokenTtl = 12 * 3600

/** Seconds after which a key is succeeded. */
export const rotateAfter = 90 * 86_400

/** The signing keys in the database, sealed with the master key. */
export interface SigningKeys {
  /** All keys that may verify a token now, the newest signer first. */
  all(t?: Transaction): Promise<SigningKey[]>
  /**
   * Publishes a new key that signs `lead` seconds from now; the one before verifies until its last token is over.
   * Without `force`, does so only when there is no key yet or the newest is of age. Returns the kid of a new key.
   * How long tokens last is kept with the keys; `tokenTtl` is for the first one.
   */
  rotate(options: { force: boolean; lead: number; tokenTtl: number }, t: Transaction): Promise<string | undefined>
  /** Before tokens of this lifetime are issued: every key is known for as long as one may last that it signs. */
  raiseTtl(tokenTtl: number): Promise<void>
  /** Id of the key that signs now. */
  signer(t?: Transaction): Promise<string | undefined>
  /** For how long the key that signs now has done so, in seconds; undefined when none does. */
  signerAge(): Promise<number | undefined>
  /**
   * Drops a key at once, with every token that it signed. Always leaves a key that signs now and has no end: where the
   * one that would sign has one, or there is none, the published successor or a new key signs from now on, and its kid
   * is returned. False when there is no such key.
   */
  retire(kid: string, t: Transaction): Promise<{ successor?: string } | false>
  /** Deletes keys that verify nothing any more. */
  prune(): Promise<void>
}

// Of several who rotate at once, one does; those who read the keys don't wait.
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

// A key whose successor signs before it never signs: it would do so up to its own end, and its last tokens end with it.
const supersede: Statement = {
  name: 'signing-keys-supersede',
  text: `UPDATE signing_keys
    SET signs_at = least(signs_at, now() + make_interval(secs => $1) - interval '1 millisecond')`,
}

/** What a private key is sealed as. */
const signingKeyUse = (kid: string) => `signing-key ${kid}`

/** Thumbprint of a public key (RFC 7638). */
function thumbprint({ crv, kty, x, y }: PublicJwk): string {
  return createHash('sha256').update(JSON.stringify({ crv, kty, x, y })).digest('base64url')
}

/** A new key pair: the private key in PEM, the public one as it is published, and its id. */
export function newKeyPair(): { pem: string; publicJwk: PublicJwk; kid: string } {
  // Node.js 20 stands still for ever when it collects what made a key while that is exported: it is given out encoded.
  const { privateKey: pem, publicKey } = generateKeyPairSync('ec', {
    namedCurve: 'P-256',
    privateKeyEncoding: { format: 'pem', type: 'pkcs8' },
    publicKeyEncoding: { format: 'pem', type: 'spki' },
  })
  const { kty, crv, x, y } = createPublicKey(publicKey).export({ format: 'jwk' })
  const publicJwk = { kty, crv, x, y } as PublicJwk
  const kid = thumbprint(publicJwk)
  // On a command line such an id would be read as an option.
  return kid.startsWith('-') ? newKeyPair() : { pem, publicJwk, kid }
}

/** The signing keys in a database. */
export function createSigningKeys(database: Database, masterKey: MasterKey): SigningKeys {
  const table = defineTable(database, 'signing_keys', attributes)

  /** Publishes a new key that signs `lead` seconds from now, and ends those before it in their time. */
  async function add(
    before: Pick<SigningKey, 'tokenTtl'> | undefined,
    lead: number,
    ttl: number,
    transaction: Transaction,
  ) {
    const { pem, publicJwk, kid } = newKeyPair()
    // The first key has nobody to wait for.
    const wait = before ? lead : 0
    const tokenTtl = before?.tokenTtl ?? ttl
    // A minute more for clocks that differ; tokens of administrators last as long as they do.
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
      // One that is published already is known to some verifiers: it needn't wait any longer.
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
