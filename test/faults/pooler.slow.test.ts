/** A pooler in transaction mode in front of the database keeps no named statements. */

import { spawn } from 'node:child_process'
import { chmod, chown, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import test, { type ExecutionContext } from 'ava'
import pg from 'pg'
import { sql } from '../../server/database/sql.js'
import { chooseUser } from '../../server/embedded/programs.js'
import { databaseOfRole, freshDatabase, type Teardown } from '../_helpers/database.js'
import { freePort } from '../_helpers/relay.js'
import { password, startTestService, type TestService } from '../_helpers/service.js'
import { waitFor } from '../_helpers/wait.js'

const program = process.env.PGBOUNCER ?? 'pgbouncer'

/** Starts it in transaction mode in front of the server of a database URL, and returns the URL through it. */
async function startPgbouncer(t: Teardown, databaseUrl: string, more: Record<string, string | number> = {}) {
  const at = new URL(databaseUrl)
  const folder = await mkdtemp(join(tmpdir(), 'auth-pooler-'))
  const port = await freePort()
  const settings = {
    listen_addr: '127.0.0.1',
    listen_port: port,
    unix_socket_dir: '',
    auth_type: 'plain',
    auth_file: join(folder, 'users'),
    pool_mode: 'transaction',
    default_pool_size: 8,
    max_client_conn: 200,
    logfile: join(folder, 'log'),
    ...more,
  }
  const lines = Object.entries(settings).map(([name, value]) => `${name} = ${value}`)
  const databases = `* = host=${at.hostname} port=${at.port}`
  await writeFile(join(folder, 'ini'), ['[databases]', databases, '[pgbouncer]', ...lines, ''].join('\n'))
  await writeFile(join(folder, 'users'), `"${at.username}" "${at.password}"\n`)
  // It can't run as root.
  const user = chooseUser(folder)
  await chmod(folder, 0o755)
  if (user)
    for (const path of [folder, join(folder, 'ini'), join(folder, 'users')]) await chown(path, user.uid, user.gid)
  const child = spawn(program, [join(folder, 'ini')], { stdio: 'ignore', ...user })
  const ended = new Promise(resolve => child.once('close', resolve))
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended
    await rm(folder, { recursive: true, force: true })
  })
  const url = Object.assign(new URL(databaseUrl), { port: String(port) }).href
  await waitFor(async () => {
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => {})
    return client.connect().then(
      () => client.end().then(() => true),
      () => false,
    )
  })
  return url
}

/** The number of each response to 300 requests that read and write, 20 at a time. */
async function ask(t: ExecutionContext, { request, signUp }: TestService): Promise<Record<string, number>> {
  const users = await Promise.all(Array.from({ length: 6 }, () => signUp('ROLE_CLIENT')))
  const body = { forgotpasswordquestionsid: 1, answer: 'azul' }
  const send = (index: number) => {
    const { username, token } = users[index % users.length]!
    if (index < users.length) return request('POST', '/users/login', { query: { username, password }, once: true })
    return index % 3 === 0
      ? request('POST', '/forgotpasswords/saveforgotpasswordquestionsusersanswers', { token, body, once: true })
      : request('GET', '/users/me', { token, once: true })
  }
  const counts: Record<string, number> = {}
  let sent = 0
  const work = async () => {
    while (sent < 300) {
      const { status, json } = await send(sent++)
      const key = [status, json?.reason].filter(Boolean).join(' ')
      counts[key] = (counts[key] ?? 0) + 1
    }
  }
  await Promise.all(Array.from({ length: 20 }, work))
  t.log(counts)
  return counts
}

const poolers = {
  'a pooler': startPooler,
  ...(process.env.PGBOUNCER && { PgBouncer: startPgbouncer }),
}
for (const [name, start] of Object.entries(poolers)) {
  test.serial(
    `behind ${name} in transaction mode every call is answered as without a pooler, from the start`,
    async t => {
      const service = await startTestService(t, { DATABASE_URL: await start(t, await freshDatabase(t)) })
      t.deepEqual(await ask(t, service), { 200: 300 })
    },
  )
}

if (process.env.PGBOUNCER)
  test.serial(
    'behind PgBouncer, formats and isolation hold whatever its role sets, and the log names sessions from before',
    async t => {
      const url = await databaseOfRole(
        t,
        `ALTER ROLE :name SET datestyle = 'SQL', 'DMY'`,
        `ALTER ROLE :name SET timezone = 'America/Sao_Paulo'`,
        `ALTER ROLE :name SET standard_conforming_strings = off`,
        `ALTER ROLE :name SET default_transaction_isolation = 'serializable'`,
      )
      const lines: string[] = []
      const service = await startTestService(
        t,
        { DATABASE_URL: await startPgbouncer(t, url) },
        { onLine: line => lines.push(line) },
      )
      const text = `SELECT current_setting('datestyle') AS style, current_setting('timezone') AS zone,
      current_setting('standard_conforming_strings') AS strings`
      for (let times = 0; times < 10; times++) {
        const [row] = await service.registry.database.run(sql.text(text))
        t.deepEqual(row, { style: 'ISO, MDY', zone: 'UTC', strings: 'on' })
      }
      t.regex(lines.join(''), /"wrong":\["default_transaction_isolation = serializable"\].*reconnect it/)
      const { username } = await service.signUp('ROLE_CLIENT')
      const statuses = await Promise.all(
        Array.from({ length: 10 }, (_, index) =>
          service.request('POST', '/users/login', { query: { username, password: `wrong ${index}` }, once: true }),
        ),
      )
      t.deepEqual([...new Set(statuses.map(({ status }) => status))].length, 1)
      const right = await service.request('POST', '/users/login', { query: { username, password }, once: true })
      t.is(right.status, 429)
    },
  )

/**
 * A pooler on loopback, in what matters here like PgBouncer before 1.21 in transaction mode, where
 * none is installed: each transaction gets whichever server connection is free, names of statements are passed on as they
 * are, and only a few parameters are taken at the start. It asks clients for no password.
 */
interface Lender {
  readonly socket: Socket
  client: Client | undefined
  /** Whether no transaction is open. */
  idle: boolean
}

interface Client {
  readonly socket: Socket
  lender: Lender | undefined
  /** Received bytes that no client has read yet. */
  waiting: Buffer[]
  /** The number of expected responses: one for each Query or Sync. */
  due: number
}

const parameters = [
  'user',
  'database',
  'application_name',
  'client_encoding',
  'DateStyle',
  'TimeZone',
  'standard_conforming_strings',
]

/** Starts a pooler with so many server connections; it ends with the test. */
async function startPooler(t: Teardown, databaseUrl: string, size = 4): Promise<string> {
  const lenders: Lender[] = []
  const queue: Client[] = []
  const clients = new Set<Client>()
  const servers: pg.Client[] = []
  for (let count = 0; count < size; count++) {
    const server = new pg.Client({ connectionString: databaseUrl })
    server.on('error', () => {})
    await server.connect()
    servers.push(server)
    const { stream } = (server as unknown as { connection: { stream: Socket } }).connection
    const lender: Lender = { socket: stream, client: undefined, idle: true }
    stream.removeAllListeners('data')
    stream.on(
      'data',
      split((type, message) => answer(lender, type, message)),
    )
    lenders.push(lender)
  }

  function answer(lender: Lender, type: string, message: Buffer) {
    const { client } = lender
    if (!client) return
    if (!client.socket.destroyed) client.socket.write(message)
    if (type !== 'Z') return
    client.due--
    lender.idle = message.at(-1) === 0x49
    release(client)
  }

  /** Takes a connection back once all responses have arrived, and ends the transaction that a client left open. */
  function release(client: Client) {
    const { lender } = client
    if (!lender || client.due > 0) return
    if (!lender.idle) {
      if (client.socket.destroyed) send(client, 'Q', frame('Q', 'ROLLBACK\0'))
      return
    }
    client.lender = undefined
    lender.client = undefined
    serve()
  }

  /** Assigns free connections, the most recently used first, to waiting clients. */
  function serve() {
    for (
      let free = lenders.find(each => !each.client);
      free && queue.length > 0;
      free = lenders.find(each => !each.client)
    ) {
      const client = queue.shift()!
      free.client = client
      client.lender = free
      for (const message of client.waiting.splice(0)) free.socket.write(message)
    }
  }

  function send(client: Client, type: string, message: Buffer) {
    if (type === 'X') return
    if (type === 'Q' || type === 'S') client.due++
    if (client.lender) {
      client.lender.socket.write(message)
      return
    }
    client.waiting.push(message)
    if (!queue.includes(client)) queue.push(client)
    serve()
  }

  const listener = createServer({ noDelay: true }, socket => {
    const client: Client = { socket, lender: undefined, waiting: [], due: 0 }
    clients.add(client)
    socket
      .on('error', () => {})
      .on('close', () => {
        clients.delete(client)
        if (queue.includes(client)) queue.splice(queue.indexOf(client), 1)
        release(client)
      })
    socket.once('data', function greet(bytes) {
      if (bytes.readInt32BE(4) === 80877103) {
        // No TLS here.
        socket.write('N')
        socket.once('data', greet)
        return
      }
      const names = bytes
        .subarray(8)
        .toString()
        .split('\0')
        .filter((_, index) => index % 2 === 0)
      const unknown = names.filter(name => name !== '' && !parameters.includes(name))
      if (unknown.length > 0) {
        socket.end(frame('E', `SFATAL\0C08P01\0Munsupported startup parameter: ${unknown}\0\0`))
        return
      }
      const key = Buffer.from([0, 0, 0, 1, 0, 0, 0, 1])
      socket.write(Buffer.concat([frame('R', Buffer.alloc(4)), frame('K', key), frame('Z', 'I')]))
      socket.on(
        'data',
        split((type, message) => send(client, type, message)),
      )
    })
  })
  await new Promise<void>(resolve => listener.listen(0, '127.0.0.1', resolve))
  t.teardown(async () => {
    listener.close()
    for (const { socket } of [...clients, ...lenders]) socket.destroy()
  })
  const { port } = listener.address() as AddressInfo
  return Object.assign(new URL(databaseUrl), { port: String(port) }).href
}

/** A message: type, length, content. */
function frame(type: string, content: string | Buffer): Buffer {
  const body = Buffer.from(content as string)
  const head = Buffer.alloc(5, type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

/** Assembles messages from the pieces in which they arrive. */
function split(take: (type: string, message: Buffer) => void): (piece: Buffer) => void {
  let rest = Buffer.alloc(0)
  return piece => {
    rest = Buffer.concat([rest, piece])
    for (let end = length(rest); end <= rest.length; end = length(rest)) {
      take(String.fromCharCode(rest[0]!), rest.subarray(0, end))
      rest = rest.subarray(end)
    }
  }
}

function length(bytes: Buffer): number {
  return bytes.length < 5 ? Number.POSITIVE_INFINITY : bytes.readInt32BE(1) + 1
}
