import type { Socket } from 'node:net'
import pg from 'pg'
import type { Log } from '../observability/log.js'
import { type DatabaseTarget, readDatabaseUrl } from '../process/database-url.js'
import { adviseOnConnection, ExcludedAuthentication } from './connection-advice.js'
import { ConnectionError, causeOf, isSqlState } from './failures.js'
import { startupParameters } from './session-settings.js'

/** A connection of the pools. */
export interface Client extends pg.Client {
  /** Whether prepared statements persist: behind a pooler, another session may have those of this one. */
  readonly prepares: boolean
  /** Whether no pool may lend it any more. */
  readonly isRetired: boolean
  /** Its backend process, even behind a pooler; undefined until it is open. */
  readonly backend: number | undefined
  /** Sets whether its statements may take longer than `silenceLimit` while the server answers on another connection. */
  setUnlimited(unlimited: boolean): void
}

/** The client class, and what concerns all connections. `pipeline` sends statements without waiting for responses. */
export interface Connections {
  readonly Client: new (options?: { pipeline?: boolean }) => Client
  /** Replaces all connections: idle ones now, others when their pool gets them back. */
  renew(): void
  /** The backend processes of the open connections. */
  backends(): readonly number[]
  /** Errors so far: by class of SQLSTATE, and `connect`, `lost` and `silent` for connections. */
  readonly errors: ReadonlyMap<string, number>
  /** Maximum milliseconds that a caller waits for a connection of a pool: longer than one may take to open. */
  readonly acquireLimit: number
  /** Opens no more connections, and after this time closes all by force. Returns what cancels the latter. */
  stop(after: number): () => void
}

/** Connections of a process to the database, unless it opens another number. */
export const poolSize = 10

/** Milliseconds between two checks of all connections. */
const checkInterval = 500

/** Maximum checks without data during a statement: longer than the statement timeout of the server. */
const silenceLimit = 5_500 / checkInterval

/** Maximum milliseconds that a connection that ends waits for the server to close it. */
const closeLimit = 1_000

/** SQLSTATE of a read-only server. */
const readOnly = '25006'

/** Properties of a client that pg's types lack. */
interface Inner {
  readonly connection: {
    readonly stream: Socket
    on(event: 'errorMessage', listener: (error: { code?: string }) => void): void
    prependListener(event: string, listener: (message: { mechanisms?: string[] }) => void): void
  }
  /** The backend process that the server named at the start. */
  readonly processID: number
  /** Whether no statement is in flight, after the connection is open. */
  readonly readyForQuery?: boolean
}

const types: pg.CustomTypesConfig = {
  // A date stays text, because it isn't a point in time.
  getTypeParser: (oid: number, format?: unknown) =>
    oid === pg.types.builtins.DATE ? String : pg.types.getTypeParser(oid, format as 'text'),
}

/**
 * Creates the client class for the database of a URL. The URL is read for each connection: passwords rotate, and an embedded
 * database may restart at another port.
 *
 * The class adds to the driver's only how a connection opens and when it ends. If a server vanishes without closing its
 * connections, they look idle: the driver notices only when the operating system stops retransmitting. So a connection that
 * is silent during a statement for too long is closed. Whatever ends one may have ended others, so all are replaced then. One
 * timer checks all connections, so statements have no overhead.
 */
export function createConnections(url: () => string, log?: Pick<Log, 'warn'>): Connections {
  const all = new Set<PoolClient>()
  const errors = new Map<string, number>()
  const countError = (kind: string) => void errors.set(kind, (errors.get(kind) ?? 0) + 1)
  let last: { url: string; target: DatabaseTarget } | undefined
  let timer: NodeJS.Timeout | undefined
  let stopped = false
  /** What the log says of the last refused connection; empty after one that opened, and undefined before the first. */
  let said: string | undefined
  /** With `sslmode=prefer`: whether the server refused TLS last. */
  let plain = false

  function readTarget(): DatabaseTarget {
    try {
      const now = url()
      if (last?.url !== now) last = { url: now, target: readDatabaseUrl(now) }
    } catch (error) {
      // A file that is being replaced.
      if (!last) throw error
    }
    return last!.target
  }

  class PoolClient extends pg.Client implements Client {
    private readonly target: DatabaseTarget
    private readonly usesTls: boolean
    private unlimited = false
    private isOpen = false
    /** Number of bytes received until the last check, and of checks since then during a statement. */
    private heard = 0
    private silent = 0
    isRetired = false
    prepares = false
    backend: number | undefined

    constructor({ pipeline = false } = {}) {
      const target = readTarget()
      const { config, mode } = target
      const ssl = mode === 'prefer' && plain ? false : config.ssl
      // Routers drop connections that are silent for long. The operating system then detects the loss within seconds.
      super({
        ...config,
        ssl,
        types,
        pipeline,
        keepAlive: true,
        keepAliveInitialDelayMillis: 10_000,
      } as pg.ClientConfig)
      this.target = target
      this.usesTls = ssl !== false
      all.add(this)
      timer ??= setInterval(() => all.forEach(client => void client.checkSilence()), checkInterval).unref()
      this.on('error', () => {
        this.isRetired = true
        if (!all.delete(this)) return
        countError('lost')
        renew()
      })
      this.on('end', () => {
        this.isRetired = true
        all.delete(this)
      })
      this.inner.connection.on('errorMessage', ({ code }) => {
        if (isSqlState(code)) countError(code.slice(0, 2))
        // The server was demoted to a standby.
        if (code === readOnly) renew()
      })
      if (config.enableChannelBinding) requireChannelBinding(this.inner)
    }

    private get inner(): Inner {
      return this as unknown as Inner
    }

    override connect(): Promise<pg.Client>
    override connect(done: (error: Error) => void): void
    override connect(done?: (error: Error) => void): Promise<pg.Client> | undefined {
      if (!done) return new Promise((resolve, reject) => this.connect(error => (error ? reject(error) : resolve(this))))
      // The driver passes null to its callback on success, too, which its types lack.
      const finish = (error: unknown = null): undefined => done((error && this.fail(error)) as Error) as undefined
      if (stopped) return finish(new Error('Connection terminated'))
      super.connect((error: Error) => {
        if (error) return finish(error)
        this.isOpen = true
        // Reads of a standby are stale. The backend is the one that accepted the connection, unless there is a pooler.
        void super.query('SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS standby', (error, result) => {
          if (error) return finish(error)
          const { pid, standby } = result.rows[0]
          this.backend = pid
          this.prepares = pid === this.inner.processID
          if (!standby) {
            said = ''
            return finish()
          }
          countError(readOnly.slice(0, 2))
          finish(Object.assign(new Error('The database is read-only'), { code: readOnly }))
        })
      })
    }

    /** Drops a connection that couldn't be opened, and returns the error. */
    private fail(error: unknown): ConnectionError {
      all.delete(this)
      void this.end()
      const { code } = error as { code?: string }
      // The listener of `errorMessage` counts errors of the server.
      if (!isSqlState(code)) countError('connect')
      const { config, mode } = this.target
      const differs = mode === 'prefer' && this.usesTls !== plain && wantsOther(error)
      if (differs) plain = this.usesTls
      const tlsParameter = config.enableChannelBinding ? 'channel_binding=require' : `sslmode=${mode}`
      const advice = adviseOnConnection(error, { role: config.user, database: config.database, tlsParameter })
      // At a start, the process or the command says it itself.
      if (advice && said !== undefined && said !== advice) {
        said = advice
        log?.warn({ code }, advice)
      }
      return new ConnectionError(error, advice, differs && this.usesTls)
    }

    /** Overrides the driver's method, which its types lack. */
    getStartupConf() {
      const { user, database, application_name, options } = this.target.config
      // Startup parameters cost no round trip, and poolers support these.
      return { user, database, application_name, ...startupParameters, ...(options && { options }) }
    }

    setUnlimited(unlimited: boolean): void {
      this.unlimited = unlimited
    }

    override end(): Promise<void>
    override end(done: (error: Error) => void): void
    override end(done?: (error: Error) => void): Promise<void> | undefined {
      this.isRetired = true
      const { stream } = this.inner.connection
      if (this.inner.readyForQuery) stream.setTimeout(closeLimit, () => void stream.destroy())
      return done ? (super.end(done) as undefined) : super.end()
    }

    /** Replaces this connection. */
    retire(): void {
      this.isRetired = true
      if (this.inner.readyForQuery && this.getTransactionStatus() === 'I') void this.end()
    }

    /**
     * Closes this connection if a statement is in flight for too long; one without a limit, if the server doesn't answer
     * otherwise. It counts checks instead of time, because a suspended process receives nothing.
     */
    private async checkSilence(): Promise<void> {
      const { stream } = this.inner.connection
      const isHeard = stream.bytesRead !== this.heard
      this.heard = stream.bytesRead
      this.silent = isHeard || this.inner.readyForQuery || !this.isOpen ? 0 : this.silent + 1
      if (this.silent <= silenceLimit) return
      this.silent = 0
      if (this.unlimited && (await answers())) return
      countError('silent')
      all.delete(this)
      this.isRetired = true
      stream.destroy(silence())
      renew()
    }
  }

  /** Whether the server answers on a new connection. */
  async function answers(): Promise<boolean> {
    const client = new PoolClient()
    try {
      await client.connect()
      return true
    } catch (error) {
      return isSqlState(causeOf(error).code)
    } finally {
      void client.end()
    }
  }

  function renew(): void {
    for (const client of all) client.retire()
  }

  return {
    Client: PoolClient,
    renew,
    backends: () => [...all].flatMap(({ backend }) => backend ?? []),
    errors,
    acquireLimit: Math.max(10_000, readTarget().config.connectionTimeoutMillis + 1_000),
    stop(after) {
      stopped = true
      const end = setTimeout(() => {
        for (const client of all) (client as unknown as Inner).connection.stream.destroy(silence())
      }, after)
      return () => {
        clearTimeout(end)
        clearInterval(timer)
      }
    },
  }
}

const silence = () => Object.assign(new Error('The database doesn’t answer'), { code: 'ETIMEDOUT' })

/**
 * Ends a connection, before it sends a password, whose server doesn't prove by SCRAM, bound to the TLS connection (RFC 5929),
 * that it knows the password. The driver takes less where the server offers less.
 */
function requireChannelBinding({ connection }: Inner): void {
  const exclude = (what: string) =>
    connection.stream.destroy(
      new ExcludedAuthentication(
        `The database refuses channel_binding=require of DATABASE_URL: it asks for ${what}. Change the method in pg_hba.conf there, or the parameter.`,
      ),
    )
  // Before the listeners of the driver, which answer.
  connection.prependListener('authenticationCleartextPassword', () => exclude('the method password'))
  connection.prependListener('authenticationMD5Password', () => exclude('the method md5'))
  connection.prependListener('authenticationSASL', ({ mechanisms }) => {
    if (!mechanisms?.includes('SCRAM-SHA-256-PLUS')) exclude('scram-sha-256 without channel binding')
  })
  let proven = false
  // The last message of SCRAM, in which the server proves it.
  connection.prependListener('authenticationSASLFinal', () => {
    proven = true
  })
  connection.prependListener('authenticationOk', () => proven || exclude('no authentication'))
}

/** Whether the server has no TLS, or has no line in pg_hba.conf for a connection with or without it (28000). */
function wantsOther(error: unknown): boolean {
  const { code, message } = error as { code?: string; message?: string }
  return code === '28000' || /^The server does not support SSL/.test(String(message)) || /^ERR_SSL_/.test(String(code))
}
