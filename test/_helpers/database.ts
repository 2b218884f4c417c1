/** Databases for tests, in the PostgreSQL that test/run.ts starts: each a copy of one that is migrated once. */
import { randomBytes } from 'node:crypto'
import pg from 'pg'
import { openDatabase } from '../../server/database/database.js'
import { migrate } from '../../server/database/migrate.js'

const template = 'auth_template'

/** Databases that installed.ts makes; the clock of the second one is clock.ts's. */
export const [installed, clocked] = ['auth_installed', 'auth_clocked']

/** Registers a teardown: AVA's `t` in a test. */
export interface Teardown {
  teardown(work: () => Promise<void>): void
}

/** Creates the database from which the others are copied. */
export async function makeTemplate(): Promise<void> {
  const { url } = await createDatabase({ from: 'template1', name: template })
  const database = openDatabase(url, 2)
  try {
    await migrate(database)
  } finally {
    await database.close()
  }
}

/** URL of a new, migrated database, dropped when the test ends. `from: 'template0'` gives one without tables. */
export async function freshDatabase(t: Teardown, { from = template } = {}): Promise<string> {
  const { url, drop } = await createDatabase({ from })
  t.teardown(async () => void (await drop()))
  return url
}

/** A database that stays until it is dropped. */
export async function createDatabase({
  from = template,
  name = `test_${randomBytes(8).toString('hex')}`,
} = {}): Promise<{ url: string; drop: () => Promise<unknown> }> {
  await poolOf(serverUrl()).query(`CREATE DATABASE ${name} TEMPLATE ${from} STRATEGY file_copy`)
  await copySettings(from, name)
  return {
    url: at(serverUrl(), name),
    drop: () => poolOf(serverUrl()).query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`),
  }
}

/**
 * URL of an empty database whose role owns it and is no superuser; both end with the test. Statements run first, in this
 * database; `:name` in them is the name of database and role.
 */
export async function databaseOfRole(t: Teardown, ...statements: readonly string[]): Promise<string> {
  const name = `test_${randomBytes(8).toString('hex')}`
  // After the database, which the role owns.
  t.teardown(async () => void (await ask(serverUrl(), `DROP ROLE IF EXISTS ${name}`)))
  const { url, drop } = await createDatabase({ from: 'template0', name })
  t.teardown(async () => void (await drop()))
  await ask(url, `CREATE ROLE ${name} LOGIN PASSWORD 'x'; ALTER DATABASE ${name} OWNER TO ${name}`)
  for (const statement of statements) await ask(url, statement.replaceAll(':name', name))
  return Object.assign(new URL(url), { username: name, password: 'x' }).href
}

/**
 * Copies the default settings of a database and of its roles, which the server stores outside the database. On a busy machine a
 * statement may take longer than a service permits.
 */
async function copySettings(from: string, to: string): Promise<void> {
  const { rows } = await poolOf(serverUrl()).query<{ sql: string }>(
    `SELECT format('ALTER %s DATABASE %I SET %s = %s', 'ROLE ' || nullif(setrole, 0)::regrole || ' IN', $2::text,
      split_part(setting, '=', 1),
      -- A list stays one.
      CASE WHEN setting LIKE 'search_path=%' THEN split_part(setting, '=', 2)
        WHEN setting LIKE 'statement_timeout=%' THEN '60000'
        ELSE quote_literal(split_part(setting, '=', 2)) END) AS sql
    FROM pg_db_role_setting, unnest(setconfig) AS setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = $1)`,
    [from, to],
  )
  if (rows.length > 0) await poolOf(serverUrl()).query(rows.map(({ sql }) => sql).join(';'))
}

/** Pools of the connections of tests, by URL: a new connection costs more than most statements. */
const pools = new Map<string, pg.Pool>()

function poolOf(url: string): pg.Pool {
  const known = pools.get(url)
  if (known) return known
  // Idle connections don't delay the end; that of a dropped database fails.
  const pool = new pg.Pool({ connectionString: url, max: 4, idleTimeoutMillis: 1_000, allowExitOnIdle: true }).on(
    'error',
    () => {},
  )
  pools.set(url, pool)
  return pool
}

function serverUrl(): string {
  const url = process.env.TEST_DATABASE_URL
  if (!url) throw new Error('TEST_DATABASE_URL is not set: run tests with `npm test -- <files>`')
  return url
}

/** Runs SQL on a connection of the tests, and returns the rows. */
export async function ask(url: string, sql: string): Promise<Record<string, unknown>[]> {
  return (await poolOf(url).query(sql)).rows
}

/** Records the names of the statements that this process sends to a database, or to any, until it is disposed of. */
export function recordStatements(url?: string): Disposable & { readonly names: string[] } {
  const database = url && new URL(url).pathname.slice(1)
  const names: string[] = []
  const { query } = pg.Client.prototype
  pg.Client.prototype.query = function (this: pg.Client, ...given: unknown[]) {
    if (!database || this.database === database) names.push(String((given[0] as { name?: string })?.name))
    return Reflect.apply(query, this, given)
  } as typeof query
  const end = () => {
    pg.Client.prototype.query = query
  }
  return { names, [Symbol.dispose]: end }
}

/** The URL of a database, with a time for connections that a busy machine needs. */
function at(server: string, database: string): string {
  const url = new URL(server)
  url.pathname = `/${database}`
  url.searchParams.set('connect_timeout', '60')
  return url.href
}

/** A connection that may hold a lock without a time limit. */
export async function hold(t: Teardown, connectionString: string): Promise<pg.Client> {
  const options = '-c transaction_timeout=0 -c idle_in_transaction_session_timeout=0 -c statement_timeout=0'
  const client = new pg.Client({ connectionString, options })
  await client.connect()
  t.teardown(() => client.end())
  return client
}
