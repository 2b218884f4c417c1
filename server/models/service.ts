import { randomBytes } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  day,
  defineTable,
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
import type { ScopeName } from '../rules/scopes.js'
import type { MasterKey } from './master-key.js'

const attributes = {
  id: hasDefault(key(integer)),
  name: text,
  scopes: attribute<ScopeName[]>('TEXT[]'),
  createdAt: hasDefault(time),
}

/** Attributes of a key that queries read. The key itself isn't stored. */
const shownKey = {
  id: hasDefault(key(integer)),
  serviceId: integer,
  /** The first characters of the key, which identify it to administrators. */
  beginning: text,
  createdAt: hasDefault(time),
  expiresAt: time,
  /** Day of the last use in UTC; null if the key was never used. */
  lastUsedOn: hasDefault(nullable(day())),
}

const keyAttributes = { ...shownKey, digest: bytes }

/** The row of a service. */
export interface ServiceRow extends Row<typeof attributes> {}

/** A key of a service, without its digest. */
export interface ServiceKeyRow extends Row<typeof shownKey> {}

/** The service that holds a key. */
export interface KeyHolder extends Pick<ServiceRow, 'name' | 'scopes'> {
  readonly keyId: number
  /** Whether today's use of the key is recorded. */
  readonly usedToday: boolean
}

/** Prefix of every key, by which secret scanners recognize it. */
export const keyPrefix = 'authsvc_'

/** Generates a key: 256 bits from a cryptographic random source, 51 characters. */
export function newServiceKey(): string {
  return keyPrefix + randomBytes(32).toString('base64url')
}

/** Number of characters of a key that are stored in the clear: the prefix and 24 of the 256 bits. */
const keptCharacters = keyPrefix.length + 4

/** Reads and changes services and their keys. */
export type Services = ReturnType<typeof createServices>

const today = sql`(now() AT TIME ZONE 'UTC')::date`

/** Creates the services in a database. */
export function createServices(database: Database, masterKey: Pick<MasterKey, 'digest'>) {
  const table = defineTable(database, 'services', attributes)
  const keyTable = defineTable(database, 'service_keys', keyAttributes)
  const digest = (key: string) => masterKey.digest('service-key', key)
  return {
    /** Returns services by name, after `afterName`. */
    async list({ afterName = '', limit }: { afterName?: string; limit: number }) {
      const rows = await table.findAll({ where: { name: { [Op.gt]: afterName } }, order: ['name'], limit })
      return rows.map(row => row.get())
    },
    find: async (name: string, transaction?: Transaction) =>
      (await table.findOne({ where: { name }, transaction }))?.get(),
    /** Locks a service until the end of the transaction. */
    lock: async (name: string, transaction: Transaction) =>
      (await table.findOne({ where: { name }, transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    /** Registers a service. Returns undefined when the name is taken. */
    add({ name, scopes }: Pick<ServiceRow, 'name' | 'scopes'>, t: Transaction) {
      const add = sql('service-add')`
        INSERT INTO services (name, scopes) VALUES (${name}, ${scopes}) ON CONFLICT (name) DO NOTHING
        RETURNING id, name, scopes, created_at AS "createdAt"`
      return first(database.run<ServiceRow>(add, t))
    },
    /** Changes the name or the scopes of a service. Throws a unique violation for a name that is taken. */
    async edit(id: number, changes: Partial<Pick<ServiceRow, 'name' | 'scopes'>>, transaction: Transaction) {
      await table.update(changes, { where: { id }, transaction })
    },
    /** Deletes a service and its keys. */
    async remove(id: number, transaction: Transaction) {
      await table.destroy({ where: { id }, transaction })
    },
    /** Returns the keys of services, by id. */
    async keys(serviceIds: readonly number[], transaction?: Transaction) {
      const shown = { attributes: Object.keys(shownKey), where: { serviceId: [...serviceIds] } }
      return (await keyTable.findAll({ ...shown, order: ['id'], transaction })).map(row => row.get())
    },
    async addKey(serviceId: number, key: string, expiresAt: Date, transaction: Transaction) {
      const row = { serviceId, beginning: key.slice(0, keptCharacters), digest: digest(key), expiresAt }
      return (await keyTable.create(row, { transaction })).get()
    },
    /** Deletes a key of a service. Returns whether it existed. */
    removeKey: async (serviceId: number, id: number, transaction: Transaction) =>
      (await keyTable.destroy({ where: { id, serviceId }, transaction })) > 0,
    /** Returns the keyed digest by which a key is looked up. */
    digest,
    /** Returns the service that holds the key with a digest; undefined for an unknown or expired key. */
    holder(digest: Buffer) {
      const find = sql('service-key-holder')`
        SELECT s.name, s.scopes, k.id AS "keyId", k.last_used_on IS NOT DISTINCT FROM ${today} AS "usedToday"
        FROM service_keys k JOIN services s ON s.id = k.service_id WHERE k.digest = ${digest} AND k.expires_at > now()`
      return first(database.read<KeyHolder>(find))
    },
    /** Records that a key was used today. */
    async touch(keyId: number) {
      await database.run(sql('service-key-touch')`
        UPDATE service_keys SET last_used_on = ${today} WHERE id = ${keyId} AND last_used_on IS DISTINCT FROM ${today}`)
    },
  }
}
