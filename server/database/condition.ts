import type { Database } from './database.js'
import { width } from './pipeline.js'
import { first, sql } from './sql.js'

/** Maximum number of connections of a process of the service. */
export const connectionsOfProcess = 10 + width

/** The state of a PostgreSQL server. */
interface Condition {
  /** Version of PostgreSQL. */
  readonly version: string
  /** Time of the server's clock, in ms since 1970. */
  readonly now: number
  /** Maximum number of connections of roles that aren't superusers, and the number in use. */
  readonly most: number
  readonly used: number
}

/** Reads the state of the server. */
export async function readCondition(database: Database): Promise<Condition> {
  return (await first(
    database.run<Condition>(sql`SELECT current_setting('server_version') AS version, extract(epoch FROM clock_timestamp())::float8 * 1000 AS now,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
      - coalesce(current_setting('reserved_connections', true), '0')::int AS most,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used`),
  ))!
}
