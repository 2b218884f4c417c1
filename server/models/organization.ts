import { randomUUID } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import {
  type Attribute,
  bytes,
  column,
  day,
  defineTable,
  expression,
  flag,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  selectList,
  text,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, type Query, sql } from '../database/sql.js'
import { nicknameKey } from '../rules/names.js'
import {
  inepCodeOf,
  type OrganizationAttribute,
  type OrganizationValues,
  organizationFields,
  type RequiredAttribute,
} from '../rules/organization.js'
import type { MasterKey } from './master-key.js'
import { providerUser } from './user-state.js'

/** Attributes of an organization that can be edited. */
const details = Object.fromEntries(
  organizationFields.map(({ attribute, required, imported, kind }) => {
    const type = kind === 'number' ? integer : kind === 'day' ? day() : text
    return [attribute, required ? type : hasDefault(imported ? type : nullable<string | number, false>(type))]
  }),
) as {
  readonly [A in OrganizationAttribute]: Attribute<OrganizationValues[A], A extends RequiredAttribute ? false : true>
}

/** Attributes of an organization that the record of its users shows. The activation key is sealed. */
export const shownOfOrganization = {
  active: hasDefault(flag),
  ...details,
  keySealed: column('activation_key_sealed', bytes),
}

const attributes = {
  id: hasDefault(key(integer)),
  ...shownOfOrganization,
  nameKey: text,
  keyDigest: column('activation_key_digest', bytes),
}

/** What can be set of an organization: by imports, also whether it is active. */
export type OrganizationDetails = Partial<OrganizationValues & Pick<OrganizationRow, 'active'>>

/** A new organization. Only imports choose its id, among those that are reserved, and its key, by default a new one. */
export interface NewOrganization extends OrganizationDetails, Partial<Pick<OrganizationRow, 'id'>> {
  readonly name: string
  readonly activationKey?: string
}

/** The id of an organization that takes a member: server/registration/membership.ts finds out. */
export type Place = number & { readonly isPlace: true }

/** The row of an organization. */
export interface OrganizationRow extends Row<typeof attributes> {}

/** The `use` under which activation keys and provider keys are sealed and digested. */
export const activationKeyUse = 'activation-key'

/** Returns an activation key, by default a new one, with the two forms that are stored. It is reusable until it is rotated. */
export function newActivationKey(
  masterKey: MasterKey,
  key: string = randomUUID(),
): { key: string; digest: Buffer; sealed: Buffer } {
  return { key, digest: masterKey.digest(activationKeyUse, key), sealed: masterKey.seal(activationKeyUse, key) }
}

/** An organization `o` as `held` reads it, which stays as it is until the transaction ends. */
export type HeldOrganization = Pick<OrganizationRow, 'id' | 'active'>

/** What decides whether an organization takes a member, and the lock under which it is read, which other members share. */
export const held = sql`o.id, o.active`
export const holdForMember = sql`FOR SHARE OF o`

/** A filter of organizations. All given conditions must hold. */
interface OrganizationFilter {
  readonly afterId?: number
  readonly active?: boolean
  readonly type?: string
  /** Search words. Each must be a prefix of a word of the organization. */
  readonly text?: string
  readonly limit: number
}

/** Reads and changes organizations. */
export type Organizations = ReturnType<typeof createOrganizations>

/** Maximum number of organizations that `named` returns. */
const mostNamed = 20

const columns = sql.text(selectList(attributes, 'o'))

/** Details with the key of a new name. */
function withNameKey<D extends OrganizationDetails>(details: D): D & { nameKey?: string } {
  return details.name === undefined ? details : { ...details, nameKey: nicknameKey(details.name) }
}

/** Creates the organizations in a database. */
export function createOrganizations(database: Database, masterKey: MasterKey) {
  const table = defineTable(database, 'organizations', attributes)
  /** Whether the keys of an organization `o` work: its own, those that were mailed to it, and those of its providers. */
  const keysWork = sql`o.active`
  /** Runs a query; in a transaction, locks the rows of the result until its end. */
  const findHeld = <Row>(name: string, query: Query, lock: Query, t?: Transaction) =>
    first(t ? database.run<Row>(sql(`${name}-held`)`${query} ${lock}`, t) : database.read<Row>(sql(name)`${query}`))
  return {
    keysWork,
    /** Returns the organizations that match the filter, by id. */
    list({ afterId = 0, active, type, text, limit }: OrganizationFilter) {
      const matching = sql.all(
        sql`o.id > ${afterId}`,
        active !== undefined && sql`o.active = ${active}`,
        type !== undefined && sql`o.type = ${type}`,
        text !== undefined &&
          sql`organization_words(o.name, o.inep_code, o.login, o.email, o.responsible) @@ (search_query(${text}) || search_query(${inepCodeOf(text)}))`,
      )
      // `id + 0` prevents a scan of the whole table by id: the planner overestimates the matches of a prefix.
      const order = text === undefined ? sql`o.id` : sql`o.id + 0`
      return database.run<OrganizationRow>(
        sql`SELECT ${columns} FROM organizations o WHERE ${matching} ORDER BY ${order} LIMIT ${limit}`,
      )
    },
    /** Returns the organization with an id. */
    find: async (id: number) => (await table.findByPk(id))?.get(),
    /** Returns organizations with this INEP code or this name key, 20 at most. */
    async named(code: string, nameKey: string) {
      const inepCode = inepCodeOf(code)
      const rows = await table.findAll({
        where: { [Op.or]: [{ inepCode }, { nameKey }] },
        order: ['id'],
        limit: mostNamed,
      })
      return rows.map(row => row.get())
    },
    /** Returns the organizations with these ids or INEP codes. */
    async findMany(ids: readonly number[], inepCodes: readonly string[], transaction: Transaction) {
      const where = { [Op.or]: [{ id: { [Op.in]: ids } }, { inepCode: { [Op.in]: inepCodes.map(inepCodeOf) } }] }
      return (await table.findAll({ where, order: ['id'], transaction })).map(row => row.get())
    },
    /** Returns the sealed activation keys of organizations, by id. */
    async keys(ids: readonly number[]) {
      const where = { id: { [Op.in]: ids } }
      return (await table.findAll({ attributes: ['id', 'keySealed'], where, order: ['id'] })).map(row => row.get())
    },
    /** Returns another organization with the INEP code. Locks the code, so the result holds until the transaction ends. */
    async withInepCode(inepCode: string, id: number | undefined, transaction: Transaction) {
      const query = sql`SELECT pg_advisory_xact_lock(${advisoryKeys.inepCodes}, hashtext(${inepCode}))`
      await database.run(query, transaction)
      const where = { inepCode, id: { [Op.ne]: id ?? null } }
      return (await table.findOne({ attributes: ['id'], where, transaction }))?.get().id
    },
    /** Deletes an organization, which must have no members. */
    async remove(id: number, transaction: Transaction) {
      await table.destroy({ where: { id }, transaction })
    },
    /** Locks an organization until the end of the transaction. */
    lock: async (id: number, transaction: Transaction) =>
      (await table.findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    /** Registers an organization, active and of today unless the details say otherwise, with a new activation key. */
    async add({ activationKey, active = true, ...details }: NewOrganization, transaction: Transaction) {
      const { digest, sealed } = newActivationKey(masterKey, activationKey)
      const key = { nameKey: nicknameKey(details.name), keyDigest: digest, keySealed: sealed }
      const row = { creationDate: expression<string>(database.today.text), ...details, ...key, active }
      return (await table.create(row, { transaction })).get()
    },
    /** Changes attributes of an organization. */
    async edit(id: number, details: OrganizationDetails, transaction?: Transaction) {
      await table.update(withNameKey(details), { where: { id }, transaction })
    },
    /** Activates or deactivates an organization. */
    async setActive(id: number, active: boolean, transaction?: Transaction) {
      await table.update({ active }, { where: { id }, transaction })
    },
    /** Replaces the activation key by a new one, and returns it. The former key is invalid at once. */
    async rotateKey(id: number, transaction: Transaction) {
      const { key, digest, sealed } = newActivationKey(masterKey)
      await table.update({ keyDigest: digest, keySealed: sealed }, { where: { id }, transaction })
      return key
    },
    /** Returns which records have these activation or provider keys, such as `organization:7` or `user:7`. */
    async keyHolders(keys: readonly string[], t: Transaction): Promise<ReadonlyMap<string, string>> {
      if (keys.length === 0) return new Map()
      const digests = keys.map(key => masterKey.digest(activationKeyUse, key))
      const query = sql('organizations-key-holders')`
        SELECT key, holder FROM unnest(${keys}::text[], ${digests}::bytea[]) AS given (key, digest), LATERAL (
          SELECT 'organization:' || id AS holder FROM organizations WHERE activation_key_digest = digest
          UNION ALL SELECT 'user:' || user_id FROM provider_keys WHERE key_digest = digest) held`
      const rows = await database.run<{ key: string; holder: string }>(query, t)
      return new Map(rows.map(({ key, holder }) => [key, holder]))
    },
    /** Decrypts the activation key. */
    activationKey: (row: Pick<OrganizationRow, 'keySealed'>) => masterKey.open(activationKeyUse, row.keySealed),
    /**
     * Returns the organization with an e-mail address whose keys work. A user with an organization matches only that organization;
     * otherwise the organization with the name that the user gave at sign-up precedes others with the address.
     */
    async byEmail(email: string, member: { organizationId: number | null; institutionKey: string }, t?: Transaction) {
      const { organizationId, institutionKey } = member
      const found = await first(
        database.run<{ id: number }>(
          sql`SELECT id FROM organizations o WHERE lower(email) = lower(${email}) AND ${keysWork}
          AND ${sql.all(organizationId !== null && sql`id = ${organizationId}`)}
          ORDER BY name_key = ${institutionKey} DESC, id LIMIT 1`,
          t,
        ),
      )
      return found?.id
    },
    /** Returns the e-mail address of an organization, which stays until the transaction ends; null while no key works. */
    async addressForKeys(id: number, t: Transaction) {
      const query = sql`SELECT o.email FROM organizations o WHERE o.id = ${id} AND ${keysWork} ${holdForMember}`
      return (await first(database.run<{ email: string | null }>(query, t)))?.email ?? null
    },
    /** Returns the organization of an activation key that works. A transaction locks it, which prevents rotation until its end. */
    byActivationKey(key: string, t?: Transaction) {
      const query = sql`SELECT ${held} FROM organizations o
        WHERE o.activation_key_digest = ${masterKey.digest(activationKeyUse, key)} AND ${keysWork}`
      return findHeld<HeldOrganization>('organization-by-activation-key', query, holdForMember, t)
    },
    /**
     * Returns the organization of a provider key that works, and the user of the key. Locks likewise: the user before the key, as a
     * rotation does.
     */
    byProviderKey: (key: string, t?: Transaction) =>
      findHeld<HeldOrganization & { providerId: number }>(
        'organization-by-provider-key',
        sql`SELECT ${held}, u.id AS "providerId"
        FROM users u JOIN provider_keys k ON k.user_id = u.id JOIN organizations o ON o.id = u.organization_id
        WHERE k.key_digest = ${masterKey.digest(activationKeyUse, key)}
          AND ${providerUser.sql} AND ${keysWork}`,
        sql`FOR SHARE OF u, k ${holdForMember}`,
        t,
      ),
    /** Returns those of the organizations that exist, which stay as they are until the transaction ends. */
    async hold(ids: readonly number[], transaction: Transaction): Promise<HeldOrganization[]> {
      // In the order of ids, so that two transactions can't deadlock.
      const options = { attributes: ['id', 'active'], order: ['id'], transaction, lock: transaction.LOCK.SHARE }
      return (await table.findAll({ ...options, where: { id: { [Op.in]: ids } } })).map(row => row.get())
    },
  }
}
