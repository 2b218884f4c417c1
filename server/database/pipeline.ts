import pg from 'pg'
import { ConnectionError } from 'sequelize'
import type { Statement } from './connection.js'

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

/** Milliseconds after which a connection that doesn't answer is given up with everything on it. */
const patience = 10_000

interface Lane {
  readonly client: Promise<pg.Client>
  underWay: number
}

/**
 * Sends statements without waiting for the answers to those before (PostgreSQL's pipeline mode). Nothing connects
 * before the first use; a connection that breaks is replaced at the next one.
 */
export function createPipeline(url: string): Pipeline {
  const lanes: Lane[] = []

  function chooseLane(): Lane {
    const free = lanes.find(lane => lane.underWay < depth)
    if (free) return free
    if (lanes.length < width) return openLane()
    return lanes.reduce((least, lane) => (lane.underWay < least.underWay ? lane : least))
  }

  function openLane(): Lane {
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
    const lane = { client: connected, underWay: 0 }
    const leave = () => {
      if (lanes.includes(lane)) lanes.splice(lanes.indexOf(lane), 1)
    }
    client.on('error', leave)
    client.on('end', leave)
    connected.catch(leave)
    lanes.push(lane)
    return lane
  }

  return {
    async read<Row>({ name, text }: Statement, values: readonly unknown[]) {
      const lane = chooseLane()
      lane.underWay++
      try {
        const client = await lane.client
        return (await client.query({ name, text, values: values as unknown[] })).rows as Row[]
      } finally {
        lane.underWay--
      }
    },
    async close() {
      const open = await Promise.allSettled(lanes.map(({ client }) => client))
      await Promise.all(open.map(result => result.status === 'fulfilled' && result.value.end()))
    },
  }
}
