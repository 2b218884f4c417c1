import { randomBytes } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import { bytes, column, defineTable, fromNow, hasDefault, key, text, time } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'

const attributes = { id: key(text), sealed: column('key_sealed', bytes), createdAt: hasDefault(time) }

/** Seconds for which a key seals tokens. */
const sealsFor = 90 * 86_400

/** Seconds for which a key is kept after its successor's creation: longer than any sealed token lives. */
const opensFor = 401 * 86_400

/** Number of hexadecimal digits of the id of a key. */
export const sealingKeyIdLength = 12

/** The keys that seal tokens (access/seals.ts). A backup has none, so a restore ends every sealed token. */
export type SealingKeys = ReturnType<typeof createSealingKeys>

/** The `use` under which a key is itself sealed. */
const useOf = (id: string) => `sealing-key ${id}`

/** Creates the sealing keys in a database. */
export function createSealingKeys(database: Database, dataKeys: DataKeys) {
  const table = defineTable(database, 'sealing_keys', attributes)

  const open = ({ id, sealed }: { readonly id: string; readonly sealed: Buffer }) =>
    ({ id, key: Buffer.from(dataKeys.open(useOf(id), sealed), 'base64') }) as const

  const newest = (transaction?: Transaction) => {
    const recent = { createdAt: { [Op.gt]: fromNow(-sealsFor) } }
    return table.findOne({ where: recent, order: [['createdAt', 'DESC']], transaction })
  }

  return {
    /** Returns the key that seals now. Creates it when there is none, or when the newest has sealed for 90 days. */
    async current() {
      const found = await newest()
      if (found) return open(found.get())
      return database.transact(async t => {
        // Of concurrent processes, one creates the key.
        await database.run(sql`LOCK TABLE sealing_keys IN SHARE ROW EXCLUSIVE MODE`, t)
        const created = await newest(t)
        if (created) return open(created.get())
        const id = randomBytes(sealingKeyIdLength / 2).toString('hex')
        const sealed = dataKeys.seal(useOf(id), randomBytes(32).toString('base64'))
        await table.create({ id, sealed }, { transaction: t })
        return open({ id, sealed })
      })
    },
    /** Returns the keys that open tokens. */
    all: async () => (await table.findAll()).map(row => open(row.get())),
    /** Returns ids and times of the keys, the newest first. */
    async list() {
      const rows = await table.findAll({ attributes: ['id', 'createdAt'], order: [['createdAt', 'DESC']] })
      return rows.map(row => row.get())
    },
    /** Deletes a key, which ends every token that it sealed; the next token is sealed by a new one. False if there is none. */
    retire: async (id: string, transaction: Transaction) => (await table.destroy({ where: { id }, transaction })) > 0,
    /** Deletes the keys whose tokens have all expired. */
    async prune() {
      await database.run(sql`DELETE FROM sealing_keys k WHERE EXISTS (
        SELECT FROM sealing_keys n WHERE n.created_at > k.created_at
          AND n.created_at < now() - make_interval(secs => ${opensFor}))`)
    },
  }
}
