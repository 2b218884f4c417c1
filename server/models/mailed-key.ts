import { randomInt, timingSafeEqual } from 'node:crypto'
import { Op, type Transaction } from 'sequelize'
import {
  attribute,
  bytes,
  defineTable,
  fromNow,
  hasDefault,
  integer,
  key,
  nullable,
  text,
  time,
} from '../database/attributes.js'
import type { Database } from '../database/database.js'
import { first, sql } from '../database/sql.js'
import { keyAttempts } from '../policy/limits.js'
import { type ActivationKeys, type HeldOrganization, held, holdForMember } from './activation-key.js'
import { type CounterKeys, countTries } from './attempt.js'
import { relaxed } from './bucket.js'
import type { DataKeys } from './data-key.js'

/**
 * Validity in seconds. Activation keys are valid for longer, because an organization passes them on; issued keys, which are handed
 * over, as long as who issues them says, and at most for this.
 */
export const validity = { recovery: 15 * 60, activation: 72 * 3600, email: 15 * 60, issued: 168 * 3600 } as const

/** Purpose of a mailed key. */
export type Purpose = keyof typeof validity

/** 32 characters without look-alikes (0 and O, 1 and I): 8 characters have 40 bits of entropy. */
const alphabet = '23456789ABCDEFGHJKLMNPQRSTUVWXYZ'

/** The digests of the valid keys in the row `m`, the newest first. */
const validDigests = sql`SELECT digest FROM (VALUES (m.key_digest, m.expires_at), (m.former_digest, m.former_expires_at))
  AS k (digest, expires_at) WHERE k.expires_at > now() AND digest IS NOT NULL`

/** Generates a recovery key, or a code for an e-mail address: 8 characters from a cryptographic random source. */
export function newRecoveryKey(): string {
  return Array.from({ length: 8 }, () => alphabet[randomInt(alphabet.length)]).join('')
}

/** Returns a key in the form that is digested: codes for an e-mail address and issued keys end with the token generation. */
function digestedForm(purpose: Purpose, key: string, { tokenGeneration }: Holder): string {
  return purpose === 'email' || purpose === 'issued' ? `${key} ${tokenGeneration}` : key
}

const attributes = {
  userId: key(integer),
  purpose: key(attribute<Purpose>('TEXT')),
  keyDigest: bytes,
  organizationId: hasDefault(nullable(integer)),
  /** The address that a key of the purpose `email` confirms. */
  email: hasDefault(nullable(text)),
  expiresAt: time,
  /** The recovery key before, and its end. */
  formerDigest: hasDefault(nullable(bytes)),
  formerExpiresAt: hasDefault(nullable(time)),
}

/** What is stored with a key. */
interface Stored {
  /** The organization of an activation key. */
  readonly organizationId?: number | null | undefined
  /** The address that a code confirms. */
  readonly email?: string | null
  /** How long it is valid. */
  readonly seconds?: number
}

/** Who has a key. */
interface Holder {
  readonly id: number
  readonly tokenGeneration: number
}

/**
 * Keys sent by e-mail, or issued. Of each purpose, only the newest key of a user is valid, and for recovery also the one before, as
 * e-mails arrive in any order. When one is used, both end.
 */
export type MailedKeys = ReturnType<typeof createMailedKeys>

/** Creates the mailed keys in a database. */
export function createMailedKeys(
  database: Database,
  dataKeys: DataKeys,
  counterKeys: CounterKeys,
  { keysWork }: Pick<ActivationKeys, 'keysWork'>,
) {
  const table = defineTable(database, 'mailed_keys', attributes)

  /** Returns the keyed digest of a key, bound to user and purpose. */
  const digest = (userId: number, purpose: Purpose, key: string) =>
    dataKeys.digest(`mailed-key ${purpose} ${userId}`, key)

  /** Whether a row has this key, and it is valid. */
  const valid = (userId: number, purpose: Purpose, key: string) => sql`m.user_id = ${userId}
    AND m.purpose = ${purpose} AND EXISTS (SELECT FROM (${validDigests}) d WHERE d.digest = ${digest(userId, purpose, key)})`

  /** Stores a key, and replaces an earlier one: of recovery keys the one before the last. */
  async function replace(
    userId: number,
    purpose: Purpose,
    key: string,
    { organizationId = null, email = null, seconds = validity[purpose] }: Stored = {},
    transaction?: Transaction,
  ): Promise<void> {
    const replace = sql('mailed-key-replace')`
      INSERT INTO mailed_keys AS m (user_id, purpose, key_digest, organization_id, email, expires_at)
      VALUES (${userId}, ${purpose}, ${digest(userId, purpose, key)}, ${organizationId}, ${email},
        now() + make_interval(secs => ${seconds}))
      ON CONFLICT (user_id, purpose) DO UPDATE SET key_digest = excluded.key_digest, email = excluded.email,
        organization_id = excluded.organization_id, expires_at = excluded.expires_at,
        former_digest = CASE m.purpose WHEN 'recovery' THEN m.key_digest END, former_expires_at = m.expires_at`
    await database.run(replace, transaction)
  }
  return {
    digest,
    replace,
    /** Stores an issued key, and replaces an earlier one; it is valid for some seconds. Mailed keys stay. */
    issue: (holder: Holder, key: string, seconds: number, t: Transaction) =>
      replace(holder.id, 'issued', digestedForm('issued', key, holder), { seconds }, t),
    /** Stores the code that confirms an e-mail address, and replaces an earlier one. */
    confirm: (holder: Holder, code: string, email: string, t: Transaction) =>
      replace(holder.id, 'email', digestedForm('email', code, holder), { email }, t),
    /**
     * Counts an attempt from a client address at the keys of a user for these purposes, and returns the purpose of the one that was
     * typed, if it is valid, with attempts left. Every attempt counts, a successful one too, before the comparison, and against each
     * valid key.
     */
    async attempt<P extends Purpose>(holder: Holder, purposes: readonly P[], typed: string, address: string) {
      const seconds = purposes.map(purpose => validity[purpose])
      // Without a key, the same work is done, so that the response time doesn't reveal it. Parallel attempts lock the counters of
      // keys in the same order.
      const tried = await database.run<{ digest: Buffer | null; count: number }>(sql('mailed-key-attempt')`
        WITH ${relaxed},
        found AS MATERIALIZED (
          SELECT d.digest, p.seconds FROM unnest(${purposes}::text[], ${seconds}::int[]) AS p (purpose, seconds)
          JOIN mailed_keys m ON m.user_id = ${holder.id} AND m.purpose = p.purpose, LATERAL (${validDigests}) d
        ),
        current AS MATERIALIZED (
          SELECT * FROM found UNION ALL SELECT NULL, ${Math.min(...seconds)}::int WHERE NOT EXISTS (SELECT FROM found)
        ), ${countTries('current', counterKeys.mailedKeys(address))}
        SELECT digest, count FROM tried`)
      const right = purposes.filter(purpose => {
        const digested = digest(holder.id, purpose, digestedForm(purpose, typed, holder))
        return tried.some(row => timingSafeEqual(row.digest ?? Buffer.alloc(32), digested) && row.count <= keyAttempts)
      })
      return right[0]
    },
    /** The keys of a user whose attempts count: the purpose of each, and the digest by which they do. */
    current(userId: number, transaction?: Transaction) {
      const current = sql`SELECT m.purpose, d.digest AS "keyDigest" FROM mailed_keys m, LATERAL (${validDigests}) d
        WHERE m.user_id = ${userId} AND m.purpose IN ('recovery', 'issued', 'email')`
      return database.run<{ purpose: Purpose; keyDigest: Buffer }>(current, transaction)
    },
    /**
     * Spends a key, and returns the e-mail address that it confirms, if any; undefined for a wrong key. Of parallel calls, only one
     * gets it.
     */
    spend(holder: Holder, purpose: Exclude<Purpose, 'activation'>, typed: string, t: Transaction) {
      const spend = sql('mailed-key-spend')`DELETE FROM mailed_keys m
        WHERE ${valid(holder.id, purpose, digestedForm(purpose, typed, holder))} RETURNING email`
      return first(database.run<{ email: string | null }>(spend, t))
    },
    /** Returns the organization of an activation key that works. With a transaction, locks it, and spends the key. */
    organizationOf(userId: number, key: string, t?: Transaction) {
      const found = sql`SELECT ${held}, m.key_digest FROM mailed_keys m JOIN organizations o ON o.id = m.organization_id
        WHERE ${valid(userId, 'activation', key)} AND ${keysWork}`
      // Locks the organization first: an attempt while the organization is inactive doesn't spend the key.
      const spend = sql('mailed-key-spend-activation')`
        WITH organization AS (${found} ${holdForMember})
        DELETE FROM mailed_keys m USING organization o
        WHERE m.user_id = ${userId} AND m.purpose = 'activation' AND m.key_digest = o.key_digest AND m.organization_id = o.id
        RETURNING ${held}`
      const look = sql('mailed-key-organization')`${found}`
      return first(t ? database.run<HeldOrganization>(spend, t) : database.read<HeldOrganization>(look))
    },
    /** Voids mailed keys. */
    async void(userId: number, purposes: readonly Purpose[], transaction: Transaction) {
      await table.destroy({ where: { userId, purpose: [...purposes] }, transaction })
    },
    /** Deletes expired keys. */
    async prune() {
      await table.destroy({ where: { expiresAt: { [Op.lt]: fromNow(0) } } })
    },
  }
}
