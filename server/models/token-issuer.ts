import type { Transaction } from 'sequelize'
import { defineTable, flag, hasDefault, key, text } from '../database/attributes.js'
import type { Database, Statement } from '../database/connection.js'

/** Who issues the tokens of the registry, and for whom: `iss` and `aud` (RFC 7519) of each. */
export interface TokenIssuer {
  readonly issuer: string
  readonly audience: string
}

/** An issuer in the audit log. */
export function issuerObject({ issuer, audience }: TokenIssuer): string {
  return `issuer:${issuer} audience:${audience}`
}

/** The one issuer of the registry, which all its processes have in common. */
export interface TokenIssuers {
  /** The registry's; undefined before it is installed. */
  find(t?: Transaction): Promise<TokenIssuer | undefined>
  /** The same, locked until the end of the transaction. Throws before the registry is installed. */
  lock(t: Transaction): Promise<TokenIssuer>
  /** Makes it the registry's unless there is one already, and returns the registry's. */
  establish(first: TokenIssuer, t: Transaction): Promise<{ registry: TokenIssuer; made: boolean }>
  /** Changes it: tokens of the one before are good for nothing where it has been read anew. */
  change(to: TokenIssuer, t: Transaction): Promise<void>
}

const find: Statement = { name: 'token-issuer-find', text: 'SELECT issuer, audience FROM token_issuer' }

const lock: Statement = { name: 'token-issuer-lock', text: `${find.text} FOR UPDATE` }

const establish: Statement = {
  name: 'token-issuer-establish',
  text: 'INSERT INTO token_issuer (issuer, audience) VALUES ($1, $2) ON CONFLICT (single) DO NOTHING RETURNING issuer, audience',
}

const change: Statement = { name: 'token-issuer-change', text: 'UPDATE token_issuer SET issuer = $1, audience = $2' }

/** The issuer in a database. */
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
