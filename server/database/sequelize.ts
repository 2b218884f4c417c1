import { EventEmitter } from 'node:events'
import pg from 'pg'
import { Sequelize, type Transaction } from 'sequelize'
import type { Connections } from './connections.js'

/** A client of the driver as Sequelize uses it: `open` chooses the host, and sets up the session. */
export interface Client {
  readonly inner: pg.Client
}

type Done = (error?: unknown, result?: object) => void

/** Opens Sequelize, with at most `max` connections. `open` opens one. Sends no query. */
export function openSequelize(connections: Connections, open: () => Promise<pg.Client>, max: number) {
  class PoolClient extends EventEmitter {
    inner: pg.Client | undefined
    /** Sequelize listens here for parameters of the server. */
    readonly connection = this
    /** Sequelize removes it from the pool. */
    private readonly lose = () => void this.emit('error', new Error('Connection terminated'))

    connect(done: Done): void {
      open().then(client => {
        this.inner = client.once('error', this.lose).once('end', this.lose)
        done()
      }, done)
    }

    query(text: string, ...rest: unknown[]): unknown {
      const client = this.inner!
      // Sequelize would write the error of a COMMIT or ROLLBACK to stderr. `transact` has committed.
      const end = () => (rest[0] as Done)(undefined, { rows: [] })
      if (text === 'COMMIT;' && client.getTransactionStatus() === 'I') return end()
      // The server rolls back what a lost connection began.
      if (text === 'ROLLBACK;') return client.query(text).catch(this.lose).then(end)
      return client.query(text, ...(rest as []))
    }

    end(done: Done): void {
      connections.end(this.inner!).then(() => done(), done)
    }
  }
  return new Sequelize({
    dialect: 'postgres',
    dialectModule: { ...pg, Client: PoolClient },
    dialectOptions: { clientMinMessages: 'ignore' },
    // These would be statements on each connection, which a pooler may send to another session: see session-settings.ts.
    ...{ keepDefaultTimezone: true, databaseVersion: '14.0.0' },
    standardConformingStrings: false,
    pool: {
      max,
      idle: 60_000,
      // A second more than a connection takes, whose error says more than that of the pool.
      acquire: Math.max(10_000, connections.openLimit() + 1_000),
      validate: client => connections.isGood((client as Client).inner),
    },
    logging: false,
    define: { timestamps: false, freezeTableName: true, underscored: true },
  })
}

/** The connection of a transaction, for statements that aren't Sequelize's. */
export function clientOf(transaction: Transaction): pg.Client {
  return (transaction as Transaction & { connection: Client }).connection.inner
}

/** The pool of Sequelize, whose types lack it. */
export function poolOf({ connectionManager }: Sequelize) {
  type Pool = Readonly<Record<'using' | 'available' | 'waiting' | 'maxSize', number>>
  return (connectionManager as typeof connectionManager & { readonly pool: Pool }).pool
}
