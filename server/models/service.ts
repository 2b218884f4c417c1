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
import type { Database, Statement } from '../database/connection.js'
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
export interface Services {
  /** Returns services by name, after `afterName`. */
  list(filter: { afterName?: string; limit: number }): Promise<ServiceRow[]>
  find(name: string, t?: Transaction): Promise<ServiceRow | undefined>
  /** Locks a service until the end of the transaction. */
  lock(name: string, t: Transaction): Promise<ServiceRow | undefined>
  /** Registers a service. Returns undefined when the name is taken. */
  add(service: Pick<ServiceRow, 'name' | 'scopes'>, t: Transaction): Promise<ServiceRow | undefined>
  /** Changes the name or the scopes of a service. Throws a unique violation for a name that is taken. */
  edit(id: number, changes: Partial<Pick<ServiceRow, 'name' | 'scopes'>>, t: Transaction): Promise<void>
  /** Deletes a service and its keys. */
  remove(id: number, t: Transaction): Promise<void>
  /** Returns the keys of services, by id. */
  keys(serviceIds: readonly number[], t?: Transaction): Promise<ServiceKeyRow[]>
  addKey(serviceId: number, key: string, expiresAt: Date, t: Transaction): Promise<ServiceKeyRow>
  /** Deletes a key of a service. Returns whether it existed. */
  removeKey(serviceId: number, id: number, t: Transaction): Promise<boolean>
  /** Returns the keyed digest by which a key is looked up. */
  digest(key: string): Buffer
  /** Returns the service that holds the key with a digest; undefined for an unknown or expired key. */
  holder(digest: Buffer): Promise<KeyHolder | undefined>
  /** Records that a key was used today. */
  touch(keyId: number): Promise<void>
}

const today = `(now() AT TIME ZONE 'UTC')::date`

const holder: Statement = {
  name: 'service-key-holder',
  text: `SELECT s.name, s.scopes, k.id AS "keyId",
      k.last_used_on IS NOT DISTINCT FROM ${today} AS "usedToday"
    FROM service_keys k JOIN services s ON s.id = k.service_id WHERE k.digest = $1 AND k.expires_at > now()`,
}

// Of parallel first uses on a day, only one writes.
const touch: Statement = {
  name: 'service-key-touch',
  text: `UPDATE service_keys SET last_used_on = ${today} WHERE id = $1 AND last_used_on IS DISTINCT FROM ${today}`,
}

const add: Statement = {
  name: 'service-add',
  text: `INSERT INTO services (name, scopes) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING
    RETURNING id, name, scopes, created_at AS "createdAt"`,
}

/** Creates the services in a database. */
export function createServices(database: Database, masterKey: Pick<MasterKey, 'digest'>): Services {
  const table = defineTable(database, 'services', attributes)
  const keyTable = defineTable(database, 'service_keys', keyAttributes)
  const digest = (key: string) => masterKey.digest('service-key', key)
  return {
    async list({ afterName = '', limit }) {
      const rows = await table().findAll({ where: { name: { [Op.gt]: afterName } }, order: ['name'], limit })
      return rows.map(row => row.get())
    },
    find: async (name, transaction) => (await table().findOne({ where: { name }, transaction }))?.get(),
    lock: async (name, transaction) =>
      (await table().findOne({ where: { name }, transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    add: async ({ name, scopes }, transaction) => (await database.run<ServiceRow>(add, [name, scopes], transaction))[0],
    async edit(id, changes, transaction) {
      await table().update(changes, { where: { id }, transaction })
    },
    async remove(id, transaction) {
      await table().destroy({ where: { id }, transaction })
    },
    async keys(serviceIds, transaction) {
      const shown = { attributes: Object.keys(shownKey), where: { serviceId: [...serviceIds] } }
      return (await keyTable().findAll({ ...shown, order: ['id'], transaction })).map(row => row.get())
    },
    async addKey(serviceId, key, expiresAt, transaction) {
      const row = { serviceId, beginning: key.slice(0, keptCharacters), digest: digest(key), expiresAt }
      return (await keyTable().create(row, { transaction })).get()
    },
    removeKey: async (serviceId, id, transaction) =>
      (await keyTable().destroy({ where: { id, serviceId }, transaction })) > 0,
    digest,
    holder: async digest => (await database.read<KeyHolder>(holder, [digest]))[0],
    async touch(keyId) {
      await database.run(touch, [keyId])
    },
  }
}
