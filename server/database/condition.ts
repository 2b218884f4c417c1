import type { Database, Statement } from './connection.js'
import { width } from './pipeline.js'

/** The most connections that a process of the service opens. */
export const connectionsOfProcess = 10 + width

/** The state of a PostgreSQL server. */
export interface Condition {
  /** Version of PostgreSQL. */
  readonly version: string
  /** Its clock, in ms since 1970. */
  readonly now: number
  /** Connections that it allows to roles that aren't superusers, and those in use. */
  readonly most: number
  readonly used: number
}

const condition: Statement = {
  name: 'condition',
  text: `SELECT current_setting('server_version') AS version, extract(epoch FROM clock_timestamp())::float8 * 1000 AS now,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
      - coalesce(current_setting('reserved_connections', true), '0')::int AS most,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int AS used`,
}

/** Reads the state of the server. */
export async function readCondition(database: Database): Promise<Condition> {
  return (await database.run<Condition>(condition, []))[0]!
}
