import { EventEmitter } from 'node:events'
import { createRequire } from 'node:module'
import pg from 'pg'
import type * as sequelize from 'sequelize'
import type { Connections } from './connections.js'

/** Sequelize. */
export const { ConnectionAcquireTimeoutError, DataTypes, Op, Sequelize, Transaction, col, literal }: typeof sequelize =
  createRequire(import.meta.url)('sequelize')

export const isolationLevels = Transaction.ISOLATION_LEVELS

/** A client of the driver as Sequelize uses it: `open` chooses the host, and sets up the session. */
export interface Client {
  readonly inner: pg.Client
}

/** Opens Sequelize, with at most `max` connections. `open` opens one. Sends no query. */
export function openSequelize(connections: Connections, open: () => Promise<pg.Client>, max: number) {
  class PoolClient extends EventEmitter {
    inner: pg.Client | undefined
    /** Sequelize reads parameters of the server from its events. */
    readonly connection = this
    connect(done: (error?: unknown) => void): void {
      open().then(client => {
        this.inner = client
        // A connection that is lost leaves the pool.
        client.on('end', () => this.emit('error', new Error('Connection terminated')))
        done()
      }, done)
    }
    query(...given: Parameters<pg.Client['query']>): unknown {
      return this.inner!.query(...given)
    }
    end(done: () => void): void {
      connections.end(this.inner!).then(done, done)
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
      acquire: 10_000,
      validate: client => connections.isGood((client as Client).inner),
    },
    logging: false,
    define: { timestamps: false, freezeTableName: true },
  })
}

/** The connection of a transaction, for statements that aren't Sequelize's. */
export function clientOf(transaction: sequelize.Transaction): pg.Client {
  return (transaction as sequelize.Transaction & { connection: Client }).connection.inner
}

/** The pool of Sequelize, whose types lack it. */
export function poolOf({ connectionManager }: sequelize.Sequelize) {
  type Pool = Readonly<Record<'using' | 'available' | 'waiting' | 'maxSize', number>>
  return (connectionManager as typeof connectionManager & { readonly pool: Pool }).pool
}
