import type { Transaction } from 'sequelize'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'

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

/** Reads and changes the issuer. */
export type TokenIssuers = ReturnType<typeof createTokenIssuers>

/** Creates the methods for the issuer in a database. */
export function createTokenIssuers(database: Database) {
  const select = sql`SELECT issuer, audience FROM token_issuer`
  /** Returns the issuer; undefined before the registry is installed. */
  const find = (t?: Transaction) => first(database.run<TokenIssuer>(sql('token-issuer-find')`${select}`, t))
  return {
    find,
    /** Returns the issuer, and locks it until the end of the transaction. Throws before the registry is installed. */
    async lock(t: Transaction) {
      const found = await first(database.run<TokenIssuer>(sql('token-issuer-lock')`${select} FOR UPDATE`, t))
      if (!found) throw new Error('The registry has no issuer: it is not installed.')
      return found
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
      await database.run(sql`UPDATE token_issuer SET issuer = ${issuer}, audience = ${audience}`, t)
    },
  }
}
