/**
 * This folder owns the choice of the database (database-choice.ts), the wait for it at a start (wait-at-start.ts), its schema
 * (migrate.ts), its connections and transactions, its statements (sql.ts), and the description of tables (attributes.ts). The
 * folders that import it own the content of the tables. Why some statements aren't Sequelize's: docs/decisions/8-sequelize.md.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ConnectionAcquireTimeoutError, type Sequelize, Transaction } from 'sequelize'
import type { Log } from '../observability/log.js'
import { tracing } from '../observability/tracing.js'
import { type Client, createConnections, poolSize } from './connections.js'
import { copyIn, copyOut } from './copy.js'
import { ConnectionError, isConflict } from './failures.js'
import { createPipeline } from './pipeline.js'
import { createProbe } from './probe.js'
import { clientOf, openSequelize, poolOf } from './sequelize.js'
import {
  explainSettings,
  type Missing,
  missingSettings,
  storeSettings,
  withoutLimits,
  wrongSettings,
} from './session-settings.js'
import { traceSequelize } from './spans.js'
import { type Query, type Statement, sql } from './sql.js'
import { runOn } from './statement.js'

export type { Transaction } from 'sequelize'

/** The only access to PostgreSQL. A statement without a response fails after 6 s, so that no caller waits forever. */
export interface Database {
  /** Sequelize with all models. */
  readonly sequelize: Sequelize
  /** The present day in the time zone of the registry, as a part of statements. */
  readonly today: Query
  /** Runs a statement, alone or in a transaction, and returns its rows. */
  run<Row>(query: Statement, transaction?: Transaction): Promise<Row[]>
  /** Runs a statement that only reads, waits for no lock and is fast, because statements share a connection. */
  read<Row>(query: Statement): Promise<Row[]>
  /** Runs a statement without time limits: no caller waits for it, and it holds no lock that others need. */
  runUnlimited<Row>(query: Statement): Promise<Row[]>
  /**
   * Runs statements as one transaction (READ COMMITTED). Keep it short, unless it is `unlimited`, which removes the time
   * limits of its statements, for example for migrations. In a `snapshot`, all statements see the state at the first one
   * (REPEATABLE READ). Unless it is unlimited, `work` runs again when PostgreSQL rolled it back because of a conflict: it
   * must have no effect outside the transaction that can't be repeated.
   */
  transact<T>(
    work: (transaction: Transaction) => Promise<T>,
    options?: { unlimited?: boolean; snapshot?: boolean },
  ): Promise<T>
  /** Runs a `COPY … TO STDOUT` in an unlimited transaction. Read its output to the end, or the transaction fails. */
  copyOut(query: string, transaction: Transaction): AsyncIterable<Buffer>
  /** Runs a `COPY … FROM STDIN` in an unlimited transaction, and returns the number of rows. */
  copyIn(query: string, rows: AsyncIterable<Buffer>, transaction: Transaction): Promise<number>
  /** Whether a connection of the pool can write, within 2 s. Parallel callers share the result. */
  isWritable(): Promise<boolean>
  /** State of the pool, and errors since the start, for metrics. */
  stats(): DatabaseStats
  /** The backend processes of the open connections of this process. */
  backends(): readonly number[]
  /**
   * Stores the settings that sessions need on the server, permanently, for the role of the URL in this database. Throws if the
   * server doesn’t know the time zone.
   */
  prepareSessions(): Promise<void>
  /** Returns the settings of a session that contradict this version, as `name = value`. */
  wrongSettings(): Promise<readonly string[]>
  /** Closes each connection when its statement ends, or by force after a second. */
  close(): Promise<void>
}

/** State of the pool, and errors since the start. */
interface DatabaseStats {
  /** Number of connections in use. */
  readonly inUse: number
  readonly idle: number
  /** The limit of the pool. */
  readonly most: number
  /** Number of callers that wait for a connection. */
  readonly waiting: number
  /** Number of callers whose wait for a connection timed out. */
  readonly timeouts: number
  /** Number of errors by class of SQLSTATE (its first two characters), and by `connect`, `lost` and `silent`. */
  readonly errors: ReadonlyMap<string, number>
}

/**
 * How often work that conflicts with other transactions runs, the milliseconds after its start from which it isn't repeated,
 * and the maximum milliseconds between two attempts. With the limits of a transaction, all stay below the deadline of a call.
 */
const conflicts = { attempts: 10, repeatedFor: 4_000, maxPause: 100 }

/** Maximum milliseconds that `close` waits for statements in flight. */
const grace = 1_000

/**
 * Opens a pool of at most `maxConnections` connections to the database of a URL. A function returns the current URL for each
 * new connection. The pool connects at the first use.
 */
export function openDatabase(
  url: string | (() => string),
  maxConnections = poolSize,
  log?: Pick<Log, 'warn'>,
  timeZone = 'UTC',
): Database {
  const connections = createConnections(typeof url === 'string' ? () => url : url, log)
  const sequelize = openSequelize(connections, maxConnections)
  if (tracing) traceSequelize(sequelize)
  const { connectionManager } = sequelize
  const acquire = connectionManager.getConnection.bind(connectionManager)
  connectionManager.getConnection = options => acquire(options).catch(failConnection)
  let timeouts = 0

  /** Throws the error of a connection that the pool couldn't get. */
  function failConnection(error: { original?: unknown }): never {
    if (error instanceof ConnectionAcquireTimeoutError) {
      timeouts++
      throw new ConnectionError(error.original)
    }
    throw error.original instanceof ConnectionError ? error.original : error
  }

  /** Runs `work` on a connection of the pool. */
  async function onConnection<T>(work: (client: Client) => Promise<T>): Promise<T> {
    const client = (await connectionManager.getConnection({ type: 'write' })) as Client
    try {
      return await work(client)
    } finally {
      connectionManager.releaseConnection(client)
    }
  }

  async function run<Row>(query: Statement, transaction?: Transaction): Promise<Row[]> {
    if (transaction) return runOn(clientOf(transaction), query)
    return repeat(() => onConnection(client => runOn<Row>(client, query)))
  }
  const runUnlimited = <Row>(query: Statement) => transact(t => run<Row>(query, t), { unlimited: true })

  const pipeline = createPipeline(connections, run)

  const transact: Database['transact'] = (work, options = {}) =>
    repeat(() => transactOnce(work, options), options.unlimited)

  const transactOnce: Database['transact'] = async (work, { unlimited = false, snapshot = false } = {}) => {
    const options = snapshot ? { isolationLevel: Transaction.ISOLATION_LEVELS.REPEATABLE_READ } : {}
    const transaction = await sequelize.transaction(options)
    const client = clientOf(transaction)
    client.setUnlimited(unlimited)
    try {
      if (unlimited) await client.query(withoutLimits)
      const result = await work(transaction)
      // Sequelize's own statements write their errors to stderr.
      await client.query('COMMIT')
      return result
    } catch (error) {
      // The server rolls back what a lost connection began.
      await client.query('ROLLBACK').catch(() => client.end())
      throw error
    } finally {
      client.setUnlimited(false)
      connectionManager.releaseConnection(client)
    }
  }

  let closed: Promise<void> | undefined
  async function close(): Promise<void> {
    const settle = connections.stop(grace)
    await Promise.all([sequelize.close(), pipeline.close()])
    settle()
  }

  const database: Database = {
    sequelize,
    today: sql.text(`(now() AT TIME ZONE '${timeZone}')::date`),
    run,
    read: query => repeat(() => pipeline.read(query)),
    runUnlimited,
    transact,
    copyOut(query, transaction) {
      const client = clientOf(transaction)
      return copyOut(client, query, () => void client.end())
    },
    copyIn: (query, rows, transaction) => copyIn(clientOf(transaction), query, rows),
    isWritable: createProbe(run),
    stats() {
      const { using, available, waiting, maxSize } = poolOf(sequelize)
      return { inUse: using, idle: available, most: maxSize, waiting, timeouts, errors: connections.errors }
    },
    backends: connections.backends,
    async prepareSessions() {
      // Not every server knows all names of time zones.
      await run(sql`SELECT ${database.today}`)
      const due = await run<Missing>(missingSettings)
      if (due.length === 0) return
      try {
        await database.transact(transaction => storeSettings(clientOf(transaction)), { unlimited: true })
      } catch (error) {
        return explainSettings(error, due, log)
      }
      const replaced = due.flatMap(each => each.replaced ?? [])
      if (replaced.length > 0)
        log?.warn({ replaced }, 'settings that the service can’t work with are replaced for its role in this database')
      connections.renew()
      const wrong = await database.wrongSettings()
      if (wrong.length > 0)
        log?.warn({ wrong }, 'a pooler in front of the database still has sessions with former settings: reconnect it')
    },
    async wrongSettings() {
      return (await run<{ wrong: string }>(wrongSettings)).map(({ wrong }) => wrong)
    },
    close() {
      closed ??= close()
      return closed
    },
  }
  return database
}

/**
 * Repeats work that PostgreSQL rolled back, after a random pause: one of the transactions in a conflict succeeds. Repeats work
 * at once whose connection was refused with TLS, but may do without.
 */
async function repeat<T>(work: () => Promise<T>, unlimited = false): Promise<T> {
  const end = performance.now() + conflicts.repeatedFor
  for (let attempt = 1; ; attempt++) {
    try {
      return await work()
    } catch (error) {
      if (error instanceof ConnectionError && error.withoutTls && attempt === 1) continue
      if (unlimited || !isConflict(error) || attempt === conflicts.attempts || performance.now() > end) throw error
      await sleep(Math.random() * Math.min(conflicts.maxPause, 5 * 2 ** attempt))
    }
  }
}
