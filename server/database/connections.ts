import type { Socket } from 'node:net'
import pg from 'pg'
import { type Authentication, type DatabaseTarget, passwordIn, readDatabaseUrl } from '../process/database-url.js'
import { adviseOnConnection, ExcludedAuthentication } from './connection-advice.js'
import { ConnectionError, isSqlState } from './failures.js'
import { startupParameters } from './session-settings.js'

/** Opens connections, and closes unresponsive ones. */
export interface Connections {
  /**
   * Connects to the first host that accepts the connection and has the required properties. Begins with the host of the last
   * success, unless it has failed since. Replaces connections to other hosts once one accepts writes. `pipeline` sends statements
   * without waiting for responses; `retire` is called once, when the connection must no longer be used. Throws
   * `ConnectionError`.
   */
  open(options?: { pipeline?: boolean; retire?: () => void }): Promise<pg.Client>
  /** Milliseconds after which `open` has failed at all hosts: `connect_timeout` for each. */
  openLimit(): number
  /** Whether a connection may be used. */
  isGood(client: pg.Client): boolean
  /** Sets whether statements of a connection may exceed `silenceLimit` while its host responds on other connections. */
  setUnlimited(client: pg.Client, unlimited: boolean): void
  /** Closes an unresponsive connection, and replaces all connections that have been silent for as long. */
  discard(client: pg.Client): void
  /** Replaces all connections: idle ones now, others after their statement or transaction. */
  renew(): void
  /** Ends a connection, by force if the server doesn't respond. */
  end(client: pg.Client): Promise<void>
  /** Errors so far: by class of SQLSTATE, and `connect`, `lost` and `silent` for connections. */
  readonly errors: ReadonlyMap<string, number>
  /** Opens no more connections. */
  stop(): void
  /** Closes all connections by force. */
  cut(): void
}

/** Milliseconds between two checks of all connections. */
const checkInterval = 250

/** Maximum checks without data during a statement: longer than the statement timeout of the server. */
const silenceLimit = 5_500 / checkInterval

/** Maximum milliseconds that `end` waits for the server to close a connection. */
const closeTimeout = 1_000

/** SQLSTATE of a read-only server. */
const readOnly = '25006'

/** State of a connection. */
interface State {
  /** Index of its host. */
  readonly index: number
  /** Number of bytes received until the last check. */
  heard: number
  /** Number of checks since data was received. */
  silent: number
  /** Number of checks since data was received, while a statement is in flight. */
  unanswered: number
  good: boolean
  connected: boolean
  unlimited: boolean
  readonly retire: () => void
}

/** Properties of a client that pg's types lack. */
type Client = pg.Client & {
  connection: {
    stream: Socket
    on(event: 'errorMessage', listener: (error: { code?: string }) => void): void
    prependListener(event: string, listener: (message: { mechanisms?: string[] }) => void): void
  }
  /** Whether all statements have completed. */
  readyForQuery?: boolean
  getStartupConf(): Record<string, string>
}

const types = {
  // A date stays text, because it isn't a point in time.
  getTypeParser: (oid: number, format?: 'text') =>
    oid === pg.types.builtins.DATE ? String : pg.types.getTypeParser(oid, format),
}

/**
 * Opens connections to the database of a URL. The URL is read for each connection, because an embedded database may restart at
 * another port.
 *
 * If a server vanishes without closing its connections, they look idle: the driver notices only when the operating system
 * stops retransmitting. So a connection that is silent during a statement for too long is closed, together with all that have
 * been silent for as long. One timer checks all connections, so statements have no overhead.
 */
export function createConnections(url: () => string): Connections {
  const all = new Map<Client, State>()
  const errors = new Map<string, number>()
  const countError = (kind: string) => void errors.set(kind, (errors.get(kind) ?? 0) + 1)
  let last: { url: string; target: DatabaseTarget; first: number } | undefined
  let stopped = false
  let timer: NodeJS.Timeout | undefined

  function target() {
    const now = url()
    if (last?.url !== now) last = { url: now, target: readDatabaseUrl(now), first: 0 }
    return last
  }

  const open: Connections['open'] = async ({ pipeline = false, retire = () => {} } = {}) => {
    const at = target()
    const { hosts, plainToo, tls } = at.target
    const { first } = at
    let failure: unknown
    for (let count = 0; count < hosts.length; count++) {
      const index = (first + count) % hosts.length
      try {
        const client = await connect(at.target, index, pipeline, retire, tls).catch(error => {
          if (!plainToo || !wantsNoTls(error)) throw error
          return connect(at.target, index, pipeline, retire, undefined)
        })
        at.first = index
        // Only one host is the primary. A former one may still run and accept connections, and its reads are stale.
        if (at.target.writable) renew(state => state.index !== index)
        return client
      } catch (error) {
        // The name of a host that is down may be unknown, so an error of another host is more informative.
        if (failure === undefined || (error as { code?: string }).code !== 'ENOTFOUND') failure = error
        // The listener of `errorMessage` counts errors of the server.
        if (!isSqlState((error as { code?: string }).code)) countError('connect')
        passOver(index)
        if ((error as Error).message === 'timeout expired') dropPatient(index)
      }
    }
    throw new ConnectionError(failure, adviseOnConnection(failure, namesOf(at.target)))
  }

  /** Lets the next connection begin with the next host. */
  function passOver(index: number): void {
    if (last?.first === index) last.first = (index + 1) % last.target.hosts.length
  }

  async function connect(
    target: DatabaseTarget,
    index: number,
    pipeline: boolean,
    retire: () => void,
    tls: DatabaseTarget['tls'],
  ): Promise<pg.Client> {
    if (stopped) throw new Error('Connection terminated')
    const client = createClient(target, index, pipeline, tls)
    const checkAuthentication = restrictAuthentication(client, target.authentication)
    const state: State = { ...fresh, index, retire }
    watch(client, state)
    try {
      await client.connect()
      checkAuthentication()
      state.connected = true
      if (target.writable) await checkWritable(client)
      if (stopped) throw new Error('Connection terminated')
      return client
    } catch (error) {
      void end(client)
      throw error
    }
  }

  function watch(client: Client, state: State): void {
    all.set(client, state)
    timer ??= setInterval(check, checkInterval).unref()
    client.on('error', () => {
      if (!state.good || !state.connected) return
      countError('lost')
      // Other connections may also be broken without an error.
      renew()
    })
    client.on('end', () => {
      retireNow(state)
      all.delete(client)
      if (all.size > 0 || !timer) return
      clearInterval(timer)
      timer = undefined
    })
    client.connection.on('errorMessage', ({ code }) => {
      if (isSqlState(code)) countError(code.slice(0, 2))
      // A read-only error means that the server was demoted to a standby.
      if (code === readOnly) renew()
    })
  }

  async function checkWritable(client: pg.Client): Promise<void> {
    const { rows } = await client.query('SHOW transaction_read_only')
    if (rows[0].transaction_read_only === 'off') return
    countError(readOnly.slice(0, 2))
    throw Object.assign(new Error('The database is read-only'), { code: readOnly })
  }

  function check(): void {
    for (const [client, state] of all) {
      const { bytesRead } = client.connection.stream
      const waits = state.connected && !client.readyForQuery
      if (bytesRead !== state.heard) {
        state.heard = bytesRead
        state.silent = 0
        state.unanswered = 0
      } else {
        // Counts checks instead of time, because a suspended process receives nothing.
        state.silent++
        state.unanswered = waits ? state.unanswered + 1 : 0
      }
      if (isLate(state) && !state.unlimited) discard(client)
    }
  }

  function discard(client: pg.Client): void {
    const given = all.get(client as Client)
    if (!given) return
    countError('silent')
    // Minus one, because connections can become silent between two checks.
    const { unanswered, index } = given
    passOver(index)
    retireNow(given)
    destroy(client as Client)
    renew(({ silent }) => silent >= unanswered - 1)
    dropPatient(index)
  }

  /** Replaces these connections. */
  function renew(are: (state: State) => boolean = () => true): void {
    for (const [client, state] of all) {
      if (!state.connected || !are(state)) continue
      retireNow(state)
      if (isIdle(client)) destroy(client)
    }
  }

  /** Closes connections to a host that exceed `silenceLimit` and were permitted to (`setUnlimited`). */
  function dropPatient(index: number): void {
    for (const [client, state] of all) if (state.unlimited && state.index === index && isLate(state)) destroy(client)
  }

  async function end(client: pg.Client): Promise<void> {
    const late = setTimeout(() => destroy(client as Client), closeTimeout)
    await client.end()
    clearTimeout(late)
  }

  return {
    open,
    openLimit() {
      const { hosts, connectTimeout } = target().target
      return hosts.length * connectTimeout
    },
    isGood: client => all.get(client as Client)?.good ?? false,
    setUnlimited(client, unlimited) {
      const state = all.get(client as Client)
      if (state) state.unlimited = unlimited
    },
    discard,
    renew: () => renew(),
    end,
    errors,
    stop() {
      stopped = true
    },
    cut() {
      for (const client of all.keys()) destroy(client)
    },
  }
}

/** Creates a client, which isn't connected. */
function createClient(target: DatabaseTarget, index: number, pipeline: boolean, tls: DatabaseTarget['tls']): Client {
  const { user, database, connectTimeout, keepAliveDelay, authentication, options } = target
  const { host, address, port } = target.hosts[index]!
  const client = new pg.Client({
    host: address ?? host,
    port,
    user,
    password: target.password ?? passwordOf(target, index),
    database,
    options,
    ssl: tls && !host?.startsWith('/') ? { ...tls, servername: address && host } : false,
    sslnegotiation: target.direct && tls ? 'direct' : 'postgres',
    enableChannelBinding: authentication.bindsChannel,
    application_name: target.applicationName,
    pipeline,
    types,
    connectionTimeoutMillis: connectTimeout,
    // Routers drop connections that are silent for long. The operating system then detects the loss within seconds.
    keepAlive: keepAliveDelay !== undefined,
    keepAliveInitialDelayMillis: keepAliveDelay,
  } as pg.ClientConfig) as Client
  // Startup parameters cost no round trip, and poolers support these.
  const startup = client.getStartupConf
  client.getStartupConf = () => ({ ...startup.call(client), ...startupParameters })
  return client
}

/** Role and database, as the driver completes them, and the parameter that requires TLS. */
function namesOf({ user, database, authentication, mode }: DatabaseTarget) {
  const role = user ?? process.env.PGUSER ?? pg.defaults.user
  const tlsParameter = authentication.bindsChannel ? 'channel_binding=require' : `sslmode=${mode}`
  return { role, database: database ?? process.env.PGDATABASE ?? role, tlsParameter }
}

/** The password of a host in the password file of the URL. */
function passwordOf(target: DatabaseTarget, index: number): string | undefined {
  const { host = process.env.PGHOST ?? 'localhost', port = process.env.PGPORT ?? 5432 } = target.hosts[index]!
  const { role = '', database = '' } = namesOf(target)
  return passwordIn(target.passwords, [host.startsWith('/') ? 'localhost' : host, String(port), database, role])
}

/**
 * Ends a connection, before it sends a password, whose server asks for a method of authentication that the URL excludes, or
 * for none. Returns a function that throws for such a connection: its end may come later than its first answers.
 */
function restrictAuthentication(
  { connection }: Client,
  { parameter, bindsChannel, allows }: Authentication,
): () => void {
  let excluded: Error | undefined
  const check = () => {
    if (excluded) throw excluded
  }
  if (!parameter) return check
  let proven = false
  const exclude = (what: string) => {
    excluded = new ExcludedAuthentication(
      `The database refuses ${parameter} of DATABASE_URL: it asks for ${what}. Change the method in pg_hba.conf there, or the parameter.`,
    )
    connection.stream.destroy(excluded)
  }
  // Before the listeners of the driver, which answer.
  const on = (event: string, method: string) =>
    connection.prependListener(event, ({ mechanisms }) => {
      proven = true
      if (!allows(method)) exclude(`the method ${method}`)
      else if (bindsChannel && !mechanisms?.includes('SCRAM-SHA-256-PLUS')) exclude(`${method} without channel binding`)
    })
  on('authenticationCleartextPassword', 'password')
  on('authenticationMD5Password', 'md5')
  on('authenticationSASL', 'scram-sha-256')
  let verified = false
  connection.prependListener('authenticationSASLFinal', () => {
    verified = true
  })
  connection.prependListener('authenticationOk', () => {
    // The server proves in the last message of SCRAM that it knows the password.
    if (proven ? bindsChannel && !verified : !allows('none')) exclude('no authentication')
  })
  return check
}

function isLate({ unanswered }: State): boolean {
  return unanswered > silenceLimit
}

const fresh = { heard: 0, silent: 0, unanswered: 0, good: true, connected: false, unlimited: false }

function retireNow(state: State): void {
  if (state.good && state.connected) state.retire()
  state.good = false
}

function isIdle(client: Client): boolean {
  return client.readyForQuery === true && client.getTransactionStatus() === 'I'
}

/** Destroys the socket of a connection, which rejects its statements in flight with ETIMEDOUT. */
function destroy(client: Client): void {
  client.connection.stream.destroy(Object.assign(new Error('The database doesn’t answer'), { code: 'ETIMEDOUT' }))
}

/** Whether the server doesn't support TLS, or rejects it (28000: no matching line in pg_hba.conf). */
function wantsNoTls(error: unknown): boolean {
  const { code, message } = error as { code?: string; message?: string }
  return code === '28000' || /^The server does not support SSL/.test(String(message)) || /^ERR_SSL_/.test(String(code))
}
