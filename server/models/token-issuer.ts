import type { Transaction } from 'sequelize'
import { defineTable, flag, hasDefault, key, text } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

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

/** The issuer of the registry, which all replicas share. */
export interface TokenIssuers {
  /** Returns the issuer; undefined before the registry is installed. */
  find(t?: Transaction): Promise<TokenIssuer | undefined>
  /** Returns the issuer, and locks it until the end of the transaction. Throws before the registry is installed. */
  lock(t: Transaction): Promise<TokenIssuer>
  /** Stores an issuer unless one exists. Returns the stored issuer, and whether this call stored it. */
  establish(first: TokenIssuer, t: Transaction): Promise<{ registry: TokenIssuer; made: boolean }>
  /** Replaces the issuer. Processes that have reloaded it reject tokens of the former issuer. */
  change(to: TokenIssuer, t: Transaction): Promise<void>
}

const find: Statement = { name: 'token-issuer-find', text: 'SELECT issuer, audience FROM token_issuer' }

const lock: Statement = { name: 'token-issuer-lock', text: `${find.text} FOR UPDATE` }

const establish: Statement = {
  name: 'token-issuer-establish',
  text: 'INSERT INTO token_issuer (issuer, audience) VALUES ($1, $2) ON CONFLICT (single) DO NOTHING RETURNING issuer, audience',
}

const change: Statement = { name: 'token-issuer-change', text: 'UPDATE token_issuer SET issuer = $1, audience = $2' }

/** Creates the methods for the issuer in a database. */
export function createTokenIssuers(database: Database): TokenIssuers {
  defineTable(database, 'token_issuer', { single: hasDefault(key(flag)), issuer: text, audience: text })
  const read = async (t?: Transaction) => (await database.run<TokenIssuer>(find, [], t))[0]
  return {
    find: read,
    async lock(t) {
      const [found] = await database.run<TokenIssuer>(lock, [], t)
      if (!found) throw new Error('The registry has no issuer: it is not installed.')
      return found
    },
    async establish({ issuer, audience }, t) {
      const [made] = await database.run<TokenIssuer>(establish, [issuer, audience], t)
      return { registry: made ?? (await read(t))!, made: made !== undefined }
    },
    async change({ issuer, audience }, t) {
      await database.run(change, [issuer, audience], t)
    },
  }
}
