import type { Transaction } from 'sequelize'
import { defineTable, flag, hasDefault, key, text } from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'

/** The one row, `single`. */
const attributes = { single: hasDefault(key(flag)), issuer: text, audience: text }

/** Issuer and audience of the tokens of a registry: the claims `iss` and `aud` (RFC 7519). */
export interface TokenIssuer {
  readonly issuer: string
  readonly audience: string
}

/** Returns the `object` of an issuer in the audit log, `before->after` for a value that changed. */
export function issuerObject(to: TokenIssuer, from = to): string {
  const change = (of: keyof TokenIssuer) => (from[of] === to[of] ? to[of] : `${from[of]}->${to[of]}`)
  return `issuer:${change('issuer')} audience:${change('audience')}`
}

/** Creates the methods for the issuer in a database. */
export function createTokenIssuers(database: Database) {
  const table = defineTable(database, 'token_issuer', attributes)
  const columns = ['issuer', 'audience']
  /** Returns the issuer; undefined before the registry is installed. */
  const find = async (t?: Transaction): Promise<TokenIssuer | undefined> =>
    (await table.findOne({ attributes: columns, transaction: t }))?.get()
  return {
    find,
    /** Returns the issuer, and locks it until the end of the transaction. Throws before the registry is installed. */
    async lock(t: Transaction) {
      const found = await table.findOne({ attributes: columns, transaction: t, lock: t.LOCK.UPDATE })
      if (!found) throw new Error('The registry has no issuer: it is not installed.')
      return found.get()
    },
    /** Stores an issuer unless one exists. Returns the stored issuer, and whether this call stored it. */
    async establish({ issuer, audience }: TokenIssuer, t: Transaction) {
      const establish = sql`INSERT INTO token_issuer (issuer, audience) VALUES (${issuer}, ${audience})
        ON CONFLICT (single) DO NOTHING RETURNING issuer, audience`
      const made = await first(database.run<TokenIssuer>(establish, t))
      return { registry: made ?? (await find(t))!, made: made !== undefined }
    },
    /** Replaces the issuer. Processes that have reloaded it reject tokens of the former issuer. */
    async change({ issuer, audience }: TokenIssuer, t: Transaction) {
      await table.update({ issuer, audience }, { where: { single: true }, transaction: t })
    },
  }
}
