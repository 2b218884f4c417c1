/**
 * The database room owns the choice of the database (database-choice.ts), its schema (migrate.ts), its connections, and the
 * description of tables (attributes.ts). The rooms above own the content of the tables; only `models` and this room import
 * Sequelize and pg.
 *
 * Sequelize writes single rows, from the models. Hand-written statements are prepared once on each connection, and are used
 * for one of these reasons:
 *
 * - Most calls consist of them: reading users, their answers and the questions (user.ts, question.ts), and the start and end
 *   of an attempt to sign in (attempt.ts). A prepared join ran 2.5 times as often in a second as the same SQL through
 *   Sequelize, and a pipelined one 1.4 to 3 times as often again.
 * - They count or claim, so that parallel callers need a single step: attempts, mailed keys, due e-mails (SKIP LOCKED).
 * - They stage audit events as part of other statements, or seal and verify events in bulk.
 * - A start, maintenance or an idle process runs them: Sequelize takes 31 MB, and is loaded at its first use.
 * - Sequelize can't express them: a join that locks its rows, a lock on a table.
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

/** The only access to PostgreSQL. Nothing here waits forever: a statement without an answer fails after 6 s. */
export interface Database {
  /** Sequelize with all models, loaded at the first use. */
  readonly sequelize: Sequelize
  /** Describes a table. Returns a function that returns its model, which is made at the first use. */
  define(table: string, columns: () => ModelAttributes): () => ModelStatic<Model>
  /** Runs a prepared statement, alone or in a transaction, and returns its rows. */
  run<Row>(statement: Statement, values: readonly unknown[], transaction?: Transaction): Promise<Row[]>
  /** Runs a prepared statement that only reads, waits for no lock and is fast, since it shares a connection with others. */
  read<Row>(statement: Statement, values: readonly unknown[]): Promise<Row[]>
  /**
   * Runs statements as one transaction (READ COMMITTED). Keep it short, unless it is `unlimited`: then its statements may run
   * and wait as long as they need, as migrations do. In a `snapshot` all statements see the state at the first one
   * (REPEATABLE READ).
   */
  transact<T>(
    work: (transaction: Transaction) => Promise<T>,
    options?: { unlimited?: boolean; snapshot?: boolean },
  ): Promise<T>
  /** The output of a `COPY … TO STDOUT`, in pieces, in an unlimited transaction, which fails if it isn't read to the end. */
  copyOut(query: string, transaction: Transaction): AsyncIterable<Buffer>
  /** Runs a `COPY … FROM STDIN` in an unlimited transaction, and returns the number of rows. */
  copyIn(query: string, rows: AsyncIterable<Buffer>, transaction: Transaction): Promise<number>
  /** Whether a connection of the pool can write, within 2 s. Callers share the result for a moment. */
  isWritable(): Promise<boolean>
  /** State of the pool, and errors since the start, for metrics. */
  stats(): DatabaseStats
  /** Sets time limits on the server, for the role of the URL in this database from now on. */
  limitStatements(): Promise<void>
  /** Closes each connection when its statement has ended, and after a second by force. */
  close(): Promise<void>
}

/** State of the pool, and errors since the start. */
export interface DatabaseStats {
  /** Connections in use. */
  readonly inUse: number
  readonly idle: number
  /** The limit of the pool. */
  readonly most: number
  /** Callers that wait for a connection. */
  readonly waiting: number
  /** Callers that got no connection in time. */
  readonly timeouts: number
  /** By class of SQLSTATE (its first two characters), and `connect`, `lost` and `silent` for connections. */
  readonly errors: ReadonlyMap<string, number>
}

/** Milliseconds for statements in flight to end when a database is closed. */
const grace = 1_000

/**
 * Opens a pool of connections to the database of a URL, which may change meanwhile. `connections` limits the pool. It connects
 * at the first use.
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
      // Saves a query for it. What is used here is the same in all supported versions.
      ...{ databaseVersion: '14.0.0' },
      define: { timestamps: false, freezeTableName: true },
    })
    // Sequelize and prepared statements share the pool.
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
        // A connection whose transaction can't be rolled back is unusable.
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

/** Row locks, as Sequelize reads them from a transaction. */
const locks = { UPDATE: 'UPDATE', SHARE: 'SHARE', KEY_SHARE: 'KEY SHARE', NO_KEY_UPDATE: 'NO KEY UPDATE' } as const

/** Begins or ends a transaction. */
function send(client: pg.Client, text: string): Promise<unknown> {
  return tracing ? inStatementSpan('transaction', () => client.query(text)) : client.query(text)
}

function clientOf(transaction: Transaction): pg.Client {
  return (transaction as Transaction & { connection: pg.Client }).connection
}
