/** A way to a TCP server that a test can close and block. */
import { connect, createServer, type Server, type Socket } from 'node:net'
import type { Teardown } from './database.js'

export interface TcpProxy {
  readonly port: number
  /** Lets nothing through any more, in either direction, and tells nobody: as when a cable is pulled. */
  freeze(): void
}

/** Opens a port, any free one unless told, that leads to a port of this machine. */
export async function openProxy(t: Teardown, target: number, port = 0): Promise<TcpProxy> {
  const sockets = new Set<Socket>()
  let frozen = false
  const server: Server = createServer({ pauseOnConnect: true }, near => {
    const far = connect(target, '127.0.0.1')
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from)
      from.on('error', () => to.destroy())
      from.on('data', bytes => !frozen && to.write(bytes))
      from.on('end', () => !frozen && to.end())
    }
    if (!frozen) near.resume()
  })
  await new Promise<void>((resolve, reject) => server.once('error', reject).listen(port, '127.0.0.1', resolve))
  t.teardown(async () => {
    for (const socket of sockets) socket.destroy()
    await new Promise(resolve => server.close(resolve))
  })
  return {
    port: (server.address() as { port: number }).port,
    freeze() {
      frozen = true
    },
  }
}

/** A URL with another port of this machine. */
export function withPort(url: string, port: number): string {
  return Object.assign(new URL(url), { hostname: '127.0.0.1', port: String(port) }).href
}
