import { randomUUID } from 'node:crypto'
import { literal, Op, type Transaction } from 'sequelize'
import { advisoryKeys } from '../database/advisory-keys.js'
import {
  type Attribute,
  bytes,
  column,
  day,
  defineTable,
  flag,
  hasDefault,
  integer,
  key,
  nullable,
  type Row,
  text,
} from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'
import { nicknameKey } from '../rules/names.js'
import { type OrganizationAttribute, type OrganizationValues, organizationFields } from '../rules/organization.js'
import type { MasterKey } from './master-key.js'

/** Attributes of an organization that can be edited. */
const details = Object.fromEntries(
  organizationFields.map(({ attribute, required, kind }) => [
    attribute,
    required ? text : hasDefault(nullable<string | number, false>(kind === 'number' ? integer : text)),
  ]),
) as {
  readonly [A in OrganizationAttribute]: Attribute<
    OrganizationValues[A],
    null extends OrganizationValues[A] ? true : false
  >
}

/** Attributes of an organization that the record of its users shows. The activation key is sealed. */
export const shownOfOrganization = {
  active: hasDefault(flag),
  creationDate: hasDefault(day()),
  ...details,
  keySealed: column('activation_key_sealed', bytes),
}

const attributes = {
  id: hasDefault(key(integer)),
  ...shownOfOrganization,
  nameKey: text,
  keyDigest: column('activation_key_digest', bytes),
}

/** What can be set of an organization: by imports, also whether and since when it is active. */
export type OrganizationDetails = Partial<OrganizationValues & Pick<OrganizationRow, 'active' | 'creationDate'>>

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
export interface Organizations {
  /** Returns the organizations that match the filter, by id. */
  list(filter: OrganizationFilter): Promise<OrganizationRow[]>
  /** Returns the organization with an id. */
  find(id: number): Promise<OrganizationRow | undefined>
  /** Returns organizations with this INEP code or this name key, 20 at most. */
  named(inepCode: string, nameKey: string): Promise<OrganizationRow[]>
  /** Returns the number of its users, including deleted users. */
  members(id: number, t?: Transaction): Promise<number>
  /** Locks an organization until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<OrganizationRow | undefined>
  /** Returns the organizations with these ids or INEP codes. */
  findMany(ids: readonly number[], inepCodes: readonly string[], t: Transaction): Promise<OrganizationRow[]>
  /** Returns the sealed activation keys of organizations, by id. */
  keys(ids: readonly number[]): Promise<Pick<OrganizationRow, 'id' | 'keySealed'>[]>
  /** Registers an organization, active and of today unless the details say otherwise, with a new activation key. */
  add(details: NewOrganization, t: Transaction): Promise<OrganizationRow>
  /** Changes attributes of an organization. */
  edit(id: number, details: OrganizationDetails, t?: Transaction): Promise<void>
  /** Returns another organization with the INEP code. Locks the code, so the result holds until the transaction ends. */
  withInepCode(inepCode: string, id: number | undefined, t: Transaction): Promise<number | undefined>
  /** Deletes an organization, which must have no members. */
  remove(id: number, t: Transaction): Promise<void>
  /** Activates or deactivates an organization. The keys of an inactive organization are rejected. */
  setActive(id: number, active: boolean, t?: Transaction): Promise<void>
  /** Replaces the activation key, by default by a new one, and returns it. The former key is invalid at once. */
  rotateKey(id: number, t: Transaction, activationKey?: string): Promise<string>
  /** Decrypts the activation key. */
  activationKey(row: Pick<OrganizationRow, 'keySealed'>): string
  /**
   * Returns the active organization with an e-mail address. A user with an organization matches only that organization;
   * otherwise the organization with the name that the user gave at sign-up precedes others with the address.
   */
  byEmail(
    email: string,
    member: { organizationId: number | null; institutionKey: string },
    t?: Transaction,
  ): Promise<number | undefined>
  /** Returns the active organization of an activation key. A transaction locks it, which prevents rotation until its end. */
  byActivationKey(key: string, t?: Transaction): Promise<number | undefined>
  /**
   * Returns the active organization of a provider key and the user of the key, who must be an active ROLE_INSTITUTION. Locks
   * likewise.
   */
  byProviderKey(key: string, t?: Transaction): Promise<{ id: number; providerId: number } | undefined>
  /** Returns those of the organizations that exist, which stay as they are until the transaction ends. */
  hold(ids: readonly number[], t: Transaction): Promise<Pick<OrganizationRow, 'id' | 'active'>[]>
}

/** Maximum number of organizations that `named` returns. */
const mostNamed = 20

const members: Statement = {
  name: 'organization-members',
  text: 'SELECT count(*)::int AS count FROM users WHERE organization_id = $1',
}

const lockInepCode: Statement = {
  name: 'organization-lock-inep-code',
  text: `SELECT pg_advisory_xact_lock(${advisoryKeys.inepCodes}, hashtext($1))`,
}

const byEmail: Statement = {
  name: 'organization-by-email',
  text: `SELECT id FROM organizations WHERE lower(email) = lower($1) AND active AND ($2::int IS NULL OR id = $2)
    ORDER BY name_key = $3 DESC, id LIMIT 1`,
}

const byActivationKey: Statement = {
  name: 'organization-by-activation-key',
  text: 'SELECT o.id FROM organizations o WHERE o.activation_key_digest = $1 AND o.active',
}

// It locks the user before the key, as a rotation does.
const byProviderKey: Statement = {
  name: 'organization-by-provider-key',
  text: `SELECT o.id, u.id AS "providerId"
    FROM users u JOIN provider_keys k ON k.user_id = u.id JOIN organizations o ON o.id = u.organization_id
    WHERE k.key_digest = $1 AND u.active AND NOT u.suspended AND u.role = 'ROLE_INSTITUTION' AND o.active`,
}

// In the order of ids, so that two transactions can't deadlock.
const hold: Statement = {
  name: 'organizations-hold',
  text: 'SELECT id, active FROM organizations WHERE id = ANY($1::int[]) ORDER BY id FOR SHARE',
}

/** Details with the key of a new name. */
function withNameKey<D extends OrganizationDetails>(details: D): D & { nameKey?: string } {
  return details.name === undefined ? details : { ...details, nameKey: nicknameKey(details.name) }
}

/** Creates the organizations in a database. */
export function createOrganizations(database: Database, masterKey: MasterKey): Organizations {
  const table = defineTable(database, 'organizations', attributes)
  const find = async <Row>(statement: Statement, values: unknown[]) => (await database.read<Row>(statement, values))[0]
  /** Finds an organization, and locks the rows of the result until the end of the transaction. */
  const findLocked = async <Row>({ name, text }: Statement, values: unknown[], t: Transaction) =>
    (await database.run<Row>({ name: `${name}-held`, text: `${text} FOR SHARE` }, values, t))[0]
  const byKey = <Row>(statement: Statement, key: string, t: Transaction | undefined) => {
    const values = [masterKey.digest(activationKeyUse, key)]
    return t ? findLocked<Row>(statement, values, t) : find<Row>(statement, values)
  }
  return {
    async list({ afterId = 0, active, type, text, limit }) {
      const words = 'organization_words(name, inep_code, login, email, responsible) @@ search_query(:text)'
      const rows = await table().findAll({
        where: {
          [Op.and]: [
            { id: { [Op.gt]: afterId } },
            ...(active === undefined ? [] : [{ active }]),
            ...(type === undefined ? [] : [{ type }]),
            ...(text === undefined ? [] : [literal(words)]),
          ],
        },
        // `id + 0` prevents a scan of the whole table by id: the planner overestimates the matches of a prefix.
        order: [text === undefined ? 'id' : literal('id + 0')],
        limit,
        replacements: { text },
      })
      return rows.map(row => row.get())
    },
    find: async id => (await table().findByPk(id))?.get(),
    async named(inepCode, nameKey) {
      const rows = await table().findAll({
        where: { [Op.or]: [{ inepCode }, { nameKey }] },
        order: ['id'],
        limit: mostNamed,
      })
      return rows.map(row => row.get())
    },
    async findMany(ids, inepCodes, transaction) {
      const where = { [Op.or]: [{ id: { [Op.in]: ids } }, { inepCode: { [Op.in]: inepCodes } }] }
      return (await table().findAll({ where, order: ['id'], transaction })).map(row => row.get())
    },
    async keys(ids) {
      const where = { id: { [Op.in]: ids } }
      return (await table().findAll({ attributes: ['id', 'keySealed'], where, order: ['id'] })).map(row => row.get())
    },
    async members(id, transaction) {
      return (await database.run<{ count: number }>(members, [id], transaction))[0]!.count
    },
    async withInepCode(inepCode, id, transaction) {
      await database.run(lockInepCode, [inepCode], transaction)
      const where = { inepCode, ...(id !== undefined && { id: { [Op.ne]: id } }) }
      return (await table().findOne({ attributes: ['id'], where, transaction }))?.get().id
    },
    async remove(id, transaction) {
      await table().destroy({ where: { id }, transaction })
    },
    lock: async (id, transaction) =>
      (await table().findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    async add({ activationKey, active = true, creationDate, ...details }, transaction) {
      const { digest, sealed } = newActivationKey(masterKey, activationKey)
      const key = { nameKey: nicknameKey(details.name), keyDigest: digest, keySealed: sealed }
      const row = { ...details, ...key, active, ...(creationDate && { creationDate }) }
      return (await table().create(row, { transaction })).get()
    },
    async edit(id, details, transaction) {
      await table().update(withNameKey(details), { where: { id }, transaction })
    },
    async setActive(id, active, transaction) {
      await table().update({ active }, { where: { id }, transaction })
    },
    async rotateKey(id, transaction, activationKey) {
      const { key, digest, sealed } = newActivationKey(masterKey, activationKey)
      await table().update({ keyDigest: digest, keySealed: sealed }, { where: { id }, transaction })
      return key
    },
    activationKey: row => masterKey.open(activationKeyUse, row.keySealed),
    async byEmail(email, member, t) {
      const values = [email, member.organizationId, member.institutionKey]
      return (await database.run<{ id: number }>(byEmail, values, t))[0]?.id
    },
    byActivationKey: async (key, t) => (await byKey<{ id: number }>(byActivationKey, key, t))?.id,
    byProviderKey: (key, t) => byKey(byProviderKey, key, t),
    hold: (ids, t) => database.run(hold, [ids], t),
  }
}
