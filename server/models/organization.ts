import { randomUUID } from 'node:crypto'
import type { Transaction } from 'sequelize'
import {
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
import { orm } from '../database/sequelize.js'
import type { MasterKey } from './master-key.js'

const detail = hasDefault(nullable(text))

/** The texts of an organization that may be edited. */
const details = {
  name: text,
  address: detail,
  inepCode: detail,
  login: detail,
  phone: detail,
  responsible: detail,
  type: detail,
  website: detail,
  email: detail,
}

/** What the record of a user shows of its organization; the activation key is sealed. */
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

/** The texts of an organization that may be edited. */
export interface OrganizationDetails extends Row<typeof details> {}

/** An organization as it is stored. */
export interface OrganizationRow extends Row<typeof attributes> {}

/** What the master key seals and digests here and for provider keys. */
export const activationKeyUse = 'activation-key'

/** A new activation key in the two forms in which it is stored. It is reusable until it is rotated. */
export function newActivationKey(masterKey: MasterKey): { key: string; digest: Buffer; sealed: Buffer } {
  const key = randomUUID()
  return { key, digest: masterKey.digest(activationKeyUse, key), sealed: masterKey.seal(activationKeyUse, key) }
}

/** Which organizations to list: all conditions given must hold. */
interface OrganizationFilter {
  readonly afterId?: number
  readonly active?: boolean
  readonly type?: string
  /** Words, each the beginning of one of the organization's. */
  readonly text?: string
  readonly limit: number
}

/** What is done with organizations. */
export interface Organizations {
  /** Those that fit, by id. */
  list(filter: OrganizationFilter): Promise<OrganizationRow[]>
  /** The organization with an id. */
  find(id: number): Promise<OrganizationRow | undefined>
  /** Those with this INEP code, or with this name in comparing form; some of them, where there are many. */
  named(inepCode: string, nameKey: string): Promise<OrganizationRow[]>
  /** Users who belong to it, deleted ones included. */
  members(id: number, t?: Transaction): Promise<number>
  /** Locks an organization until the end of the transaction. */
  lock(id: number, t: Transaction): Promise<OrganizationRow | undefined>
  /** Registers an active organization with a new activation key. */
  add(
    details: Partial<OrganizationDetails> & { name: string; nameKey: string },
    t: Transaction,
  ): Promise<OrganizationRow>
  /** Changes details. */
  edit(id: number, details: Partial<OrganizationDetails> & { nameKey?: string }, t?: Transaction): Promise<void>
  /** The other organization with an INEP code; none comes up before the transaction ends. */
  withInepCode(inepCode: string, id: number | undefined, t: Transaction): Promise<number | undefined>
  /** Removes an organization without members. */
  remove(id: number, t: Transaction): Promise<void>
  /** Lets keys of the organization work, or not. */
  setActive(id: number, active: boolean, t?: Transaction): Promise<void>
  /** Replaces its activation key; the former one stops working at once. Returns the new one. */
  rotateKey(id: number, t: Transaction): Promise<string>
  /** The activation key in the clear. */
  activationKey(row: Pick<OrganizationRow, 'keySealed'>): string
  /**
   * The active organization that an e-mail to this address reaches: that of the user, or else, of several with the
   * address, the one with the name that the user gave at sign-up.
   */
  byEmail(email: string, member: { organizationId: number | null; institutionKey: string }): Promise<number | undefined>
  /** The active organization whose activation key this is; locked against rotation until the end of a transaction. */
  byActivationKey(key: string, t?: Transaction): Promise<number | undefined>
  /** The active organization of the active ROLE_INSTITUTION user whose provider key this is, and that user; locked likewise. */
  byProviderKey(key: string, t?: Transaction): Promise<{ id: number; providerId: number } | undefined>
  /** Whether an organization is active; locked likewise. */
  isActive(id: number, t: Transaction): Promise<boolean>
}

/** Maximum number of organizations of one name or INEP code that a look-up returns. */
const mostNamed = 20

const members: Statement = {
  name: 'organization-members',
  text: 'SELECT count(*)::int AS count FROM users WHERE organization_id = $1',
}

const lockInepCode: Statement = {
  name: 'organization-lock-inep-code',
  text: 'SELECT pg_advisory_xact_lock(7264006, hashtext($1))',
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

const isActive: Statement = {
  name: 'organization-is-active',
  text: 'SELECT o.id FROM organizations o WHERE o.id = $1 AND o.active',
}

/** The organizations in a database. */
export function createOrganizations(database: Database, masterKey: MasterKey): Organizations {
  const table = defineTable(database, 'organizations', attributes)
  const find = async <Row>(statement: Statement, values: unknown[]) => (await database.read<Row>(statement, values))[0]
  /** The same; the rows it depends on don't change before the transaction ends. */
  const hold = async <Row>({ name, text }: Statement, values: unknown[], t: Transaction) =>
    (await database.run<Row>({ name: `${name}-held`, text: `${text} FOR SHARE` }, values, t))[0]
  const byKey = <Row>(statement: Statement, key: string, t: Transaction | undefined) => {
    const values = [masterKey.digest(activationKeyUse, key)]
    return t ? hold<Row>(statement, values, t) : find<Row>(statement, values)
  }
  return {
    async list({ afterId = 0, active, type, text, limit }) {
      const { Op, literal } = orm()
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
        // Else the planner, which takes beginnings of words for common, walks the whole table in this order.
        order: [text === undefined ? 'id' : literal('id + 0')],
        limit,
        replacements: { text },
      })
      return rows.map(row => row.get())
    },
    find: async id => (await table().findByPk(id))?.get(),
    async named(inepCode, nameKey) {
      const rows = await table().findAll({
        where: { [orm().Op.or]: [{ inepCode }, { nameKey }] },
        order: ['id'],
        limit: mostNamed,
      })
      return rows.map(row => row.get())
    },
    async members(id, transaction) {
      return (await database.run<{ count: number }>(members, [id], transaction))[0]!.count
    },
    async withInepCode(inepCode, id, transaction) {
      await database.run(lockInepCode, [inepCode], transaction)
      const where = { inepCode, ...(id !== undefined && { id: { [orm().Op.ne]: id } }) }
      return (await table().findOne({ attributes: ['id'], where, transaction }))?.get().id
    },
    async remove(id, transaction) {
      await table().destroy({ where: { id }, transaction })
    },
    lock: async (id, transaction) =>
      (await table().findByPk(id, { transaction, lock: transaction.LOCK.UPDATE }))?.get(),
    async add(details, transaction) {
      const { digest, sealed } = newActivationKey(masterKey)
      const row = { ...details, active: true, keyDigest: digest, keySealed: sealed }
      return (await table().create(row, { transaction })).get()
    },
    async edit(id, details, transaction) {
      await table().update(details, { where: { id }, transaction })
    },
    async setActive(id, active, transaction) {
      await table().update({ active }, { where: { id }, transaction })
    },
    async rotateKey(id, transaction) {
      const { key, digest, sealed } = newActivationKey(masterKey)
      await table().update({ keyDigest: digest, keySealed: sealed }, { where: { id }, transaction })
      return key
    },
    activationKey: row => masterKey.open(activationKeyUse, row.keySealed),
    byEmail: async (email, member) =>
      (await find<{ id: number }>(byEmail, [email, member.organizationId, member.institutionKey]))?.id,
    byActivationKey: async (key, t) => (await byKey<{ id: number }>(byActivationKey, key, t))?.id,
    byProviderKey: (key, t) => byKey(byProviderKey, key, t),
    isActive: async (id, t) => (await hold(isActive, [id], t)) !== undefined,
  }
}
