import type { Database, Statement } from './connection.js'
import { width } from './pipeline.js'

/** Connections that a process of the service opens at most. */
export const connectionsOfProcess = 10 + width

/** What a server says of itself. */
export interface Condition {
  /** Version of PostgreSQL. */
  readonly version: string
  /** Its clock, in ms since 1970. */
  readonly now: number
  /** Connections that it allows to roles like ours, and those that there are. */
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

/** Asks a server how it is. */
export async function readCondition(database: Database): Promise<Condition> {
  return (await database.run<Condition>(condition, []))[0]!
}
