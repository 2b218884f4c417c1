import type pg from 'pg'
import type { Connections } from './connections.js'
import type { Statement } from './sql.js'
import type { Runner } from './statement.js'

/** Connections that read-only statements share. */
interface Pipeline {
  /** Runs a prepared statement and returns its rows. It must be fast and wait for no lock: later statements wait for it. */
  read<Row>(query: Statement): Promise<Row[]>
  /** Closes each connection when its statements have completed. */
  close(): Promise<void>
}

/** Maximum number of connections. */
export const width = 4

/** Statements in flight on a connection before another is used: fewer connections cost less, more reduce blocking. */
const depth = 16

interface Connection {
  readonly client: Promise<pg.Client>
  inFlight: number
}

/**
 * Sends statements without waiting for earlier responses (PostgreSQL's pipeline mode). Connects at the first use, and replaces
 * a broken connection at the next use. A pooler that doesn't support prepared statements also mismatches pipelined
 * responses: behind such a pooler, statements go through `run`.
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
    async read<Row>(query: Statement) {
      if (!namesHold()) return run<Row>(query)
      const connection = choose()
      connection.inFlight++
      try {
        const client = await connection.client
        // The first connection may have detected a pooler.
        if (!namesHold()) return await run<Row>(query)
        return await runAlone<Row>(client, query)
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
