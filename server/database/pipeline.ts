import type pg from 'pg'
import type { Connections } from './connections.js'
import type { Runner, Statement } from './statement.js'

/** Connections that are shared by statements that only read. */
export interface Pipeline {
  /** Runs a prepared statement and returns its rows. It must be quick and wait for no lock: others wait behind it. */
  read<Row>(statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /** Closes every connection once its statements have ended. */
  close(): Promise<void>
}

/** Most connections of a pipeline. */
export const width = 4

/** Statements under way on one connection before the next one is used: many on few cost least, a slow one blocks few. */
const depth = 16

interface Connection {
  readonly client: Promise<pg.Client>
  inFlight: number
}

/**
 * Sends statements without waiting for the answers to those before (PostgreSQL's pipeline mode). Nothing connects
 * before the first use; a connection that breaks is replaced at the next one. Poolers that keep no names of statements
 * lose count of answers, too: behind one, statements go through `run`.
 */
export function createPipeline(
  { open, end }: Connections,
  { namesHold, tryNames, runAlone }: Runner,
  run: Pipeline['read'],
): Pipeline {
  const connections: Connection[] = []

  function choose(): Connection {
    const free = connections.find(({ inFlight }) => inFlight < depth)
    if (free) return free
    if (connections.length < width) return connect()
    return connections.reduce((least, each) => (each.inFlight < least.inFlight ? each : least))
  }

  function connect(): Connection {
    const leave = () => {
      if (connections.includes(connection)) connections.splice(connections.indexOf(connection), 1)
    }
    const client = open({ pipeline: true, retire: leave }).then(async opened => {
      await tryNames(opened)
      return opened
    })
    client.catch(leave)
    const connection = { client, inFlight: 0 }
    connections.push(connection)
    return connection
  }

  return {
    async read<Row>(statement: Statement, values: readonly unknown[]) {
      if (!namesHold()) return run<Row>(statement, values)
      const connection = choose()
      connection.inFlight++
      try {
        const client = await connection.client
        // It was the first to connect, and learned of a pooler.
        if (!namesHold()) return await run<Row>(statement, values)
        return await runAlone<Row>(client, statement, values)
      } finally {
        connection.inFlight--
        if (connection.inFlight === 0 && !connections.includes(connection)) void connection.client.then(end, () => {})
      }
    },
    async close() {
      const settled = await Promise.allSettled(connections.map(({ client }) => client))
      await Promise.all(settled.map(result => result.status === 'fulfilled' && end(result.value)))
    },
  }
}
