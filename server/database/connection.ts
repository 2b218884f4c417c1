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
 * - the audit log, which is staged among other things, and sealed and checked in bulk;
 * - a join that locks its rows, and a lock on a whole table, which Sequelize can't say.
 */
import pg from 'pg'
import { ConnectionAcquireTimeoutError, Sequelize, Transaction } from 'sequelize'
import type { Log } from '../log.js'
import { tracing } from '../tracing.js'
import { createConnections } from './connections.js'
import { copyIn, copyOut } from './copy.js'
import { createPipeline } from './pipeline.js'
import { createProbe } from './probe.js'
import { traceSequelize } from './spans.js'
import { createRunner, type Statement } from './statement.js'
import { explainLimits, setLimits, unlimited } from './timeouts.js'

export type { Statement, Transaction }

/** The one way to PostgreSQL. Nothing here waits for ever: whatever isn't answered in 6 s fails. */
export interface Database {
  /** For the models. */
  readonly sequelize: Sequelize
  /** Runs a prepared statement, on its own or as a part of a transaction, and returns its rows. */
  run<Row>(statement: Statement, values: readonly unknown[], transaction?: Transaction): Promise<Row[]>
  /** Runs a prepared statement that only reads, waits for no lock and is quick: it shares a connection with others. */
  read<Row>(statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /**
   * Runs statements as one transaction (READ COMMITTED): all or none of it holds. Keep it short, unless it is `unlimited`:
   * then its statements may take and wait as long as they need, as migrations do. All statements of a `snapshot` see the
   * same, as it is when the first one runs (REPEATABLE READ).
   */
  transact<T>(
    work: (transaction: Transaction) => Promise<T>,
    options?: { unlimited?: boolean; snapshot?: boolean },
  ): Promise<T>
  /** What a `COPY … TO STDOUT` gives, in pieces. Its transaction is unlimited, and ends with it if it isn't read whole. */
  copyOut(query: string, transaction: Transaction): AsyncIterable<Buffer>
  /** Runs a `COPY … FROM STDIN`, in an unlimited transaction, and returns how many rows it took. */
  copyIn(query: string, rows: AsyncIterable<Buffer>, transaction: Transaction): Promise<number>
  /** Whether a connection of the pool can write, within 2 s. What one caller learned holds for others a moment longer. */
  isWritable(): Promise<boolean>
  /** State of the pool, and errors since the start, for metrics. */
  stats(): DatabaseStats
  /** Has the server itself end what takes too long, for the role of the URL in this database from now on. */
  limitStatements(): Promise<void>
  /** Closes every connection once its statement has ended, and what is left after a second by force. */
  close(): Promise<void>
}

/** State of the pool, and what went wrong since the start. */
export interface DatabaseStats {
  /** Connections that somebody uses. */
  readonly inUse: number
  readonly idle: number
  /** Most connections of the pool. */
  readonly most: number
  /** Who waits for a connection. */
  readonly waiting: number
  /** Who waited in vain. */
  readonly timeouts: number
  /** By class of SQLSTATE (its first two characters), and `connect`, `lost` and `silent` for connections. */
  readonly errors: ReadonlyMap<string, number>
}

/** Milliseconds that statements under way have to end when a database is closed. */
const grace = 1_000

/**
 * Opens a pool of connections to what a URL names, which may change while it is open. `connections` bounds the pool;
 * nothing connects before the first use.
 */
export function openDatabase(url: string | (() => string), connections = 10, log?: Pick<Log, 'warn'>): Database {
  const all = createConnections(typeof url === 'string' ? () => url : url)
  const sequelize = new Sequelize({
    dialect: 'postgres',
    dialectModule: pg,
    logging: false,
    pool: { max: connections, idle: 60_000, acquire: 10_000, validate: client => all.isGood(client as pg.Client) },
    // Spares a question to the server; what we use is the same in every supported version.
    ...{ databaseVersion: '14.0.0' },
    define: { timestamps: false, freezeTableName: true },
  })
  const manager = sequelize.connectionManager as unknown as Manager
  if (tracing) traceSequelize(sequelize)
  let timeouts = 0
  const getConnection = manager.getConnection.bind(manager)
  manager.getConnection = options =>
    getConnection(options).catch(error => {
      if (error instanceof ConnectionAcquireTimeoutError) timeouts++
      throw error
    })
  const runner = createRunner(all, log)
  manager.connect = async () => {
    const client = await all.open()
    client.on('end', () => void manager.pool.destroy(client))
    await runner.tryNames(client)
    return client
  }
  manager.disconnect = all.end
  const run: Database['run'] = async (statement, values, transaction) => {
    if (transaction) return runner.run(clientOf(transaction), statement, values)
    if (statement.slow) return database.transact(t => run(statement, values, t), { unlimited: true })
    const client = await manager.getConnection()
    try {
      return await runner.runAlone(client, statement, values)
    } finally {
      manager.releaseConnection(client)
    }
  }
  const pipeline = createPipeline(all, runner, run)

  const database: Database = {
    sequelize,
    run,
    read: pipeline.read,
    async transact(work, options = {}) {
      let patient: pg.Client | undefined
      try {
        return await sequelize.transaction(
          { isolationLevel: Transaction.ISOLATION_LEVELS[options.snapshot ? 'REPEATABLE_READ' : 'READ_COMMITTED'] },
          async transaction => {
            if (options.unlimited) {
              patient = clientOf(transaction)
              all.setPatient(patient, true)
              await patient.query(unlimited)
            }
            return work(transaction)
          },
        )
      } finally {
        if (patient) all.setPatient(patient, false)
      }
    },
    copyOut(query, transaction) {
      const client = clientOf(transaction)
      return copyOut(client, query, () => all.giveUp(client))
    },
    copyIn: (query, rows, transaction) => copyIn(clientOf(transaction), query, rows),
    isWritable: createProbe(manager, all),
    stats() {
      const { using, available, waiting, maxSize } = manager.pool
      return { inUse: using, idle: available, most: maxSize, waiting, timeouts, errors: all.errors }
    },
    async limitStatements() {
      try {
        const changed = await database.transact(transaction => setLimits(clientOf(transaction)), { unlimited: true })
        if (changed) all.renew()
      } catch (error) {
        explainLimits(error, log)
      }
    },
    async close() {
      all.stop()
      const timer = setTimeout(all.cut, grace)
      await Promise.all([sequelize.close(), pipeline.close()])
      clearTimeout(timer)
    },
  }
  return database
}

/** What is ours of Sequelize's connection manager. */
interface Manager {
  connect(): Promise<pg.Client>
  disconnect(client: pg.Client): Promise<void>
  getConnection(options?: object): Promise<pg.Client>
  releaseConnection(client: pg.Client): void
  readonly pool: {
    destroy(client: pg.Client): Promise<void>
    readonly using: number
    readonly available: number
    readonly waiting: number
    readonly maxSize: number
  }
}

function clientOf(transaction: Transaction): pg.Client {
  return (transaction as Transaction & { connection: pg.Client }).connection
}

/** The unique constraint that a statement broke, if that is why it failed. */
export function brokenConstraint(error: unknown): string | undefined {
  const cause = ((error as { original?: unknown })?.original ?? error) as { code?: string; constraint?: string }
  return cause?.code === '23505' ? cause.constraint : undefined
}

/**
 * Whether the same call may succeed another time: the database can't be reached, can't do it now, or undid a transaction
 * for the sake of another one.
 */
export function isUnreachable(error: unknown): boolean {
  const cause = ((error as { original?: unknown })?.original ?? error) as { name?: string; code?: string }
  if (/^Sequelize(Connection|HostNot|AccessDenied)/.test(String((error as Error)?.name))) return true
  // Classes 08 (connection), 40 (rolled back: deadlock, serialization), 53 (resources), 57 (operator intervention, and
  // the statement's own timeout); 25006 (read-only), 25P03 and 25P04 (a transaction's timeouts), 55P03 (lock not available),
  // 58030 (the disk); 26000 and 42P05, which a pooler answers until we know of it; sockets' own codes.
  return (
    /^(08|40|53|57)...$|^(25006|25P0[34]|55P03|58030|26000|42P05)$|^E(CONN|PIPE|TIMEDOUT|HOST|NET|NOTFOUND|AI_)/.test(
      String(cause?.code),
    ) ||
    /Connection terminated|not queryable|pool is draining|manager was closed/.test(String((cause as Error)?.message))
  )
}
