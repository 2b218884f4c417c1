import type pg from 'pg'
import type { Log } from '../observability/log.js'

/**
 * Time limits in ms that the server enforces for a statement, a wait for a lock, an idle transaction, and a transaction
 * (PostgreSQL 17 and later). All are below the 15 s deadline of a call, and the first is below `silenceLimit` of
 * connections.ts.
 */
const limits = {
  statement_timeout: 5_000,
  lock_timeout: 2_000,
  idle_in_transaction_session_timeout: 5_000,
  transaction_timeout: 10_000,
}

const names = Object.keys(limits)

/** Disables the limits for the rest of a transaction. The version of the server determines which limits exist. */
export const withoutLimits = `SELECT set_config(name, '0', true) FROM unnest(ARRAY['${names.join("', '")}']) AS name
  WHERE current_setting(name, true) IS NOT NULL`

/** Key of an advisory lock, unique in this database. */
const lock = 7_264_002

// Selects neither limits that are set for the role, nor stricter limits from other sources.
const missing = {
  name: 'limits-missing',
  text: `SELECT format('ALTER ROLE SESSION_USER IN DATABASE %I SET %s = %s', current_database(), name, ms) AS text
  FROM unnest($1::text[], $2::int[]) AS l (name, ms) JOIN pg_settings USING (name)
  WHERE (setting::int = 0 OR setting::int > ms) AND NOT EXISTS (
    SELECT FROM pg_db_role_setting, unnest(setconfig) AS c
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user) AND starts_with(c, name || '='))`,
}

/** Returns the statements that set missing limits. */
export const missingLimits = { statement: missing, values: [names, Object.values(limits)] }

/**
 * Sets missing limits as defaults of this role in this database, and returns whether any were missing. They apply to later
 * connections. Poolers reject them as startup parameters. Call it in a separate transaction.
 */
export async function setLimits(client: pg.Client): Promise<boolean> {
  await client.query('SELECT pg_advisory_xact_lock($1)', [lock])
  const { rows } = await client.query<{ text: string }>(missing.text, missingLimits.values)
  for (const { text } of rows) await client.query(text)
  return rows.length > 0
}

/** Logs that the role lacks the right to set the limits; rethrows any other error. */
export function explainLimits(error: unknown, log: Pick<Log, 'warn'> | undefined): void {
  if ((error as { code?: string }).code !== '42501') throw error
  log?.warn(`the database role may not set ${names.join(', ')} for itself: have an administrator set them`)
}
