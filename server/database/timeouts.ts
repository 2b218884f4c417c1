import type pg from 'pg'
import type { Log } from '../observability/log.js'

/**
 * Milliseconds after which the server ends a statement, a wait for a lock, an idle transaction, and a transaction
 * (PostgreSQL 17 and later). All are below the 15 s that a call may take, and the first is below `silenceLimit` of
 * connections.ts.
 */
const limits = {
  statement_timeout: 5_000,
  lock_timeout: 2_000,
  idle_in_transaction_session_timeout: 5_000,
  transaction_timeout: 10_000,
}

const names = Object.keys(limits)

/** Lifts the limits for the rest of a transaction. The version of the server determines which exist. */
export const unlimited = `SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('${names.join("', '")}')`

/** An advisory lock that nothing else in this database uses. */
const lock = 7_264_002

// Keeps limits that were set for the role, and stricter limits for all.
const missing = {
  name: 'limits-missing',
  text: `SELECT format('ALTER ROLE SESSION_USER IN DATABASE %I SET %s = %s', current_database(), name, ms) AS text
  FROM unnest($1::text[], $2::int[]) AS l (name, ms) JOIN pg_settings USING (name)
  WHERE (setting::int = 0 OR setting::int > ms) AND NOT EXISTS (
    SELECT FROM pg_db_role_setting, unnest(setconfig) AS c
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user) AND starts_with(c, name || '='))`,
}

/** Finds the missing limits, as statements. */
export const missingLimits = { statement: missing, values: [names, Object.values(limits)] }

/**
 * Sets missing limits as defaults of this role in this database, and returns whether it did. They apply to later connections.
 * Poolers refuse them as startup parameters. Call it in a transaction of its own.
 */
export async function setLimits(client: pg.Client): Promise<boolean> {
  await client.query('SELECT pg_advisory_xact_lock($1)', [lock])
  const { rows } = await client.query<{ text: string }>(missing.text, missingLimits.values)
  for (const { text } of rows) await client.query(text)
  return rows.length > 0
}

/** Logs that the role may not set the limits; throws any other error. */
export function explainLimits(error: unknown, log: Pick<Log, 'warn'> | undefined): void {
  if ((error as { code?: string }).code !== '42501') throw error
  log?.warn(`the database role may not set ${names.join(', ')} for itself: have an administrator set them`)
}
