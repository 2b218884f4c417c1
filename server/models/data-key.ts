import type { Transaction } from 'sequelize'
import { bytes, defineTable, hasDefault, key, text, time } from '../database/attributes.js'
import type { Database } from '../database/connection.js'
import { SchemaError } from '../database/failures.js'
import { sql } from '../database/sql.js'
import {
  createMasterKey,
  type DataKeys,
  dataKeyNames,
  type MasterKey,
  randomDataKeys,
  unwrapKey,
  wrapKey,
} from './master-key.js'

/** The data keys of a registry, which its database stores wrapped, and the operations that use them. */
export interface StoredKeys extends MasterKey {
  /** Loads the data keys, and returns false if none exist. Throws when another master key wrapped them. */
  find(): Promise<boolean>
  /** Loads the data keys. Throws when none exist, or another master key wrapped them. */
  load(): Promise<void>
  /**
   * Creates the data keys unless they exist, and loads them. Of concurrent processes, only one creates them. Returns whether
   * this call created them.
   */
  install(t: Transaction): Promise<boolean>
  /** Wraps the data keys with another master key, which the next start requires. Running processes aren't affected. */
  rotate(masterKey: Buffer, t: Transaction): Promise<void>
  /** Returns the master key, for a backup. Throws when it doesn’t unwrap the data keys that the transaction reads. */
  reveal(t: Transaction): Promise<Buffer>
  /** Loads data keys that another master key wrapped, such as those of a backup, and wraps them with this master key. */
  adopt(another: Buffer, t: Transaction): Promise<void>
}

const attributes = { name: key(text), wrapped: bytes, createdAt: hasDefault(time) }

type Wrapped = { readonly name: string; readonly wrapped: Buffer }

/** Creates access to the data keys of a database, which `masterKey` wraps. */
export function createStoredKeys(database: Database, masterKey: Buffer): StoredKeys {
  const table = defineTable(database, 'data_keys', attributes)
  let loaded: DataKeys | undefined

  const operations = createMasterKey(() => {
    if (!loaded) throw new Error('The data keys are not loaded yet.')
    return loaded
  })

  function unwrap(rows: readonly Wrapped[], by = masterKey): DataKeys {
    try {
      return Object.fromEntries(rows.map(({ name, wrapped }) => [name, unwrapKey(by, name, wrapped)])) as DataKeys
    } catch (cause) {
      throw new Error('AUTH_MASTER_KEY is not the key that this database was set up with.', { cause })
    }
  }

  const all = (t?: Transaction) => database.run<Wrapped>(sql('data-keys')`SELECT name, wrapped FROM data_keys`, t)

  // Serializes concurrent calls: the second one finds the keys that the first one created.
  const lock = (t: Transaction) => database.run(sql`LOCK TABLE data_keys IN SHARE ROW EXCLUSIVE MODE`, t)

  async function wrap(keys: DataKeys, by: Buffer, transaction: Transaction): Promise<void> {
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
    find,
    async load() {
      if (!(await find())) throw new SchemaError('The registry is not installed yet: run `auth-admin install` first.')
    },
    async install(transaction) {
      await lock(transaction)
      const rows = await all(transaction)
      const keys = rows.length > 0 ? unwrap(rows) : randomDataKeys()
      loaded = keys
      if (rows.length > 0) return false
      const wrapped = dataKeyNames.map(name => ({ name, wrapped: wrapKey(masterKey, name, keys[name]) }))
      await table.bulkCreate(wrapped, { transaction })
      return true
    },
    async rotate(another, transaction) {
      await lock(transaction)
      await wrap(unwrap(await all(transaction)), another, transaction)
    },
    async reveal(transaction) {
      unwrap(await all(transaction))
      return masterKey
    },
    async adopt(another, transaction) {
      loaded = unwrap(await all(transaction), another)
      await wrap(loaded, masterKey, transaction)
    },
  }
}
