import { randomUUID } from 'node:crypto'
import type pg from 'pg'
import type { Log } from '../observability/log.js'
import { tracing } from '../observability/tracing.js'
import type { Connections } from './connections.js'
import { inStatementSpan } from './spans.js'

/** A statement that PostgreSQL prepares once on each connection, under its name. */
export interface Statement {
  readonly name: string
  readonly text: string
  /** May take as long as it needs, since nobody waits for it and no lock that others want is held. */
  readonly slow?: true
}

/** What runs statements on a connection. */
export interface Runner {
  /** Whether statements keep their names, as far as is known. */
  namesHold(): boolean
  /** Finds out, on the first connection that is opened, whether names hold. Throws nothing. */
  tryNames(client: pg.Client): Promise<void>
  /** Runs a statement that is a part of a transaction. */
  run<Row>(client: pg.Client, statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /** Runs a statement on its own: it is repeated when its name is all that was wrong. */
  runAlone<Row>(client: pg.Client, statement: Statement, values: readonly unknown[]): Promise<Row[]>
}

/**
 * Runs statements by their names for as long as these hold. Behind a pooler that gives each transaction another
 * connection, a name prepared here is missing there (26000), or taken by somebody else (42P05): then statements go on
 * without names, for good. Both errors come before anything was done.
 */
export function createRunner(connections: Connections, log: Pick<Log, 'warn'> | undefined): Runner {
  let named = true
  let tried: Promise<void> | undefined

  function doWithout(): void {
    if (named) log?.warn('statements without names: a pooler that keeps none stands before the database')
    named = false
  }

  async function tryNames(client: pg.Client & { processID?: number }): Promise<void> {
    const { rows } = await client.query('SELECT pg_backend_pid() AS pid')
    // The process is the one that greeted us: nobody stands between.
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

  async function runPlain<Row>(
    client: pg.Client,
    { name, text }: Statement,
    values: readonly unknown[],
  ): Promise<Row[]> {
    const query = named ? { name, text, values: values as unknown[] } : { text, values: values as unknown[] }
    return (await client.query(query)).rows as Row[]
  }

  const run: typeof runPlain = tracing
    ? (client, statement, values) => inStatementSpan(statement.name, () => runPlain(client, statement, values))
    : runPlain

  return {
    namesHold: () => named,
    tryNames(client) {
      tried ??= tryNames(client).catch(error => {
        if (isAboutNames(error)) doWithout()
        else tried = undefined
      })
      return tried
    },
    async run(client, statement, values) {
      try {
        return await run(client, statement, values)
      } catch (error) {
        if (isAboutNames(error)) doWithout()
        throw error
      }
    },
    async runAlone(client, statement, values) {
      try {
        return await run(client, statement, values)
      } catch (error) {
        if (!isAboutNames(error)) throw error
        doWithout()
        return run(client, statement, values)
      }
    },
  }
}

function isAboutNames(error: unknown): boolean {
  return ['26000', '42P05'].includes(String((error as { code?: string }).code))
}
