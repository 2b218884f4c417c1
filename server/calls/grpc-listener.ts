/**
 * The port of a gRPC server. What speaks gRPC there (`grpc.ts`) is loaded when somebody connects for the first time: it
 * would be a twelfth of a start.
 */
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { Address } from '../process/settings.js'
import type { GrpcDeps, GrpcServer } from './grpc.js'

/** A port that can be opened once and closed once. */
export interface GrpcListener {
  /** Starts to listen and returns the port. */
  listen(address: Address): Promise<number>
  /** Tells health checkers whether the service can answer. */
  setServing(serving: boolean): void
  /** Takes no new calls, lets those under way end for `grace` milliseconds, then cuts them. */
  close(grace: number): Promise<void>
}

/** Prepares the port. Nothing listens before `listen` is called. */
export function createGrpcListener(deps: GrpcDeps): GrpcListener {
  const sockets = new Set<Socket>()
  let serving = true
  let grpc: Promise<GrpcServer> | undefined

  async function load(): Promise<GrpcServer> {
    const { createGrpcServer } = await import('./grpc.js')
    const server = createGrpcServer(deps)
    server.setServing(serving)
    // Until grpc-js has been told of its certificates it drops connections.
    await nextTurn()
    return server
  }

  async function take(socket: Socket) {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    const drop = () => socket.destroy()
    socket.on('error', drop)
    try {
      grpc ??= load()
      const { take } = await grpc
      if (socket.destroyed) return
      socket.off('error', drop)
      take(socket)
    } catch (err) {
      grpc = undefined
      socket.destroy()
      deps.log.error({ err }, 'the gRPC server can’t be loaded')
    }
  }

  const listener = createServer({ noDelay: true }, socket => void take(socket))
  return {
    async listen({ host, port }) {
      await once(listener.listen({ host, port }), 'listening')
      return (listener.address() as AddressInfo).port
    },
    setServing(now) {
      serving = now
      // What can't be loaded has been told, and is told of this when it can.
      grpc?.then(
        server => server.setServing(now),
        () => {},
      )
    },
    async close(grace) {
      const closed = new Promise<void>(resolve => listener.close(() => resolve()))
      ;(await grpc)?.close(grace)
      // Who never got through a TLS handshake has no calls that could end.
      const cut = setTimeout(() => {
        for (const socket of sockets) socket.destroy()
      }, grace)
      await closed
      clearTimeout(cut)
    },
  }
}
