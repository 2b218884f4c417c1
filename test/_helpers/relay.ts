/** A network path to a server that can go dark: packets are lost without an error to either side. */
import { randomInt } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import type { Teardown } from './database.js'

/** A relay on loopback. */
export interface Relay {
  readonly port: number
  /** The database URL with the relay instead of the server. */
  readonly url: string
  /** Drops all packets silently: connections stay open for ever, and new ones get no response. */
  goDark(): void
  /** New connections work again. Earlier ones stay dead. */
  lightUp(): void
  /** The number of connections so far. */
  count(): number
}

/** Starts a relay to the server of a database URL, by default at any free port; it ends with the test. */
export async function startRelay(t: Teardown, databaseUrl: string, at = 0): Promise<Relay> {
  const target = new URL(databaseUrl)
  const sockets = new Set<Socket>()
  let dark = false
  let count = 0
  const hold = (socket: Socket) => {
    sockets.add(socket)
    socket.on('error', () => {}).on('close', () => sockets.delete(socket))
    return socket
  }
  const server = createServer(incoming => {
    count++
    hold(incoming)
    if (dark) return
    const outgoing = hold(connect(Number(target.port), target.hostname))
    incoming.on('data', bytes => dead || outgoing.write(bytes))
    outgoing.on('data', bytes => dead || incoming.write(bytes))
    incoming.on('close', () => dead || outgoing.destroy())
    outgoing.on('close', () => dead || incoming.destroy())
    let dead = false
    deaths.push(() => {
      dead = true
    })
  })
  const deaths: (() => void)[] = []
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(at, '127.0.0.1', resolve))
  t.teardown(async () => {
    server.close()
    for (const socket of sockets) socket.destroy()
  })
  const { port } = server.address() as AddressInfo
  return {
    port,
    url: withPort(databaseUrl, port),
    goDark() {
      dark = true
      for (const die of deaths.splice(0)) die()
    },
    lightUp() {
      dark = false
    },
    count: () => count,
  }
}

/** A URL with another port of this machine. */
export function withPort(url: string, port: number): string {
  // With the time limit of a service for connections.
  return Object.assign(new URL(url), { hostname: '127.0.0.1', port: String(port), search: '' }).href
}

/** Ports that `freePort` has taken: where it returned one, nothing may listen yet. */
const given = new Set<number>()

/** A free port of this machine, outside the range that systems assign, so that no other process gets it in the meantime. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, 32_000)
    if (given.has(port)) continue
    given.add(port)
    const server = createServer().listen(port, '127.0.0.1')
    if (await once(server, 'listening').catch(() => false)) {
      await new Promise(resolve => server.close(resolve))
      return port
    }
  }
}
