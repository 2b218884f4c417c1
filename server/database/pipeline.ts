import pg from 'pg'
import { ConnectionError } from 'sequelize'
import type { Statement } from './statement.js'

/** Connections that are shared by statements that only read. */
export interface Pipeline {
  /** Runs a prepared statement and returns its rows. It must be quick and wait for no lock: others wait behind it. */
  read<Row>(statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /** Closes every connection once its statements have ended. */
  close(): Promise<void>
}

/** Most connections of a pipeline. */
const width = 4

/** Statements under way on one connection before the next one is used: many on few cost least, a slow one blocks few. */
const depth = 16

/** Milliseconds after which a connection that doesn't answer is dropped, with everything on it. */
const patience = 10_000

interface Connection {
  readonly client: Promise<pg.Client>
  underWay: number
}

/**
 * Sends statements without waiting for the answers to those before (PostgreSQL's pipeline mode). Nothing connects
 * before the first use; a connection that breaks is replaced at the next one.
 */
export function createPipeline(url: string): Pipeline {
  const connections: Connection[] = []

  function choose(): Connection {
    const free = connections.find(({ underWay }) => underWay < depth)
    if (free) return free
    if (connections.length < width) return open()
    return connections.reduce((least, each) => (each.underWay < least.underWay ? each : least))
  }

  function open(): Connection {
    const client = new pg.Client({
      connectionString: url,
      pipeline: true,
      application_name: 'auth',
      connectionTimeoutMillis: 5_000,
      query_timeout: patience,
      keepAlive: true,
      // Routers forget connections that are silent for long.
      keepAliveInitialDelayMillis: 60_000,
    })
    const connected = client.connect().then(
      () => client,
      cause => {
        throw new ConnectionError(cause)
      },
    )
    const connection = { client: connected, underWay: 0 }
    const leave = () => {
      if (connections.includes(connection)) connections.splice(connections.indexOf(connection), 1)
    }
    client.on('error', leave)
    client.on('end', leave)
    connected.catch(leave)
    connections.push(connection)
    return connection
  }

  return {
    async read<Row>({ name, text }: Statement, values: readonly unknown[]) {
      const connection = choose()
      connection.underWay++
      try {
        const client = await connection.client
        return (await client.query({ name, text, values: values as unknown[] })).rows as Row[]
      } finally {
        connection.underWay--
      }
    },
    async close() {
      const settled = await Promise.allSettled(connections.map(({ client }) => client))
      await Promise.all(settled.map(result => result.status === 'fulfilled' && result.value.end()))
    },
  }
}
