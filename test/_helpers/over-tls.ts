/** Server and gateway as two processes that authenticate each other by certificates, with HTTPS in front. */
import { once } from 'node:events'
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls'
import type { ExecutionContext } from 'ava'
import { spawnGateway, spawnServer } from './apart.js'
import { type Authority, createAuthority, writePems } from './certificates.js'

export const authority = createAuthority('Authority')
export const ca = authority.certificate

/** A certificate for this machine, and for servers by a name. */
export const issue = (by: Authority = authority, until?: Date) =>
  by.issue({
    name: 'auth',
    dnsNames: ['localhost', 'auth.example'],
    addresses: ['127.0.0.1'],
    ...(until && { until }),
  })

/** Server and gateway with metrics over TLS; files of certificates, and the gateway's settings. */
export async function startOverTls(t: ExecutionContext) {
  const inner = await writePems(t, { ca, ...issue() })
  const own = await writePems(t, authority.issue({ name: 'auth-gateway' }))
  const outer = await writePems(t, issue())
  const server = await spawnServer(t, {
    AUTH_TLS_CERT: inner.cert,
    AUTH_TLS_KEY: inner.key,
    AUTH_TLS_CA: inner.ca,
    // A second port with the same certificate.
    AUTH_ADMIN_ADDRESS: '127.0.0.1:0',
  })
  const env = {
    AUTH_TLS_CERT: own.cert,
    AUTH_TLS_KEY: own.key,
    AUTH_TLS_CA: inner.ca,
    AUTH_HTTP_TLS_CERT: outer.cert,
    AUTH_HTTP_TLS_KEY: outer.key,
  }
  // The address isn't the name in the certificates of the servers.
  const gateway = await spawnGateway(t, server.grpc, { ...env, AUTH_SERVER_NAME: 'auth.example' })
  const { port } = new URL(gateway.http)
  return { server, gateway, port: Number(port), files: { inner, outer, own }, env }
}

/** Opens a TLS connection, and throws the error if it is refused. */
export async function openTls(t: ExecutionContext, port: number, options: ConnectionOptions = {}): Promise<TLSSocket> {
  const socket = connect({ port, host: '127.0.0.1', servername: 'localhost', ca, ...options })
  t.teardown(() => socket.destroy())
  await once(socket, 'secureConnect')
  return socket.on('error', () => {})
}
