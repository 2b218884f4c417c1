/** Envoy with the configuration of deploy/envoy. */
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { writePems } from './certificates.js'
import type { Teardown } from './database.js'
import { adapted, authority, type Front, folderOf, servername, startProxy } from './front.js'
import { openHttp2 } from './http2.js'
import { freePort } from './relay.js'
import { spawnService } from './spawned.js'
import { waitForValue } from './wait.js'

/** Connections that it takes of the public: fewer than in the file, which tests open all of. */
export const publicConnections = 200

/** Starts it in front of a service on a separate database. */
export async function startEnvoy(t: Teardown): Promise<Front> {
  const { certificate: ca } = authority
  const own = await writePems(t, { ca, ...authority.issue({ name: 'auth-server', dnsNames: ['auth-server'] }) })
  const service = await spawnService(t, { AUTH_TLS_CERT: own.cert, AUTH_TLS_KEY: own.key, AUTH_TLS_CA: own.ca })
  const front = authority.issue({ name: servername, dnsNames: [servername, 'localhost'] })
  const gateway = authority.issue({ name: 'auth-gateway', dnsNames: ['auth-gateway'] })
  const folder = await folderOf(t, {
    'public.crt': front.cert,
    'public.key': front.key,
    'gateway.crt': gateway.cert,
    'gateway.key': gateway.key,
    'ca.crt': ca,
  })
  const [https, grpc] = [await freePort(), await freePort()]
  const portOf = (url: string) => new URL(url).port
  const config = await adapted('envoy/envoy.yaml', {
    '/etc/envoy/tls/': `${folder}/`,
    'port_value: 9901': `port_value: ${await freePort()}`,
    'address: 0.0.0.0, port_value: 8443': `address: 127.0.0.1, port_value: ${https}`,
    'address: 0.0.0.0, port_value: 50443': `address: 127.0.0.1, port_value: ${grpc}`,
    'address: auth-gateways.internal, port_value: 8080': `address: 127.0.0.1, port_value: ${portOf(service.http)}`,
    'address: auth-servers.internal, port_value: 50051': `address: 127.0.0.1, port_value: ${portOf(`http://${service.grpc}`)}`,
    'max_active_downstream_connections: 10000': `max_active_downstream_connections: ${publicConnections}`,
  })
  await writeFile(join(folder, 'envoy.yaml'), config)
  const options = ['--use-dynamic-base-id', '--concurrency', '2', '--log-level', 'error']
  await startProxy(t, 'envoy', ['-c', `${folder}/envoy.yaml`, ...options], https)
  const place = { port: https, ca, servername }
  // It knows of no healthy gateway and server until it has asked them.
  const client = await openHttp2(place)
  await waitForValue(async () => (await client.ask('GET', '/healthz')).status, 200)
  client.close()
  return { https: place, grpc: { port: grpc, ca, servername }, service }
}
