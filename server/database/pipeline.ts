import type { Client, Connections } from './connections.js'
import type { Statement } from './sql.js'
import { runOn } from './statement.js'

/** Maximum number of connections. */
export const width = 4

/** Statements in flight on a connection before another is used: fewer connections cost less, more reduce blocking. */
const depth = 16

interface Connection {
  readonly client: Client
  readonly opened: Promise<unknown>
  inFlight: number
}

/**
 * Connections that read-only statements share: it sends them without waiting for earlier responses (PostgreSQL's pipeline mode),
 * so that many take one write and one read of the socket. They must be fast and wait for no lock: later statements wait for
 * them. Connects at the first use. A pooler may mismatch pipelined responses: behind one, statements go through `run`.
 */
export function createPipeline({ Client }: Connections, run: <Row>(query: Statement) => Promise<Row[]>) {
  let connections: Connection[] = []

  function choose(): Connection {
    connections = connections.filter(({ client }) => !client.isRetired)
    const free = connections.find(({ inFlight }) => inFlight < depth)
    if (free) return free
    if (connections.length < width) return connect()
    return connections.reduce((least, each) => (each.inFlight < least.inFlight ? each : least))
  }

  function connect(): Connection {
    const client = new Client({ pipeline: true })
    const connection = { client, opened: client.connect(), inFlight: 0 }
    connections.push(connection)
    return connection
  }

  return {
    async read<Row>(query: Statement): Promise<Row[]> {
      const connection = choose()
      connection.inFlight++
      try {
        await connection.opened
        return await (connection.client.prepares ? runOn<Row>(connection.client, query) : run<Row>(query))
      } finally {
        connection.inFlight--
        // The connection was retired while other statements were in flight.
        if (connection.inFlight === 0 && connection.client.isRetired) void connection.client.end()
      }
    },
    /** Closes each connection when its statements have completed. */
    async close(): Promise<void> {
      await Promise.all(connections.map(({ client }) => client.end()))
    },
  }
}
