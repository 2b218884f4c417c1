import pg from 'pg'
import { Sequelize, Transaction } from 'sequelize'
import { createPipeline } from './pipeline.js'

export type { Transaction }

/** A statement that PostgreSQL prepares once on each connection. */
export interface Statement {
  readonly name: string
  readonly text: string
}

/** The one way to PostgreSQL. */
export interface Database {
  /** For the models. */
  readonly sequelize: Sequelize
  /** Runs a prepared statement, on its own or as a part of a transaction, and returns its rows. */
  run<Row>(statement: Statement, values: readonly unknown[], transaction?: Transaction): Promise<Row[]>
  /** Runs a prepared statement that only reads, waits for no lock and is quick: it shares a connection with others. */
  read<Row>(statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /** Runs statements as one transaction (READ COMMITTED): all or none of it holds. Keep it short. */
  transact<T>(work: (transaction: Transaction) => Promise<T>): Promise<T>
  /** Closes every connection once its statement has ended. */
  close(): Promise<void>
}

/** Opens a pool of connections. `connections` bounds it; nothing connects before the first use. */
export function openDatabase(url: string, connections = 10): Database {
  /** Reads the URL itself; Sequelize would with a function that newer versions of Node.js warn of. */
  class Client extends pg.Client {
    constructor(config: pg.ClientConfig) {
      super({ ...config, connectionString: url })
    }
  }
  const sequelize = new Sequelize({
    dialect: 'postgres',
    dialectModule: Object.create(pg, { Client: { value: Client } }),
    logging: false,
    pool: { max: connections, idle: 60_000, acquire: 10_000 },
    dialectOptions: { application_name: 'auth', connectionTimeoutMillis: 5_000, keepAlive: true },
    // Spares a question to the server; what we use is the same in every supported version.
    ...{ databaseVersion: '14.0.0' },
    define: { underscored: true, timestamps: false },
  })
  const pool = sequelize.connectionManager
  const pipeline = createPipeline(url)
  return {
    sequelize,
    async run<Row>(statement: Statement, values: readonly unknown[], transaction?: Transaction) {
      const query = { name: statement.name, text: statement.text, values: values as unknown[] }
      if (transaction) {
        const { connection } = transaction as Transaction & { connection: pg.Client }
        return (await connection.query(query)).rows as Row[]
      }
      const connection = (await pool.getConnection({ type: 'write' } as never)) as pg.Client
      try {
        return (await connection.query(query)).rows as Row[]
      } finally {
        pool.releaseConnection(connection as never)
      }
    },
    read: pipeline.read,
    transact: work => sequelize.transaction({ isolationLevel: Transaction.ISOLATION_LEVELS.READ_COMMITTED }, work),
    async close() {
      await Promise.all([sequelize.close(), pipeline.close()])
    },
  }
}

/** The unique constraint that a statement broke, if that is why it failed. */
export function brokenConstraint(error: unknown): string | undefined {
  const cause = ((error as { original?: unknown })?.original ?? error) as { code?: string; constraint?: string }
  return cause?.code === '23505' ? cause.constraint : undefined
}

/** Whether a fault lies in reaching the database, so that another try may succeed. */
export function isUnreachable(error: unknown): boolean {
  const cause = ((error as { original?: unknown })?.original ?? error) as { name?: string; code?: string }
  if (/^Sequelize(Connection|HostNot|AccessDenied)/.test(String((error as Error)?.name))) return true
  // Classes 08 (connection), 53 (resources), 57 (operator intervention); sockets' own codes.
  return (
    /^(08|53|57)...$|^E(CONN|PIPE|TIMEDOUT|HOST|NOTFOUND|AI_)/.test(String(cause?.code)) ||
    /Connection terminated|connection error|timeout exceeded when trying to connect|Query read timeout/.test(
      String((cause as Error)?.message),
    )
  )
}
