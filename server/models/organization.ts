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
import { first, sql } from '../database/sql.js'
import { nicknameKey } from '../rules/names.js'
import {
  inepCodeOf,
  type OrganizationAttribute,
  type OrganizationValues,
  organizationFields,
  type RequiredAttribute,
} from '../rules/organization.js'
import {
  type ActivationKeys,
  activationKeyUse,
  type HeldOrganization,
  holdForMember,
  newActivationKey,
} from './activation-key.js'
import type { DataKeys } from './data-key.js'

/** Attributes of an organization that can be edited. */
const details = Object.fromEntries(
  organizationFields.map(({ attribute, required, imported, kind }) => {
    const type = kind === 'number' ? integer : kind === 'day' ? day() : text
    return [attribute, required ? type : hasDefault(imported ? type : nullable<string | number, false>(type))]
  }),
) as {
  readonly [A in OrganizationAttribute]: Attribute<OrganizationValues[A], A extends RequiredAttribute ? false : true>
}

/** Attributes of an organization that are read with its users. The activation key is sealed. */
export const shownOfOrganization = {
  active: hasDefault(flag),
  /** Whether its ROLE_INSTITUTION users may issue keys to its clients. */
  mayIssueKeys: hasDefault(flag),
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
export type OrganizationDetails = Partial<OrganizationValues & Pick<OrganizationRow, 'active' | 'mayIssueKeys'>>

/** A new organization. Only imports choose its id, among those that are reserved, and its key, by default a new one. */
export interface NewOrganization extends OrganizationDetails, Partial<Pick<OrganizationRow, 'id'>> {
  readonly name: string
  readonly activationKey?: string
}

/** The id of an organization that takes a member: server/registration/membership.ts finds out. */
export type Place = number & { readonly isPlace: true }

/** The row of an organization. */
export interface OrganizationRow extends Row<typeof attributes> {}

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
export function createOrganizations(
  database: Database,
  dataKeys: DataKeys,
  { keysWork }: Pick<ActivationKeys, 'keysWork'>,
) {
  const table = defineTable(database, 'organizations', attributes)
  return {
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
      const { digest, sealed } = newActivationKey(dataKeys, activationKey)
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
      const { key, digest, sealed } = newActivationKey(dataKeys)
      await table.update({ keyDigest: digest, keySealed: sealed }, { where: { id }, transaction })
      return key
    },
    /** Decrypts the activation key. */
    activationKey: (row: Pick<OrganizationRow, 'keySealed'>) => dataKeys.open(activationKeyUse, row.keySealed),
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
    /** Returns those of the organizations that exist, which stay as they are until the transaction ends. */
    async hold(ids: readonly number[], transaction: Transaction): Promise<HeldOrganization[]> {
      // In the order of ids, so that two transactions can't deadlock.
      const options = { attributes: ['id', 'active'], order: ['id'], transaction, lock: transaction.LOCK.SHARE }
      return (await table.findAll({ ...options, where: { id: { [Op.in]: ids } } })).map(row => row.get())
    },
  }
}
