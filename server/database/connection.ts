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
 * - what a start, upkeep and a process that waits for calls ask: Sequelize, 31 MB, is loaded by the first who needs it;
 * - a join that locks its rows, and a lock on a whole table, which Sequelize can't say.
 */
import pg from 'pg'
import type { Model, ModelAttributes, ModelStatic, Sequelize, Transaction } from 'sequelize'
import { Pool, TimeoutError } from 'sequelize-pool'
import type { Log } from '../observability/log.js'
import { tracing } from '../observability/tracing.js'
import { createConnections } from './connections.js'
import { copyIn, copyOut } from './copy.js'
import { ConnectionError } from './failures.js'
import { createPipeline } from './pipeline.js'
import { createProbe } from './probe.js'
import { orm } from './sequelize.js'
import { inStatementSpan, traceSequelize } from './spans.js'
import { createRunner, type Statement } from './statement.js'
import { explainLimits, missingLimits, setLimits, unlimited } from './timeouts.js'

export type { Statement, Transaction }

/** The one way to PostgreSQL. Nothing here waits for ever: whatever isn't answered in 6 s fails. */
export interface Database {
  /** What the models are made of, with all of them. It is loaded by the first who asks for it. */
  readonly sequelize: Sequelize
  /** Describes a table, whose columns are asked for with its model. Returns what gives the model, made when first wanted. */
  define(table: string, columns: () => ModelAttributes): () => ModelStatic<Model>
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
  const runner = createRunner(all, log)
  const pool = new Pool<pg.Client>({
    max: connections,
    min: 0,
    idleTimeoutMillis: 60_000,
    acquireTimeoutMillis: 10_000,
    async create() {
      const client = await all.open()
      client.on('end', () => void pool.destroy(client))
      await runner.tryNames(client)
      return client
    },
    validate: all.isGood,
    destroy: all.end,
  })
  let timeouts = 0
  const acquire = () =>
    pool.acquire().catch(error => {
      if (!(error instanceof TimeoutError)) throw error
      timeouts++
      throw new ConnectionError(error)
    })

  const release = (client: pg.Client) => pool.release(client)

  const tables = new Map<string, () => ModelAttributes>()
  let sequelize: Sequelize | undefined
  function openSequelize(): Sequelize {
    if (sequelize) return sequelize
    sequelize = new (orm().Sequelize)({
      dialect: 'postgres',
      dialectModule: pg,
      logging: false,
      // Spares a question to the server; what we use is the same in every supported version.
      ...{ databaseVersion: '14.0.0' },
      define: { timestamps: false, freezeTableName: true },
    })
    // Connections are the pool's, whoever uses them.
    Object.assign(sequelize.connectionManager, { getConnection: acquire, releaseConnection: release })
    if (tracing) traceSequelize(sequelize)
    return sequelize
  }

  function modelOf(table: string): ModelStatic<Model> {
    const opened = openSequelize()
    return opened.models[table] ?? opened.define(table, tables.get(table)!())
  }

  const run: Database['run'] = async (statement, values, transaction) => {
    if (transaction) return runner.run(clientOf(transaction), statement, values)
    if (statement.slow) return database.transact(t => run(statement, values, t), { unlimited: true })
    const client = await acquire()
    try {
      return await runner.runAlone(client, statement, values)
    } finally {
      release(client)
    }
  }
  const pipeline = createPipeline(all, runner, run)

  const database: Database = {
    get sequelize() {
      for (const table of tables.keys()) modelOf(table)
      return openSequelize()
    },
    define(table, columns) {
      tables.set(table, columns)
      return () => modelOf(table)
    },
    run,
    read: pipeline.read,
    async transact(work, { unlimited: patient = false, snapshot = false } = {}) {
      const client = await acquire()
      const transaction = { connection: client, LOCK: locks, finished: undefined as string | undefined }
      try {
        if (patient) all.setPatient(client, true)
        await send(client, `BEGIN ISOLATION LEVEL ${snapshot ? 'REPEATABLE READ' : 'READ COMMITTED'}`)
        if (patient) await client.query(unlimited)
        const result = await work(transaction as unknown as Transaction)
        await send(client, 'COMMIT')
        return result
      } catch (error) {
        // A connection whose transaction can't be undone is of no use.
        await send(client, 'ROLLBACK').catch(() => pool.destroy(client))
        throw error
      } finally {
        transaction.finished = 'whole'
        if (patient) all.setPatient(client, false)
        release(client)
      }
    },
    copyOut(query, transaction) {
      const client = clientOf(transaction)
      return copyOut(client, query, () => all.giveUp(client))
    },
    copyIn: (query, rows, transaction) => copyIn(clientOf(transaction), query, rows),
    isWritable: createProbe({ acquire, release }, all),
    stats() {
      const { using, available, waiting, maxSize } = pool
      return { inUse: using, idle: available, most: maxSize, waiting, timeouts, errors: all.errors }
    },
    async limitStatements() {
      try {
        if ((await database.run(missingLimits.statement, missingLimits.values)).length === 0) return
        const changed = await database.transact(transaction => setLimits(clientOf(transaction)), { unlimited: true })
        if (changed) all.renew()
      } catch (error) {
        explainLimits(error, log)
      }
    },
    async close() {
      all.stop()
      const timer = setTimeout(all.cut, grace)
      await Promise.all([pool.drain().then(() => pool.destroyAllNow()), pipeline.close()])
      clearTimeout(timer)
    },
  }
  return database
}

/** How rows are locked, in the words of Sequelize, which takes them from the transaction. */
const locks = { UPDATE: 'UPDATE', SHARE: 'SHARE', KEY_SHARE: 'KEY SHARE', NO_KEY_UPDATE: 'NO KEY UPDATE' } as const

/** Begins or ends a transaction. */
function send(client: pg.Client, text: string): Promise<unknown> {
  return tracing ? inStatementSpan('transaction', () => client.query(text)) : client.query(text)
}

function clientOf(transaction: Transaction): pg.Client {
  return (transaction as Transaction & { connection: pg.Client }).connection
}
