// Activation keys of organizations, and provider keys of users: how they are made and compared. Those that are sent to an organization
// for one user are mailed keys.
import { randomUUID } from 'node:crypto'
import type { Database, Transaction } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import type { DataKeys } from './data-key.js'
import { providerUser } from './user-state.js'

/** The `use` under which activation keys and provider keys are sealed and digested. */
export const activationKeyUse = 'activation-key'

/** Returns an activation key, by default a new one, with the two forms that are stored. It is reusable until it is rotated. */
export function newActivationKey(
  dataKeys: DataKeys,
  key: string = randomUUID(),
): { key: string; digest: Buffer; sealed: Buffer } {
  return { key, digest: dataKeys.digest(activationKeyUse, key), sealed: dataKeys.seal(activationKeyUse, key) }
}

/** An organization `o` as `held` reads it, which stays as it is until the transaction ends. */
export interface HeldOrganization {
  readonly id: number
  readonly active: boolean
}

/** What decides whether an organization takes a member, and the lock under which it is read, which other members share. */
export const held = sql`o.id, o.active`
export const holdForMember = sql`FOR SHARE OF o`

/** Finds what activation keys and provider keys belong to. */
export type ActivationKeys = ReturnType<typeof createActivationKeys>

/** Creates the look-up of keys in a database. */
export function createActivationKeys(database: Database, dataKeys: Pick<DataKeys, 'digest'>) {
  /** Whether the keys of an organization `o` work: its own, those that were mailed to it, and those of its providers. */
  const keysWork = sql`o.active`
  /** Runs a query; in a transaction, locks the rows of the result until its end. */
  const findHeld = <Row>(name: string, query: Query, lock: Query, t?: Transaction) =>
    first(t ? database.run<Row>(sql(`${name}-held`)`${query} ${lock}`, t) : database.read<Row>(sql(name)`${query}`))
  return {
    keysWork,
    /** Returns the organization of an activation key that works. A transaction locks it, which prevents rotation until its end. */
    organizationOf(key: string, t?: Transaction) {
      const query = sql`SELECT ${held} FROM organizations o
        WHERE o.activation_key_digest = ${dataKeys.digest(activationKeyUse, key)} AND ${keysWork}`
      return findHeld<HeldOrganization>('organization-by-activation-key', query, holdForMember, t)
    },
    /**
     * Returns the organization of a provider key that works, and the user of the key. Locks likewise: the user before the key, as a
     * rotation does.
     */
    providerOf: (key: string, t?: Transaction) =>
      findHeld<HeldOrganization & { providerId: number }>(
        'organization-by-provider-key',
        sql`SELECT ${held}, u.id AS "providerId"
        FROM users u JOIN provider_keys k ON k.user_id = u.id JOIN organizations o ON o.id = u.organization_id
        WHERE k.key_digest = ${dataKeys.digest(activationKeyUse, key)}
          AND ${providerUser.sql} AND ${keysWork}`,
        sql`FOR SHARE OF u, k ${holdForMember}`,
        t,
      ),
    /** Returns which records have these activation or provider keys, such as `organization:7` or `user:7`. */
    async holders(keys: readonly string[], t: Transaction): Promise<ReadonlyMap<string, string>> {
      if (keys.length === 0) return new Map()
      const digests = keys.map(key => dataKeys.digest(activationKeyUse, key))
      const query = sql('activation-key-holders')`
        SELECT key, holder FROM unnest(${keys}::text[], ${digests}::bytea[]) AS given (key, digest), LATERAL (
          SELECT 'organization:' || id AS holder FROM organizations WHERE activation_key_digest = digest
          UNION ALL SELECT 'user:' || user_id FROM provider_keys WHERE key_digest = digest) held`
      const rows = await database.run<{ key: string; holder: string }>(query, t)
      return new Map(rows.map(({ key, holder }) => [key, holder]))
    },
  }
}
