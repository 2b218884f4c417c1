/** Envoy with the configuration of deploy/envoy, in front of a service. */
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import { connect, type Socket } from 'node:net'
import { join } from 'node:path'
import test from 'ava'
import { writePems } from '../_helpers/certificates.js'
import type { Teardown } from '../_helpers/database.js'
import { adapted, authority, type Front, folderOf, servername, startProxy } from '../_helpers/front.js'
import { openHttp2 } from '../_helpers/http2.js'
import { freePort } from '../_helpers/relay.js'
import { spawnService } from '../_helpers/spawned.js'
import { waitForValue } from '../_helpers/wait.js'
import { testFront } from './proxied.js'

/** Its limit of public connections: lower than in the file, because tests open all of them. */
const publicConnections = 200

/** Starts it in front of a service on a separate database. */
async function startEnvoy(t: Teardown, divisor: number): Promise<Front> {
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
    'max_tokens: 4000, tokens_per_fill: 50,': `max_tokens: ${4000 / divisor}, tokens_per_fill: ${50 / divisor},`,
    'max_tokens: 10000, tokens_per_fill: 150,': `max_tokens: ${10_000 / divisor}, tokens_per_fill: ${150 / divisor},`,
    'max_active_downstream_connections: 10000': `max_active_downstream_connections: ${publicConnections}`,
  })
  await writeFile(join(folder, 'envoy.yaml'), config)
  const options = ['--use-dynamic-base-id', '--concurrency', '2', '--log-level', 'error']
  await startProxy(t, 'envoy', ['-c', `${folder}/envoy.yaml`, ...options], https)
  const place = { port: https, ca, servername }
  // It regards gateway and server as unhealthy until its first check.
  const client = await openHttp2(place)
  await waitForValue(async () => (await client.ask('GET', '/healthz')).status, 200)
  client.close()
  return { https: place, grpc: { port: grpc, ca, servername }, service }
}

const front = testFront(startEnvoy)

test.serial('connections beyond the limit are closed at once, and services keep theirs', async t => {
  const open = new Set<Socket>()
  let refused = 0
  t.teardown(async () => void [...open].map(socket => socket.destroy()))
  for (let index = 0; index < publicConnections + 20; index++) {
    const socket = connect(front.https.port, '127.0.0.1').on('error', () => {})
    open.add(socket)
    socket.on('close', () => {
      refused++
      open.delete(socket)
    })
    await once(socket, 'connect')
  }
  await waitForValue(
    () => refused,
    value => value >= 20,
  )
  await t.throwsAsync(openHttp2(front.https))
  const service = await openHttp2(front.grpc)
  service.close()
  t.true(refused <= 20 + 8, `${refused}`)
})
