import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import type { Log } from '../observability/log.js'
import { tracing } from '../observability/tracing.js'
import type { Connections } from './connections.js'
import { inStatementSpan } from './spans.js'
import type { Statement } from './sql.js'

/** Runs statements on a connection. */
export type Runner = ReturnType<typeof createRunner>

/**
 * Runs prepared statements, if they persist. Behind a pooler in transaction mode, a prepared statement can be missing (26000),
 * or another client can have used its name (42P05). After such an error, statements run unprepared. Neither error has side
 * effects.
 */
export function createRunner(connections: Connections, log: Pick<Log, 'warn'> | undefined) {
  let named = true
  let tried: Promise<void> | undefined

  function disableNames(): void {
    if (named) log?.warn('statements run unprepared: a pooler in front of the database keeps no prepared statements')
    named = false
  }

  async function tryNames(client: pg.Client & { processID?: number }): Promise<void> {
    const { rows } = await client.query('SELECT pg_backend_pid() AS pid')
    // The backend process is the one that accepted the connection, so there is no pooler.
    if (rows[0].pid === client.processID) return
    const other = await connections.open()
    const query = { name: `auth-${randomUUID()}`, text: 'SELECT 1' }
    try {
      for (const each of [client, other, client, other]) await each.query(query)
      await Promise.all([client.query(query), other.query(query)])
    } finally {
      void connections.end(other)
    }
  }

  async function runPlain<Row>(client: pg.Client, { name, text, values }: Statement): Promise<Row[]> {
    return (await client.query({ text, values: values as unknown[], name: named ? name : undefined })).rows as Row[]
  }

  const run: typeof runPlain = tracing
    ? (client, query) => inStatementSpan(query.name || 'unnamed', () => runPlain(client, query))
    : runPlain

  return {
    /** Whether prepared statements persist on a connection, as far as is known. */
    namesHold: (): boolean => named,
    /** Detects on the first connection whether prepared statements persist. Never throws. */
    tryNames(client: pg.Client): Promise<void> {
      tried ??= tryNames(client).catch(error => {
        if (isAboutNames(error)) disableNames()
        else tried = undefined
      })
      return tried
    },
    /** Runs a statement in a transaction. */
    async run<Row>(client: pg.Client, query: Statement): Promise<Row[]> {
      try {
        return await run(client, query)
      } catch (error) {
        if (isAboutNames(error)) disableNames()
        throw error
      }
    },
    /** Runs a statement outside transactions, and repeats it unprepared if only its name caused the error. */
    async runAlone<Row>(client: pg.Client, query: Statement): Promise<Row[]> {
      try {
        return await run(client, query)
      } catch (error) {
        if (!isAboutNames(error)) throw error
        disableNames()
        return run(client, query)
      }
    },
  }
}

function isAboutNames(error: unknown): boolean {
  return ['26000', '42P05'].includes(String((error as { code?: string }).code))
}
