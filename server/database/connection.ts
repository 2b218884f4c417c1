/**
 * The database room owns which database it is (source.ts), its schema (migrate.ts), its connections, and how tables are described
 * (attributes.ts). What is in the tables is for the rooms above; only `models` and this room know Sequelize and pg.
 *
 * Rows are written one at a time by Sequelize, from the models. Statements by hand are prepared once on each connection
 * and stand where one of these reasons holds:
 *
 * - reading users, their answers and the questions (user.ts, question.ts) and the start and end of a sign-in
 *   (signin.ts): what most calls consist of. A prepared join was measured at 2.5 times as many a second as the same
 *   SQL through Sequelize, a pipelined one at 1.4 to 3 times as many again;
 * - counting and claiming, which read and write in one step however many do so at once: attempts, mailed keys, e-mails
 *   that are due (SKIP LOCKED);
 * - the audit log, whose chain the database computes;
 * - a join that locks its rows, and a lock on a whole table, which Sequelize can't say.
 */
import pg from 'pg'
import { Sequelize, Transaction } from 'sequelize'
import { createPipeline } from './pipeline.js'
import type { Statement } from './statement.js'

export type { Statement, Transaction }

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
    define: { timestamps: false, freezeTableName: true },
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

/**
 * Whether the same call may succeed another time: the database can't be reached, or it undid a transaction for the sake
 * of another one.
 */
export function isUnreachable(error: unknown): boolean {
  const cause = ((error as { original?: unknown })?.original ?? error) as { name?: string; code?: string }
  if (/^Sequelize(Connection|HostNot|AccessDenied)/.test(String((error as Error)?.name))) return true
  // Classes 08 (connection), 40 (rolled back: deadlock, serialization), 53 (resources), 57 (operator intervention) and
  // 55P03 (lock not available); sockets' own codes.
  return (
    /^(08|40|53|57)...$|^55P03$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|NOTFOUND|AI_)/.test(String(cause?.code)) ||
    /Connection terminated|not queryable|timeout exceeded when trying to connect|Query read timeout/.test(
      String((cause as Error)?.message),
    )
  )
}
