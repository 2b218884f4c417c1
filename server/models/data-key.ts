import type { Transaction } from 'sequelize'
import { bytes, defineTable, hasDefault, key, text, time } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import {
  createMasterKey,
  type DataKeys,
  dataKeyNames,
  derivedDataKeys,
  type MasterKey,
  randomDataKeys,
  unwrapKey,
  wrapKey,
} from './master-key.js'
import { signingKeyUse } from './signing-key.js'

/** The data keys of a registry, wrapped in its database, and what is done with them once they are loaded. */
export interface StoredKeys extends MasterKey {
  /** Loads the data keys, if there are any. Throws when this master key is another than the one that wrapped them. */
  find(): Promise<boolean>
  /** The same where there must be some: throws when there are none. */
  load(): Promise<void>
  /**
   * Makes the data keys unless they are there; in a registry from before, takes over those that were derived from the
   * master key. Of several who do it at once, one does. Loads them. Returns whether it made any.
   */
  install(t: Transaction): Promise<boolean>
  /** Wraps the data keys by another master key, which the next start needs. Whoever has loaded them goes on. */
  rotate(masterKey: Buffer, t: Transaction): Promise<void>
  /** The master key itself, for a backup, once it has opened the data keys that the transaction sees. */
  reveal(t: Transaction): Promise<Buffer>
  /** Loads data keys that another master key wrapped, as those of a backup, and wraps them by this one. */
  adopt(another: Buffer, t: Transaction): Promise<void>
}

const attributes = { name: key(text), wrapped: bytes, createdAt: hasDefault(time) }

type Wrapped = { readonly name: string; readonly wrapped: Buffer }

const all: Statement = { name: 'data-keys', text: 'SELECT name, wrapped FROM data_keys' }

// Whoever comes second waits here, and finds the keys of the first.
const lock: Statement = { name: 'data-keys-lock', text: 'LOCK TABLE data_keys IN SHARE ROW EXCLUSIVE MODE' }

/** A registry that was ever installed has a signing key. */
const anySigningKey: Statement = {
  name: 'data-keys-signing-key',
  text: 'SELECT kid, private_sealed AS sealed FROM signing_keys LIMIT 1',
}

/** The data keys of a database, by its master key. */
export function createStoredKeys(database: Database, masterKey: Buffer): StoredKeys {
  const table = defineTable(database, 'data_keys', attributes)
  let loaded: DataKeys | undefined

  const verbs = createMasterKey(() => {
    if (!loaded) throw new Error('The data keys are not loaded yet.')
    return loaded
  })

  function unwrap(rows: readonly Wrapped[], by = masterKey): DataKeys {
    return asRightKey(() =>
      Object.fromEntries(rows.map(({ name, wrapped }) => [name, unwrapKey(by, name, wrapped)])),
    ) as DataKeys
  }

  async function wrap(keys: DataKeys, by: Buffer, transaction: Transaction): Promise<void> {
    for (const [name, each] of Object.entries(keys))
      await table().update({ wrapped: wrapKey(by, name, each) }, { where: { name }, transaction })
  }

  /** The keys to begin with. */
  async function first(t: Transaction): Promise<DataKeys> {
    const [before] = await database.run<{ kid: string; sealed: Buffer }>(anySigningKey, [], t)
    if (!before) return randomDataKeys()
    const keys = { ...randomDataKeys(), ...derivedDataKeys(masterKey) }
    asRightKey(() => createMasterKey(() => keys).open(signingKeyUse(before.kid), before.sealed))
    return keys
  }

  async function find(): Promise<boolean> {
    const rows = await database.run<Wrapped>(all, [])
    if (rows.length > 0) loaded = unwrap(rows)
    return rows.length > 0
  }

  return {
    ...verbs,
    find,
    async load() {
      if (!(await find())) throw new Error('The registry is not installed yet: run `auth-admin install` first.')
    },
    async install(transaction) {
      await database.run(lock, [], transaction)
      const rows = await database.run<Wrapped>(all, [], transaction)
      const keys = rows.length > 0 ? unwrap(rows) : await first(transaction)
      loaded = keys
      if (rows.length > 0) return false
      const wrapped = dataKeyNames.map(name => ({ name, wrapped: wrapKey(masterKey, name, keys[name]) }))
      await table().bulkCreate(wrapped, { transaction })
      return true
    },
    async rotate(another, transaction) {
      await database.run(lock, [], transaction)
      await wrap(unwrap(await database.run<Wrapped>(all, [], transaction)), another, transaction)
    },
    async reveal(transaction) {
      unwrap(await database.run<Wrapped>(all, [], transaction))
      return masterKey
    },
    async adopt(another, transaction) {
      loaded = unwrap(await database.run<Wrapped>(all, [], transaction), another)
      await wrap(loaded, masterKey, transaction)
    },
  }
}

/** Tells a master key that opens nothing here from any other fault. */
function asRightKey<T>(work: () => T): T {
  try {
    return work()
  } catch (cause) {
    throw new Error('AUTH_MASTER_KEY is not the key that this database was set up with.', { cause })
  }
}
