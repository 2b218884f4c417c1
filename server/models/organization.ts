import { randomUUID } from 'node:crypto'
import { DataTypes, type Model, type Transaction } from 'sequelize'
import type { Database, Statement } from '../database/connection.js'
import type { MasterKey } from '../masterkey.js'

/** The texts of an organization that may be edited. */
export interface OrganizationDetails {
  name: string
  address: string | null
  inepCode: string | null
  login: string | null
  phone: string | null
  responsible: string | null
  type: string | null
  website: string | null
  email: string | null
}

/** An organization as it is stored. */
export interface OrganizationRow extends OrganizationDetails {
  id: number
  active: boolean
  nameKey: string
  /** yyyy-MM-dd */
  creationDate: string
  activationKeyDigest: Buffer
  activationKeySealed: Buffer
}

/** Uses of the masterKey by this table and by provider keys. */
export const activationKeyUse = 'activation-key'

/** The table of organizations. */
export function defineOrganizations({ sequelize }: Database) {
  const text = DataTypes.TEXT
  return sequelize.define<Model<OrganizationRow, Partial<OrganizationRow>> & OrganizationRow>('organizations', {
    id: { type: DataTypes.INTEGER, primaryKey: true, autoIncrement: true },
    active: DataTypes.BOOLEAN,
    name: text,
    nameKey: text,
    address: text,
    creationDate: DataTypes.DATEONLY,
    inepCode: text,
    login: text,
    phone: text,
    responsible: text,
    type: text,
    website: text,
    email: text,
    activationKeyDigest: DataTypes.BLOB,
    activationKeySealed: DataTypes.BLOB,
  })
}

/** A new activation key in the two forms in which it is stored. It is reusable until it is rotated. */
export function newActivationKey(masterKey: MasterKey): { key: string; digest: Buffer; sealed: Buffer } {
  const key = randomUUID()
  return { key, digest: masterKey.digest(activationKeyUse, key), sealed: masterKey.seal(activationKeyUse, key) }
}

/** What is done with organizations. */
export interface Organizations {
  readonly table: ReturnType<typeof defineOrganizations>
  /** Registers an active organization with a new activation key. Throws on a name that is taken. */
  add(
    details: Partial<OrganizationDetails> & { name: string; nameKey: string },
    t: Transaction,
  ): Promise<OrganizationRow>
  /** Changes details. */
  edit(id: number, details: Partial<OrganizationDetails> & { nameKey?: string }, t: Transaction): Promise<void>
  /** Lets keys of the organization work, or not. */
  setActive(id: number, active: boolean, t: Transaction): Promise<void>
  /** Puts a new activation key in place of the old one, which is void at once. Returns it. */
  rotateKey(id: number, t: Transaction): Promise<string>
  /** The activation key in the clear. */
  activationKey(row: Pick<OrganizationRow, 'activationKeySealed'>): string
  /**
   * The active organization that an e-mail to this address reaches: that of the user, or else, of several with the
   * address, the one with the name that the user gave at sign-up.
   */
  byEmail(email: string, member: { organizationId: number | null; institutionKey: string }): Promise<number | undefined>
  /** The active organization whose activation key this is; locked against rotation until the end of the transaction. */
  byActivationKey(key: string, t: Transaction): Promise<number | undefined>
  /** The active organization of the active ROLE_INSTITUTION user whose provider key this is; locked likewise. */
  byProviderKey(key: string, t: Transaction): Promise<number | undefined>
  /** Whether an organization is active; locked likewise. */
  isActive(id: number, t: Transaction): Promise<boolean>
}

const byEmail: Statement = {
  name: 'organization-by-email',
  text: `SELECT id FROM organizations WHERE lower(email) = lower($1) AND active AND ($2::int IS NULL OR id = $2)
    ORDER BY name_key = $3 DESC, id LIMIT 1`,
}

const byActivationKey: Statement = {
  name: 'organization-by-activation-key',
  text: 'SELECT id FROM organizations WHERE activation_key_digest = $1 AND active FOR SHARE',
}

const byProviderKey: Statement = {
  name: 'organization-by-provider-key',
  text: `SELECT o.id FROM provider_keys k JOIN users u ON u.id = k.user_id JOIN organizations o ON o.id = u.organization_id
    WHERE k.key_digest = $1 AND u.active AND NOT u.suspended AND u.role = 'ROLE_INSTITUTION' AND o.active FOR SHARE`,
}

const isActive: Statement = {
  name: 'organization-is-active',
  text: 'SELECT id FROM organizations WHERE id = $1 AND active FOR SHARE',
}

/** The organizations in a database. */
export function createOrganizations(database: Database, masterKey: MasterKey): Organizations {
  const table = defineOrganizations(database)
  const find = async (statement: Statement, values: unknown[], transaction?: Transaction) =>
    (await database.run<{ id: number }>(statement, values, transaction))[0]?.id
  return {
    table,
    async add(details, transaction) {
      const { digest, sealed } = newActivationKey(masterKey)
      const row = { ...details, active: true, activationKeyDigest: digest, activationKeySealed: sealed }
      return (await table.create(row, { transaction, returning: true })).reload({ transaction })
    },
    async edit(id, details, transaction) {
      await table.update(details, { where: { id }, transaction })
    },
    async setActive(id, active, transaction) {
      await table.update({ active }, { where: { id }, transaction })
    },
    async rotateKey(id, transaction) {
      const { key, digest, sealed } = newActivationKey(masterKey)
      await table.update({ activationKeyDigest: digest, activationKeySealed: sealed }, { where: { id }, transaction })
      return key
    },
    byEmail: (email, member) => find(byEmail, [email, member.organizationId, member.institutionKey]),
    byActivationKey: (key, t) => find(byActivationKey, [masterKey.digest(activationKeyUse, key)], t),
    byProviderKey: (key, t) => find(byProviderKey, [masterKey.digest(activationKeyUse, key)], t),
    isActive: async (id, t) => (await find(isActive, [id], t)) !== undefined,
    activationKey: row => masterKey.open(activationKeyUse, row.activationKeySealed),
  }
}
