// The data keys: what each does, and their table, which has them wrapped with the master key.
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, randomBytes } from 'node:crypto'
import type { Transaction } from 'sequelize'
import { bytes, defineTable, hasDefault, key, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { SchemaError } from '../database/failures.js'
import { sql } from '../database/sql.js'
import { named } from '../rules/remedies.js'

/** Names of the data keys, 32 bytes each. The database stores them wrapped with the master key. */
const dataKeyNames = ['pepper', 'sealing', 'digesting', 'audit'] as const

/** The bytes of the data keys, each for one purpose. */
type KeyBytes = Readonly<Record<(typeof dataKeyNames)[number], Buffer>>

/** What the data keys do: they seal, digest and sign. Each method throws until the keys are loaded. */
export type DataKeys = ReturnType<typeof createDataKeys>

/** Creates the operations. They call `keys` at each use, so the data keys may be loaded later. */
export function createDataKeys(keys: () => KeyBytes) {
  return {
    /** Returns the secret key of all hashes of passwords and answers. */
    pepper: (): Buffer => keys().pepper,
    /** Encrypts a secret (AES-256-GCM). `use` is the associated data, which decryption requires. */
    seal: (use: string, secret: string): Buffer => encrypt(keys().sealing, use, Buffer.from(secret)),
    /** Decrypts a secret that `seal` encrypted for the same use. Throws when it was altered, or encrypted with another key. */
    open: (use: string, sealed: Buffer): string => decrypt(keys().sealing, use, sealed).toString(),
    /** Returns a keyed digest (HMAC-SHA-256), to look up or compare a secret without storing it. */
    digest: (use: string, secret: string): Buffer =>
      createHmac('sha256', keys().digesting).update(`${use}\0${secret}`).digest(),
    /** Returns a MAC (HMAC-SHA-256) for the audit log. */
    mac: (text: string): Buffer => createHmac('sha256', keys().audit).update(text).digest(),
  }
}

/**
 * Returns a tag that distinguishes the files of a registry from those of another in the same data folder. The tag isn't secret, and
 * stays the same when the master key changes and in a restored registry.
 */
export function registryTag({ digest }: Pick<DataKeys, 'digest'>): string {
  return digest('registry', '').toString('hex', 0, 4)
}

const attributes = { name: key(text), wrapped: bytes, createdAt: hasDefault(time) }

type Wrapped = { readonly name: string; readonly wrapped: Buffer }

/** The data keys of a registry, which its database stores wrapped, and the operations that use them. */
export type StoredKeys = ReturnType<typeof createStoredKeys>

/** Creates access to the data keys of a database, which `masterKey` wraps. */
export function createStoredKeys(database: Database, masterKey: Buffer) {
  const table = defineTable(database, 'data_keys', attributes)
  let loaded: KeyBytes | undefined

  const operations = createDataKeys(() => {
    if (!loaded) throw new Error('The data keys are not loaded yet.')
    return loaded
  })

  function unwrap(rows: readonly Wrapped[], by = masterKey): KeyBytes {
    try {
      return Object.fromEntries(rows.map(({ name, wrapped }) => [name, unwrapKey(by, name, wrapped)])) as KeyBytes
    } catch (cause) {
      throw new Error(
        `AUTH_MASTER_KEY is not the key of this registry, which after ${named('rotate master key')} is the new one.`,
        { cause },
      )
    }
  }

  // A template: it is the first statement of a process, and only `run` says why a connection fails, or opens one without TLS.
  const all = (t?: Transaction) => database.run<Wrapped>(sql('data-keys')`SELECT name, wrapped FROM data_keys`, t)

  // Serializes concurrent calls: the second one finds the keys that the first one created.
  const lock = (t: Transaction) => database.run(sql`LOCK TABLE data_keys IN SHARE ROW EXCLUSIVE MODE`, t)

  async function wrap(keys: KeyBytes, by: Buffer, transaction: Transaction): Promise<void> {
    for (const [name, each] of Object.entries(keys))
      await table.update({ wrapped: wrapKey(by, name, each) }, { where: { name }, transaction })
  }

  async function find(): Promise<boolean> {
    const rows = await all()
    if (rows.length > 0) loaded = unwrap(rows)
    return rows.length > 0
  }

  return {
    ...operations,
    /** Loads the data keys, and returns false if none exist. Throws when another master key wrapped them. */
    find,
    /** Loads the data keys. Throws when none exist, or another master key wrapped them. */
    async load(): Promise<void> {
      if (!(await find())) throw new SchemaError(`The registry is not installed yet: run ${named('install')} first.`)
    },
    /**
     * Creates the data keys unless they exist, and loads them. Of concurrent processes, only one creates them. Returns whether
     * this call created them.
     */
    async install(t: Transaction): Promise<boolean> {
      await lock(t)
      const rows = await all(t)
      const keys = rows.length > 0 ? unwrap(rows) : randomDataKeys()
      loaded = keys
      if (rows.length > 0) return false
      const wrapped = dataKeyNames.map(name => ({ name, wrapped: wrapKey(masterKey, name, keys[name]) }))
      await table.bulkCreate(wrapped, { transaction: t })
      return true
    },
    /** Wraps the data keys with another master key, which the next start requires. Running processes aren't affected. */
    async rotate(another: Buffer, t: Transaction): Promise<void> {
      await lock(t)
      await wrap(unwrap(await all(t)), another, t)
    },
    /** Returns the master key, for a backup. Throws when it doesn’t unwrap the data keys that the t reads. */
    async reveal(t: Transaction): Promise<Buffer> {
      unwrap(await all(t))
      return masterKey
    },
    /** Loads data keys that another master key wrapped, such as those of a backup, and wraps them with this master key. */
    async adopt(another: Buffer, t: Transaction): Promise<void> {
      loaded = unwrap(await all(t), another)
      await wrap(loaded, masterKey, t)
    },
  }
}

/** Generates random data keys. */
export function randomDataKeys(): KeyBytes {
  return Object.fromEntries(dataKeyNames.map(name => [name, randomBytes(32)])) as KeyBytes
}

/** Wraps a data key with the master key (AES-256-GCM with a derived key). Unwrapping requires the same name. */
function wrapKey(masterKey: Buffer, name: string, key: Buffer): Buffer {
  return encrypt(wrappingKey(masterKey), name, key)
}

/** Unwraps a data key. Throws when another master key wrapped it, or it was altered. */
function unwrapKey(masterKey: Buffer, name: string, wrapped: Buffer): Buffer {
  return decrypt(wrappingKey(masterKey), name, wrapped)
}

/** Derives the wrapping key by HKDF (RFC 5869). */
function wrappingKey(masterKey: Buffer): Buffer {
  return Buffer.from(hkdfSync('sha256', masterKey, '', 'auth wrapping', 32))
}

function encrypt(key: Buffer, use: string, secret: Buffer): Buffer {
  const nonce = randomBytes(12)
  const cipher = createCipheriv('aes-256-gcm', key, nonce).setAAD(Buffer.from(use))
  const body = Buffer.concat([cipher.update(secret), cipher.final()])
  return Buffer.concat([nonce, cipher.getAuthTag(), body])
}

function decrypt(key: Buffer, use: string, sealed: Buffer): Buffer {
  const decipher = createDecipheriv('aes-256-gcm', key, sealed.subarray(0, 12), { authTagLength: 16 })
  decipher.setAAD(Buffer.from(use)).setAuthTag(sealed.subarray(12, 28))
  return Buffer.concat([decipher.update(sealed.subarray(28)), decipher.final()])
}
