import type { Socket } from 'node:net'
import pg from 'pg'
import { type DatabaseTarget, readDatabaseUrl } from '../process/database-url.js'
import { ConnectionError } from './failures.js'

/** What opens connections, and closes those that don't answer. */
export interface Connections {
  /**
   * Connects to the first host that accepts and is as wanted, beginning with the one that was so last and hasn't failed. `pipeline` sends
   * statements without waiting for answers; `retire` is called once when the connection is not to be used any more.
   * Throws `ConnectionError`.
   */
  open(options?: { pipeline?: boolean; retire?: () => void }): Promise<pg.Client>
  /** Whether statements may be sent on a connection. */
  isGood(client: pg.Client): boolean
  /** Lets the statements of a connection take as long as they need while others are answered, or no longer. */
  setPatient(client: pg.Client, patient: boolean): void
  /** Gives up a connection that doesn't answer, and has those replaced that have been as silent. */
  giveUp(client: pg.Client): void
  /** Has every connection replaced: idle ones now, others after their statement or transaction. */
  renew(): void
  /** Ends a connection: politely, and by force when the other side says nothing. */
  end(client: pg.Client): Promise<void>
  /** Errors so far: by class of SQLSTATE, and `connect`, `lost` and `silent` for connections. */
  readonly errors: ReadonlyMap<string, number>
  /** Opens no more. */
  stop(): void
  /** Cuts every connection. */
  cut(): void
}

/** Milliseconds between two looks at whether connections answer. */
const checkInterval = 250

/** Beats for which a statement may go without a sign of an answer: longer than the server itself lets one run. */
const silenceLimit = 5_500 / checkInterval

/** Milliseconds that the other side has to end a connection. */
const closeTimeout = 1_000

/** SQLSTATE of a server that takes no writes. */
const readOnly = '25006'

/** What is known of a connection. */
interface State {
  /** Which host it leads to. */
  readonly index: number
  /** Bytes received at the last look. */
  heard: number
  /** Beats since something was heard. */
  silent: number
  /** Beats since something was heard, while a statement is under way. */
  unanswered: number
  good: boolean
  connected: boolean
  patient: boolean
  readonly retire: () => void
}

/** What pg doesn't say of its client. */
type Client = pg.Client & {
  connection: { stream: Socket; on(event: 'errorMessage', recordCaller: (error: { code?: string }) => void): void }
  /** Every statement is answered. */
  readyForQuery?: boolean
  getStartupConf(): Record<string, string>
  getTransactionStatus(): 'I' | 'T' | 'E' | null
}

const types = {
  // A day is no point in time.
  getTypeParser: (oid: number, format?: 'text') =>
    oid === pg.types.builtins.DATE ? String : pg.types.getTypeParser(oid, format),
}

/**
 * Opens connections to the database that a URL names; it is asked for each time, since an embedded database may come
 * back elsewhere.
 *
 * A connection whose other side has vanished without a word looks like an idle one, to PostgreSQL's driver for as long
 * as the system goes on sending. So whoever has a statement under way and hears nothing is given up, and whatever else
 * was silent for as long with it. One timer looks after all of them; a statement costs nothing.
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
        return client
      } catch (error) {
        // A name that is unknown may be that of a server which is down: what another one says counts for more.
        if (failure === undefined || (error as { code?: string }).code !== 'ENOTFOUND') failure = error
        // What the server says is counted where it arrives.
        if (!isSqlState((error as { code?: string }).code)) countError('connect')
        passOver(index)
        if ((error as Error).message === 'timeout expired') dropPatient(index)
      }
    }
    throw new ConnectionError(failure)
  }

  /** Has others begin with the next host, unless they do. */
  function passOver(index: number): void {
    if (last?.first === index) last.first = (index + 1) % last.target.hosts.length
  }

  async function connect(
    { hosts, user, password, database, writable, connectTimeout, applicationName, options }: DatabaseTarget,
    index: number,
    pipeline: boolean,
    retire: () => void,
    tls: DatabaseTarget['tls'],
  ): Promise<pg.Client> {
    if (stopped) throw new Error('Connection terminated')
    const { host, port } = hosts[index]!
    const client = new pg.Client({
      ...(host && { host }),
      ...(port && { port }),
      ...(user && { user }),
      ...(password && { password }),
      ...(database && { database }),
      ...(options && { options }),
      ssl: host?.startsWith('/') ? false : (tls ?? false),
      application_name: applicationName,
      pipeline,
      types,
      connectionTimeoutMillis: connectTimeout,
      keepAlive: true,
      // Routers forget connections that are silent for long; the system gives up a dead one within seconds after that.
      keepAliveInitialDelayMillis: 10_000,
    } as pg.ClientConfig) as Client
    // As parameters of the start they cost no round trip, and poolers know them.
    const startup = client.getStartupConf
    client.getStartupConf = () => ({ ...startup.call(client), TimeZone: 'UTC', standard_conforming_strings: 'on' })

    const state: State = { ...fresh, index, retire }
    all.set(client, state)
    timer ??= setInterval(look, checkInterval).unref()
    client.on('error', () => {
      if (!state.good || !state.connected) return
      countError('lost')
      // Whatever cut this one may have cut others, and not all are told.
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
      // A server that takes no writes any more: it was demoted.
      if (code === readOnly) renew()
    })
    try {
      await client.connect()
      state.connected = true
      if (writable) {
        const { rows } = await client.query('SHOW transaction_read_only')
        if (rows[0].transaction_read_only !== 'off') {
          countError(readOnly.slice(0, 2))
          throw Object.assign(new Error('The database is read-only'), { code: readOnly })
        }
      }
      if (stopped) throw new Error('Connection terminated')
      return client
    } catch (error) {
      void end(client)
      throw error
    }
  }

  function look(): void {
    for (const [client, state] of all) {
      const { bytesRead } = client.connection.stream
      const waits = state.connected && !client.readyForQuery
      if (bytesRead !== state.heard) {
        state.heard = bytesRead
        state.silent = 0
        state.unanswered = 0
      } else {
        // Beats, not time: a process that was frozen has had no occasion to hear anything.
        state.silent++
        state.unanswered = waits ? state.unanswered + 1 : 0
      }
      if (isLate(state) && !state.patient) giveUp(client)
    }
  }

  function giveUp(client: pg.Client): void {
    const given = all.get(client as Client)
    if (!given) return
    countError('silent')
    // An interval more or less is where the looks fell.
    const { unanswered, index } = given
    passOver(index)
    retireNow(given)
    destroy(client as Client)
    renew(unanswered - 1)
    dropPatient(index)
  }

  /** Replaces the connections that have been silent for so many beats. */
  function renew(silent = 0): void {
    for (const [client, state] of all) {
      if (!state.connected || state.silent < silent) continue
      retireNow(state)
      if (isIdle(client)) destroy(client)
    }
  }

  /** Gives up work that may take long, which had the benefit of the doubt until now. */
  function dropPatient(index: number): void {
    for (const [client, state] of all) if (state.patient && state.index === index && isLate(state)) destroy(client)
  }

  async function end(client: pg.Client): Promise<void> {
    const late = setTimeout(() => destroy(client as Client), closeTimeout)
    await client.end()
    clearTimeout(late)
  }

  return {
    open,
    isGood: client => all.get(client as Client)?.good ?? false,
    setPatient(client, patient) {
      const state = all.get(client as Client)
      if (state) state.patient = patient
    },
    giveUp,
    renew,
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

function isSqlState(code: string | undefined): code is string {
  return /^[\dA-Z]{5}$/.test(code ?? '')
}

function isLate({ unanswered }: State): boolean {
  return unanswered > silenceLimit
}

const fresh = { heard: 0, silent: 0, unanswered: 0, good: true, connected: false, patient: false }

function retireNow(state: State): void {
  if (state.good && state.connected) state.retire()
  state.good = false
}

function isIdle(client: Client): boolean {
  return client.readyForQuery === true && client.getTransactionStatus() === 'I'
}

/** Closes a socket; what waits on it learns why. */
function destroy(client: Client): void {
  client.connection.stream.destroy(Object.assign(new Error('The database doesn’t answer'), { code: 'ETIMEDOUT' }))
}

/** Whether a server can't be spoken to over TLS, or doesn't want to be (28000: no such line in pg_hba.conf). */
function wantsNoTls(error: unknown): boolean {
  const { code, message } = error as { code?: string; message?: string }
  return code === '28000' || /^The server does not support SSL/.test(String(message)) || /^ERR_SSL_/.test(String(code))
}
