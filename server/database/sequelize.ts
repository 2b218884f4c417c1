import pg from 'pg'
import { Sequelize, type Transaction } from 'sequelize'
import type { Client, Connections } from './connections.js'

/** Opens Sequelize, with at most `max` connections. Sends no query. */
export function openSequelize({ Client, acquireLimit }: Connections, max: number): Sequelize {
  return new Sequelize({
    dialect: 'postgres',
    // Its connections take their configuration from the URL, not from Sequelize.
    dialectModule: { ...pg, Client },
    dialectOptions: { clientMinMessages: 'ignore' },
    // These would be statements on each connection, which a pooler may send to another session: see session-settings.ts.
    ...{ keepDefaultTimezone: true, databaseVersion: '14.0.0' },
    standardConformingStrings: false,
    pool: {
      max,
      idle: 60_000,
      acquire: acquireLimit,
      validate: client => !(client as Client).isRetired,
    },
    logging: false,
    define: { timestamps: false, freezeTableName: true, underscored: true },
  })
}

/** The connection of a transaction, for statements that aren't Sequelize's. */
export function clientOf(transaction: Transaction): Client {
  return (transaction as Transaction & { connection: Client }).connection
}

/** The pool of Sequelize, whose types lack it. */
export function poolOf({ connectionManager }: Sequelize) {
  type Pool = Readonly<Record<'using' | 'available' | 'waiting' | 'maxSize', number>>
  return (connectionManager as typeof connectionManager & { readonly pool: Pool }).pool
}
