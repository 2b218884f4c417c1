import type { Transaction } from 'sequelize'
import { bytes, defineTable, hasDefault, key, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { SchemaError } from '../database/failures.js'
import { sql } from '../database/sql.js'
import { named } from '../rules/remedies.js'
import { createMasterKey, type DataKeys, dataKeyNames, randomDataKeys, unwrapKey, wrapKey } from './master-key.js'

const attributes = { name: key(text), wrapped: bytes, createdAt: hasDefault(time) }

type Wrapped = { readonly name: string; readonly wrapped: Buffer }

/** The data keys of a registry, which its database stores wrapped, and the operations that use them. */
export type StoredKeys = ReturnType<typeof createStoredKeys>

/** Creates access to the data keys of a database, which `masterKey` wraps. */
export function createStoredKeys(database: Database, masterKey: Buffer) {
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
