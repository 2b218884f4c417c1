/**
 * Settings of PostgreSQL that the sessions of the service need, whatever the server, the database and the role set. Poolers
 * accept the startup parameters. They reject the others as startup parameters, so these are stored for the role in this
 * database, which precedes every other place where a default can be set.
 */
import type pg from 'pg'
import type { Log } from '../observability/log.js'
import type { FixedSetting } from '../process/database-url.js'
import { advisoryKeys } from './advisory-keys.js'
import { sql } from './sql.js'

/**
 * Startup parameters: the driver and SQL functions read and write times in this format, and Sequelize quotes by this rule.
 * The driver itself adds `client_encoding`.
 */
export const startupParameters = {
  DateStyle: 'ISO, MDY',
  TimeZone: 'UTC',
  standard_conforming_strings: 'on',
} satisfies Partial<Record<FixedSetting, string>>

/**
 * Statements outside explicit transactions expect READ COMMITTED, in which a statement that waited for a row reads its newest
 * version. The formats are those of the driver, of seals over SQL values, and of backups.
 */
const required = {
  default_transaction_isolation: 'read committed',
  IntervalStyle: 'postgres',
  array_nulls: 'on',
  bytea_output: 'hex',
  extra_float_digits: '1',
} satisfies Partial<Record<FixedSetting, string>>

/**
 * Time limits in ms that the server enforces for a statement, a wait for a lock, an idle transaction, and a transaction
 * (PostgreSQL 17 and later). All are below the 15 s deadline of a call, and the first is below `silenceLimit` of
 * connections.ts.
 */
const timeLimits = {
  statement_timeout: 5_000,
  lock_timeout: 2_000,
  idle_in_transaction_session_timeout: 5_000,
  transaction_timeout: 10_000,
}

/** Disables the limits for the rest of a transaction. The version of the server determines which limits exist. */
export const withoutLimits = `SELECT set_config(name, '0', true) FROM unnest(ARRAY['${Object.keys(timeLimits).join("', '")}']) AS name
  WHERE current_setting(name, true) IS NOT NULL`

/** A setting to store for the role in this database. */
export interface Missing {
  /** The statement that stores it. */
  readonly text: string
  /** The value of this session that it replaces, if that is wrong. */
  readonly replaced: string | null
}

// Of the limits, selects neither those that are stored for the role in this database, nor stricter ones from other places.
// Required settings are stored even if they hold already: later defaults of the role or the database then have no effect.
/** Finds missing settings. */
export const missingSettings = sql`WITH stored AS (
    SELECT split_part(c, '=', 1) AS name, substr(c, strpos(c, '=') + 1) AS value
    FROM pg_db_role_setting, unnest(setconfig) AS c
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND setrole = (SELECT oid FROM pg_roles WHERE rolname = session_user)
  )
  SELECT format('ALTER ROLE %I IN DATABASE %I SET %s = %L', session_user, current_database(), name, w.value) AS text,
    CASE WHEN NOT w.is_limit AND s.setting <> w.value THEN format('%s = %s', name, s.setting) END AS replaced
  FROM (SELECT *, false AS is_limit FROM unnest(${Object.keys(required)}::text[], ${Object.values(required)}::text[]) UNION ALL
    SELECT *, true FROM unnest(${Object.keys(timeLimits)}::text[], ${Object.values(timeLimits).map(String)}::text[])) AS w (name, value, is_limit)
  JOIN pg_settings s USING (name) LEFT JOIN stored USING (name)
  WHERE CASE WHEN w.is_limit THEN stored.value IS NULL AND (s.setting::int = 0 OR s.setting::int > w.value::int)
    ELSE stored.value IS DISTINCT FROM w.value END`

const all = { ...startupParameters, ...required }

/** Finds the settings of a session that contradict this version, as `name = value`. */
export const wrongSettings = sql`SELECT format('%s = %s', name, setting) AS wrong FROM pg_settings
  JOIN unnest(${Object.keys(all)}::text[], ${Object.values(all)}::text[]) AS w (name, value) USING (name)
  WHERE setting <> value ORDER BY name`

/**
 * Stores missing settings for the role in this database. They apply to later connections. Call it in a
 * separate transaction.
 */
export async function storeSettings(client: pg.Client): Promise<void> {
  // A role may change its own defaults only, even if it acts as another one.
  await client.query(`SELECT pg_advisory_xact_lock($1), set_config('role', 'none', true)`, [advisoryKeys.settings])
  const { rows } = await client.query<Missing>(missingSettings.text, [...missingSettings.values])
  for (const { text } of rows) await client.query(text)
}

/** Logs that the role lacks the right to store its settings; rethrows any other error. */
export function explainSettings(
  error: unknown,
  statements: readonly Missing[],
  log: Pick<Log, 'warn'> | undefined,
): void {
  if ((error as { code?: string }).code !== '42501') throw error
  log?.warn(
    { statements: statements.map(({ text }) => text) },
    'the database role may not store settings for itself: have an administrator run these statements',
  )
}
