/**
 * A pooler, in what matters here like PgBouncer before 1.21 (where no PgBouncer is installed, and where its mode is to
 * change in progress): each transaction gets whichever server connection is free, names of statements are passed on as
 * they are, and only a few parameters are taken at the start. It asks clients for no password.
 */
import { type AddressInfo, createServer, type Socket } from 'node:net'
import pg from 'pg'
import type { Teardown } from './database.js'

/** A pooler on loopback. */
export interface Pooler {
  /** The database URL with the pooler instead of the server. */
  readonly url: string
  /** Switches to transaction mode: a client has a connection for a transaction, no longer for its session. */
  lendForTransactions(): void
}

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
export async function startPooler(t: Teardown, databaseUrl: string, size = 4): Promise<Pooler> {
  let forTransactions = false
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
    if (forTransactions || client.socket.destroyed) release(client)
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
  return {
    url: Object.assign(new URL(databaseUrl), { port: String(port) }).href,
    lendForTransactions() {
      forTransactions = true
      for (const client of clients) release(client)
    },
  }
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
