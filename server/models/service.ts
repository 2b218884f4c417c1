import { randomBytes } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  day,
  defineTable,
  flag,
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
import type { DataKeys } from './data-key.js'

const attributes = {
  id: hasDefault(key(integer)),
  name: text,
  scopes: attribute<ScopeName[]>('TEXT[]'),
  /** Where browsers of its users may go on after a sign-in: a service with one is a client of OpenID Connect. */
  redirectUris: hasDefault(attribute<string[]>('TEXT[]')),
  postLogoutUris: hasDefault(attribute<string[]>('TEXT[]')),
  /** Whether it has no secret. */
  public: hasDefault(flag),
  /** How people call it; empty: by its name. */
  title: hasDefault(text),
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

/** What administrators say of a service. */
export type ServiceForm = Pick<ServiceRow, 'name' | 'scopes' | 'redirectUris' | 'postLogoutUris' | 'public' | 'title'>

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
export function createServices(database: Database, dataKeys: Pick<DataKeys, 'digest'>) {
  const table = defineTable(database, 'services', attributes)
  const keyTable = defineTable(database, 'service_keys', keyAttributes)
  const digest = (key: string) => dataKeys.digest('service-key', key)
  return {
    /** Returns services by name, after `afterName`. */
    async list({ afterName = '', limit }: { afterName?: string; limit: number }) {
      const rows = await table.findAll({ where: { name: { [Op.gt]: afterName } }, order: ['name'], limit })
      return rows.map(row => row.get())
    },
    find: async (name: string, transaction?: Transaction) =>
      (await table.findOne({ where: { name }, transaction }))?.get(),
    /** Returns the number of services that are clients of OpenID Connect. */
    async countClients(): Promise<number> {
      const count = sql`SELECT count(*)::int AS clients FROM services WHERE cardinality(redirect_uris) > 0`
      return (await first(database.read<{ clients: number }>(count)))!.clients
    },
    /** Returns the redirect URIs of a service; undefined when it is gone, or its key. */
    clientOf(id: number, keyId: number | undefined) {
      const find = sql('service-client')`
        SELECT redirect_uris AS "redirectUris" FROM services s WHERE id = ${id} AND (${keyId}::int IS NULL
          OR EXISTS (SELECT FROM service_keys k WHERE k.id = ${keyId} AND k.service_id = s.id AND k.expires_at > now()))`
      return first(database.read<Pick<ServiceRow, 'redirectUris'>>(find))
    },
    /** Returns the redirect URIs of all services. */
    async redirectUris(): Promise<readonly string[]> {
      const find = sql('redirect-uris')`SELECT DISTINCT unnest(redirect_uris) AS uri FROM services`
      return (await database.read<{ uri: string }>(find)).map(({ uri }) => uri)
    },
    /** Locks a service until the end of the transaction. */
    lock: async (name: string, transaction: Transaction) =>
      (await table.findOne({ where: { name }, transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    /** Registers a service. Returns undefined when the name is taken. */
    add(
      {
        name,
        scopes,
        redirectUris = [],
        postLogoutUris = [],
        public: isPublic = false,
        title = '',
      }: Pick<ServiceForm, 'name' | 'scopes'> & Partial<ServiceForm>,
      t: Transaction,
    ) {
      const add = sql('service-add')`
        INSERT INTO services (name, scopes, redirect_uris, post_logout_uris, public, title)
        VALUES (${name}, ${scopes}, ${redirectUris}, ${postLogoutUris}, ${isPublic}, ${title}) ON CONFLICT (name) DO NOTHING
        RETURNING id, name, scopes, redirect_uris AS "redirectUris", post_logout_uris AS "postLogoutUris", public, title,
          created_at AS "createdAt"`
      return first(database.run<ServiceRow>(add, t))
    },
    /** Changes a service. Throws a unique violation for a name that is taken. */
    async edit(id: number, changes: Partial<ServiceForm>, transaction: Transaction) {
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
